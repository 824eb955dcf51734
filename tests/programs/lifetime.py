"""Beginning and end, in every order: closing, leaving, forking, outliving; and that nothing is kept for ever."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np
from marks import on_ranks
from mpi4py import MPI
from support import RANK, SIZE, WORLD, in_threads, raises, run, run_checks, say, still_works

import gradientflow as gf
from gradientflow.errors import ArgumentError, ArgumentTypeError, ClosedError, GradientFlowError, PeerError

TOTAL = SIZE * (SIZE + 1) // 2


# ---- within a program ------------------------------------------------------------------------------------------------


@on_ranks(1, 3)
def check_closing(_: gf.Communicator) -> None:
    comm = gf.init()
    assert not comm.closed
    still_works(comm)
    handle = comm.allreduce_async(np.ones(3))
    comm.close()
    assert comm.closed
    assert "closed" in repr(comm)
    assert handle.done
    comm.close()
    with raises(ClosedError), comm:
        comm.barrier()
    calls: list[Callable[[], Any]] = [
        comm.barrier,
        comm.barrier_async,
        lambda: comm.allreduce(np.ones(3)),
        lambda: comm.allreduce(np.ones(3), algorithm="mpi"),
        lambda: comm.broadcast(np.ones(3)),
        lambda: comm.reduce(np.ones(3)),
        lambda: comm.allgather(np.ones(3)),
        lambda: comm.reduce_scatter_async(np.ones(3)),
        lambda: comm.empty(3),
        lambda: gf.GradientPool(comm, [3]),
        lambda: comm.alltoall(np.ones(SIZE)),
        lambda: comm.gather(np.ones(3)),
        lambda: comm.scatter(np.ones(SIZE), out=np.ones(1)),
        lambda: comm.allgatherv(np.ones(3), [3] * SIZE),
        lambda: comm.split(0),
        comm.admit,
    ]
    for call in calls:
        with raises(ClosedError, "the communicator is closed"):
            call()
    assert comm.describe()["rank"] == comm.rank == RANK


@on_ranks(1, 3)
def check_threads_that_close_at_once(_: gf.Communicator) -> None:
    """One of them closes it, when the call under way has ended."""
    for _ in range(20):
        comm = gf.init(transport="tcp")
        handle = comm.allreduce_async(np.ones(100_000))
        in_threads(lambda close: close(), [comm.close] * 4)
        assert handle.done


def check_exceptions_in_with(_: gf.Communicator) -> None:
    for kind in (ZeroDivisionError, SystemExit, KeyboardInterrupt, StopIteration):
        with contextlib.suppress(kind), gf.init() as comm:
            still_works(comm)
            WORLD.Barrier()  # so that nobody needs the others any more
            raise kind
        assert comm.closed


@on_ranks(1, 3)
def check_what_a_communicator_is_made_from(_: gf.Communicator) -> None:
    for nonsense in (3, "world", [WORLD], object(), MPI.COMM_NULL, MPI):
        with raises(ArgumentTypeError):
            gf.init(nonsense)
    if SIZE > 1:
        half = WORLD.Split(RANK % 2, RANK)
        inter = half.Create_intercomm(0, WORLD, 1 - RANK % 2)
        with raises(ArgumentTypeError, "intracommunicator"):
            gf.init(inter)
        inter.Free()
    # The MPI communicator may go as soon as ours is made.
    copy = WORLD.Dup()
    with gf.init(copy, gf.Config(node_size=1)) as comm:
        copy.Free()
        still_works(comm)


@on_ranks(1, 3)
def check_arrays_outlive_communicators(_: gf.Communicator) -> None:
    comm = gf.init()
    x, y = comm.empty((100, 100)), comm.empty(2_000_000)
    part = x[3:5, 10:]
    x[:] = RANK
    del x
    comm.close()
    del comm
    gc.collect()
    part += 1
    y[:] = RANK + 1
    assert (part == RANK + 1).all()
    # In another communicator it is an array like any other.
    with gf.init() as comm:
        assert (comm.allreduce(y) == TOTAL).all()
        new = comm.empty(2_000_000)
        mixed = new if RANK == 0 else y
        mixed[:] = RANK + 1
        assert (comm.allreduce(mixed) == TOTAL).all()


def check_communicators_outlive_arrays(comm: gf.Communicator) -> None:
    """What is freed is not taken for node memory when something else lies at its place."""
    for _ in range(20):
        x = comm.empty(100_000)
        x[:] = RANK + 1
        comm.allreduce(x)
        del x
        gc.collect()
        y = np.full(100_000, RANK + 1, np.float32)
        assert (comm.allreduce(y) == TOTAL).all()


def check_memory_is_kept_while_it_is_used(comm: gf.Communicator) -> None:
    handles = []
    for _ in range(20):
        x = comm.empty(100_000)
        x[:] = RANK + 1
        handles.append(comm.allreduce_async(x))
        del x
    gc.collect()
    for handle in handles:
        assert (handle.wait() == TOTAL).all()


class Usage:
    """What this process holds."""

    def __init__(self) -> None:
        gc.collect()
        WORLD.Barrier()
        maps = Path("/proc/self/maps").read_text(encoding="utf-8")
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        self.descriptors = len(os.listdir("/proc/self/fd"))
        self.threads = len(os.listdir("/proc/self/task"))
        self.segments = maps.count("/memfd:gradientflow")
        self.resident_kib = int(status["VmRSS"].split()[0])
        WORLD.Barrier()

    def __str__(self) -> str:
        return str(vars(self))

    def check_no_more_than(self, before: Usage, *, slack_kib: int = 3000) -> None:
        assert self.descriptors <= before.descriptors, f"{self} after {before}"
        assert self.threads <= before.threads, f"{self} after {before}"
        assert self.segments <= before.segments, f"{self} after {before}"
        assert self.resident_kib <= before.resident_kib + slack_kib, f"{self} after {before}"


class Malloc(ctypes.Structure):
    """What malloc says of itself (mallinfo2 in malloc.h); `used` is what it has given out."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "free", "fast", "mapped", "mapped_bytes", "unused", "fast_bytes", "used", "kept", "top")
    )


def open_and_close(number: int) -> None:
    settings: list[dict[str, Any]] = [{}, {"node_size": 1}, {"staging_bytes": 4096}]
    with gf.init(config=gf.Config(**settings[number % 3])) as comm:
        still_works(comm)
        comm.allreduce_async(np.ones(3000)).wait()
        x = comm.empty(1000)
        pool = gf.GradientPool(comm, [100])
        pool.ready()
        pool.wait()
        del x, pool


@on_ranks(1, 3)
def check_many_communicators_leave_nothing(_: gf.Communicator) -> None:
    for number in range(12):
        open_and_close(number)
    before = Usage()
    for number in range(60):
        open_and_close(number)
    Usage().check_no_more_than(before)
    for _ in range(60):  # never closed, only forgotten
        comm = gf.init()
        reference = weakref.ref(comm)
        comm.allreduce_async(np.ones(3)).wait()
        del comm
    gc.collect()
    assert reference() is None
    Usage().check_no_more_than(before)


@on_ranks(1, 3)
def check_what_is_closed_holds_nothing(comm: gf.Communicator) -> None:
    """Though the program keeps it. The gradients of a pool stay as long as that."""
    kept: list[Any] = []

    def close_parts(number: int) -> None:
        for _ in range(number):
            part = comm.split(0)
            assert part is not None
            still_works(part)
            part.close()
            assert part.describe()["local_rank"] == part.local_rank
            kept.append(part)

    def close_pools(number: int) -> None:
        for kind in (gf.GradientPool, gf.SparseGradientPool, gf.TopKGradientPool):
            for _ in range(number):
                kept.append(kind(comm, [1000]))
                kept[-1].ready()
                kept[-1].wait()
                kept[-1].close()

    def close_apart(number: int) -> None:
        for _ in range(number):
            kept.append(gf.init(transport="tcp"))
            still_works(kept[-1])
            kept[-1].close()
            assert kept[-1].describe()["transport"] == "tcp"

    for close in (close_parts, close_apart):
        close(3)
        before = Usage()
        close(20)
        Usage().check_no_more_than(before)
    close_pools(5)
    assert Usage().descriptors <= before.descriptors


def check_communicators_between_nodes_leave_nothing(_: gf.Communicator) -> None:
    """What MPI keeps of a communicator is a few kilobytes, which only many of them show."""

    def make(number: int) -> None:
        for _ in range(number):
            gf.init(config=gf.Config(node_size=1)).close()

    make(50)
    before = Usage()
    make(250)
    Usage().check_no_more_than(before, slack_kib=400)


def check_many_pools_leave_nothing(comm: gf.Communicator) -> None:
    """By what malloc and Python have given out: what malloc keeps of memory that came back varies by kilobytes each."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        reason = "this C library does not tell how much malloc has given out"
        raise SkipTest(reason)
    libc.mallinfo2.restype = Malloc

    def make(kind: Callable[..., Any], number: int) -> tuple[int, int]:
        for _ in range(number):
            pool = kind(comm, [20_000])
            pool.ready()
            pool.wait()
            pool.close()
        gc.collect()
        return int(libc.mallinfo2().used), sys.getallocatedblocks()

    for kind in (gf.GradientPool, gf.SparseGradientPool, gf.TopKGradientPool):
        before = make(kind, 20)
        nbytes, objects = (now - then for now, then in zip(make(kind, 60), before, strict=True))
        assert nbytes < 60 * 1024, f"{nbytes} bytes of 60 of {kind.__name__}"
        assert objects < 60, f"{objects} objects of 60 of {kind.__name__}"


def check_much_memory_leaves_nothing(comm: gf.Communicator) -> None:
    for _ in range(3):
        comm.empty(1 << 18)[:] = 1
    before = Usage()
    for _ in range(150):
        x = comm.empty(1 << 18)  # 1 MiB
        x[:] = RANK + 1
        comm.allreduce(x)
        del x
    Usage().check_no_more_than(before)
    kept = [comm.empty(100) for _ in range(40)]
    during = Usage()
    assert during.descriptors <= before.descriptors, "file descriptors stay open for every array"
    assert during.segments == before.segments + 40
    del kept
    Usage().check_no_more_than(before)


def check_many_calls_leave_nothing(comm: gf.Communicator) -> None:
    x = np.ones(50)
    large = np.ones(300_000)

    def calls(number: int) -> None:
        for _ in range(number):
            comm.allreduce_async(x, "max")
            comm.allreduce(x, "max")
            comm.allgather(x)
            comm.reduce_scatter_async(large)
        comm.barrier()
        comm.barrier_async().wait()

    calls(20)
    before = Usage()
    calls(150)
    Usage().check_no_more_than(before, slack_kib=6000)


@on_ranks(1, 3)
def check_fork(comm: gf.Communicator) -> None:
    """A forked process has no part in a communicator, and its end is not the rank's end."""
    x = comm.empty(1000)
    x[:] = RANK + 1
    comm.allreduce_async(np.ones(3)).wait()  # so that there is a progress thread
    pools = [gf.GradientPool(comm, [100]), gf.SparseGradientPool(comm, [100])]
    weights = np.zeros(100, np.float32)
    optimizers = [gf.optimizers.SGD(pool, [weights], lr=0.1, momentum=0.9) for pool in pools]
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            assert comm.closed
            with raises(ClosedError, "MPI belongs to the process that this one was forked from"):
                gf.init()
            with raises(ClosedError, "forked"):
                comm.split(0)
            for optimizer in optimizers:
                with raises(ClosedError, "forked"):
                    optimizer.step()
            assert (weights == 0).all()
            for call in (
                comm.barrier,
                lambda: comm.allreduce(x),
                lambda: comm.allreduce_async(x),
                lambda: comm.empty(3),
            ):
                with raises(ClosedError, "forked"):
                    call()
            comm.close()
            assert (x == RANK + 1).all()
            status = 0
        os._exit(status)
    still_works(comm)
    assert os.waitpid(child, 0)[1] == 0
    still_works(comm)
    assert (comm.allreduce(x) == TOTAL).all()


# ---- the end of a program --------------------------------------------------------------------------------------------


class ClosesLast:
    """Closes its communicator when it is destroyed, which for a global is at the very end of the interpreter."""

    def __init__(self, comm: gf.Communicator) -> None:
        self.comm = comm
        self.array = comm.empty(1000)
        self.pool = gf.GradientPool(comm, [100])
        self.handle = comm.allreduce_async(self.array)

    def __del__(self) -> None:
        self.comm.close()
        self.array[:] = 3
        self.pool.views[0][:] = 3
        assert self.comm.closed
        x = np.ones(3)
        for call in (
            self.comm.barrier,
            self.pool.ready,
            self.pool.wait,
            lambda: self.comm.allreduce(x),
            lambda: self.comm.allreduce_async(x),
            lambda: self.comm.broadcast(x),
            lambda: gf.Communicator.allreduce.__wrapped__(self.comm, x),  # type: ignore[attr-defined]
        ):
            with raises(ClosedError, "closed"):
                call()
        with raises(ArgumentError, "root"):
            self.comm.broadcast(x, SIZE)
        say("destroyed", RANK)


held: list[Any] = []  # lives until the interpreter has gone


def end_without_closing() -> None:
    comm = gf.init()
    held.extend([comm, comm.empty(1000), gf.GradientPool(comm, [10]), comm.barrier_async(), gf.init(MPI.COMM_SELF)])
    still_works(comm)
    held.append(ClosesLast(gf.init()))


def end_with_what_is_under_way() -> None:
    """Rank 0 ends with calls in flight that the others never join."""
    comm = gf.init()
    still_works(comm)
    WORLD.Barrier()
    if RANK == 0:
        held.extend([comm.allreduce_async(np.ones(5000)), comm.barrier_async()])


def end_with_a_thread_in_a_call() -> None:
    """Rank 0 ends while a thread of it waits in a call that the others never join."""
    comm, other = gf.init(), gf.init()
    still_works(comm)

    def call() -> None:
        with contextlib.suppress(GradientFlowError):
            comm.allreduce(np.ones(5000))

    if RANK == 0:
        threading.Thread(target=call, daemon=True).start()
        time.sleep(0.1)
    elif RANK == 1:
        with raises(PeerError, "rank 0 has closed its communicator"):
            other.barrier()


def end_with_daemon_threads() -> None:
    """Threads are in all kinds of calls until the interpreter has gone, which does not let them come back then."""

    def for_ever(call: Callable[[], Any]) -> None:
        while True:
            with contextlib.suppress(GradientFlowError):
                call()

    comms = [gf.init() for _ in range(4)]
    pool, sparse = gf.GradientPool(comms[0], [100_000]), gf.SparseGradientPool(comms[1], [100_000])
    held.extend([comms, pool, sparse])
    x, y = np.ones(100_000), np.ones(3)
    calls = (
        pool.wait,
        sparse.wait,
        lambda: comms[2].allreduce(x),
        lambda: comms[3].allreduce_async(y).wait(),
    )
    for call in calls:
        threading.Thread(target=for_ever, args=(call,), daemon=True).start()
    time.sleep(0.3)


def end_by_sys_exit() -> None:
    with gf.init() as comm:
        still_works(comm)
        comm.barrier()
        say("over", RANK)
        sys.exit(7)


def end_after_finalize() -> None:
    """MPI goes first."""
    comm, other = gf.init(), gf.init(config=gf.Config(node_size=1))
    x = comm.empty(1000)
    handle = comm.allreduce_async(x)
    still_works(comm)
    still_works(other)
    handle.wait()
    MPI.Finalize()
    assert not comm.closed
    comm.close()
    comm.close()
    x[:] = 1
    held.append(other)


def calls_after_finalize() -> None:
    """Where MPI is needed and has ended, a call says so; it does not end the process."""
    comm, between = gf.init(config=gf.Config(node_size=0)), gf.init(config=gf.Config(node_size=1))
    part = between.split(0)
    still_works(comm)
    MPI.Finalize()
    assert (comm.allreduce(np.full(3, RANK + 1)) == TOTAL).all()  # needs no MPI
    calls: list[Callable[[], Any]] = [
        lambda: between.allreduce(np.ones(3)),
        lambda: between.allreduce(np.ones(100_000)),
        lambda: between.split(0),
        lambda: between.send(np.ones(3), 1 - RANK),
        lambda: comm.split(0),
        between.barrier,
        part.barrier,
        lambda: comm.allreduce(np.ones(3), algorithm="mpi"),
        lambda: between.allreduce_async(np.ones(3)).wait(),
        lambda: gf.init(),
    ]
    for call in calls:
        try:
            call()
        except GradientFlowError:
            continue
        raise AssertionError("nothing was raised")


ENDS: dict[str, Callable[[], None]] = {
    "without_closing": end_without_closing,
    "under_way": end_with_what_is_under_way,
    "thread": end_with_a_thread_in_a_call,
    "daemons": end_with_daemon_threads,
    "finalize": end_after_finalize,
    "after_finalize": calls_after_finalize,
}

mode = sys.argv[1]
if mode == "inside":
    run_checks()
elif mode == "sys_exit":
    end_by_sys_exit()
else:
    run(ENDS[mode])
if mode != "sys_exit":
    say("over", RANK)
