"""Asynchronous calls, several communicators, several threads: order, results, errors, and who keeps what alive."""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
import time
import weakref
from collections.abc import Callable

import numpy as np
from marks import on_ranks
from mpi4py import MPI
from support import RANK, SIZE, WORLD, in_threads, mine, raises, run_checks, scaled

import gradientflow as gf
from gradientflow.errors import ArgumentError, ArgumentTypeError, ClosedError, CommunicationTimeoutError, MismatchError

TOTAL = SIZE * (SIZE + 1) // 2
SIZES = [1, 100, 5000, 40_000]


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + scaled(20)
    while not condition():
        assert time.monotonic() < deadline, f"this has not happened: {what}"
        time.sleep(0.001)


@on_ranks(1, 2, 3)
def check_results(comm: gf.Communicator) -> None:
    x = mine(10)
    handle = comm.allreduce_async(x)
    assert handle.wait() is x
    assert handle.done is True
    assert handle.wait() is x  # again
    assert handle.wait(timeout=0) is x
    assert handle.wait(-1) is x
    assert (x == TOTAL).all()
    out = np.empty(10)
    assert comm.allreduce_async(mine(10), "mean", out=out).wait() is out
    assert (out == TOTAL / SIZE).all()
    assert comm.broadcast_async(x, root=SIZE - 1).wait(timeout=20) is x
    x, out = mine(10), np.zeros(10)
    reduced = comm.reduce_async(x, root=SIZE - 1, out=out).wait()
    assert reduced is (out if RANK == SIZE - 1 else x)
    assert (reduced == (TOTAL if RANK == SIZE - 1 else RANK + 1)).all()
    x = mine(10)
    assert comm.reduce_async(x).wait() is x
    gathered = comm.allgather_async(mine(3)).wait()
    assert gathered.tolist() == [[float(rank + 1)] * 3 for rank in range(SIZE)]
    out = np.empty((SIZE, 3))
    assert comm.allgather_async(mine(3), out=out).wait() is out
    gathered = comm.gather_async(mine(3), SIZE - 1).wait()
    assert gathered is None if RANK < SIZE - 1 else gathered.tolist() == [[rank + 1] * 3 for rank in range(SIZE)]
    assert comm.alltoall_async(np.arange(SIZE) + 10 * RANK).wait().tolist() == [
        10 * rank + RANK for rank in range(SIZE)
    ]
    out = np.empty(2)
    assert comm.scatter_async(np.repeat(np.arange(SIZE), 2) * 1.0, out=out).wait() is out
    assert out.tolist() == [RANK] * 2
    assert comm.allgatherv_async(mine(RANK)).wait().tolist() == [rank + 1 for rank in range(SIZE) for _ in range(rank)]
    block = comm.reduce_scatter_async(mine(SIZE)).wait()
    assert block.tolist() == [TOTAL]
    assert comm.barrier_async().wait() is None


def check_it_goes_on_alone(comm: gf.Communicator) -> None:
    """A call ends without anybody waiting for it."""
    for count in SIZES:
        x = mine(count)
        handle = comm.allreduce_async(x)
        until(lambda h=handle: h.done, "the call is done")
        assert (x == TOTAL).all()


def check_wait_with_timeout(comm: gf.Communicator) -> None:
    last = RANK == SIZE - 1
    for count in SIZES:
        x = mine(count)
        if not last:
            handle = comm.allreduce_async(x)
            assert not handle.done
            for timeout in (0, 0.01, -5):
                with raises(CommunicationTimeoutError, "it goes on"):
                    handle.wait(timeout=timeout)
            assert not handle.done
        WORLD.Barrier()
        if last:
            handle = comm.allreduce_async(x)
        assert handle.wait(timeout=20) is x
        assert (x == TOTAL).all()


def check_many_in_flight(comm: gf.Communicator) -> None:
    node_memory = comm.empty(SIZES[-1], "float64")
    node_memory[:] = RANK + 1
    tensors, handles = [], []
    for number in range(120):
        x = node_memory if number == 60 else mine(SIZES[number % len(SIZES)], number)
        tensors.append(x)
        handles.append(comm.allreduce_async(x, "sum" if number % 2 else "max"))
    for number in (119, 7, 60, *range(120)):
        handles[number].wait()
        assert all(handle.done for handle in handles[: number + 1]), "a later call was done before an earlier one"
        factor = 1 if number == 60 else number
        assert (tensors[number] == factor * (TOTAL if number % 2 else SIZE)).all()


def check_blocking_calls_in_between(comm: gf.Communicator) -> None:
    x = mine(100)
    handles = []
    for number in range(30):
        handles.append(comm.allreduce_async(x, "max"))  # always on the same tensor: the order matters
        if number % 3 == 0:
            assert (comm.allreduce(mine(7)) == TOTAL).all()
            assert all(handle.done for handle in handles), "a blocking call went before an asynchronous one"
        if number % 5 == 0:
            comm.barrier()
            x[:] = number + RANK
    comm.barrier()
    assert all(handle.done for handle in handles)
    assert (x == 25 + SIZE - 1).all()


@on_ranks(1, 3)
def check_dropped_handles(comm: gf.Communicator) -> None:
    """What is under way lives until it is done, whether the handle is kept or not."""
    survivors = []
    if RANK > 0:
        WORLD.Barrier()
    for number in range(20):
        x = mine(SIZES[number % len(SIZES)])
        survivors.append(weakref.ref(x))
        comm.allreduce_async(x)
        comm.allgather_async(x)
        del x
    gc.collect()
    junk = [np.full(count, -1.0) for count in SIZES * 5]
    if RANK == 0:
        if SIZE > 1:
            assert all(ref() is not None for ref in survivors)
        WORLD.Barrier()
    x = mine(50)
    comm.allreduce(x)
    assert (x == TOTAL).all()
    assert all((each == -1).all() for each in junk)
    comm.barrier_async().wait()
    gc.collect()
    assert not any(ref() is not None for ref in survivors), "tensors are kept after their calls are done"


@on_ranks(1, 3)
def check_errors(comm: gf.Communicator) -> None:
    """Wrong arguments are refused at once; what the other ranks have to do with is told by wait."""
    with raises(ArgumentTypeError):
        comm.allreduce_async([1, 2])
    with raises(ArgumentError):
        comm.broadcast_async(mine(3), root=SIZE)
    before, wrong, after = (mine(10), mine(10 + RANK), mine(10))
    handles = [comm.allreduce_async(x) for x in (before, wrong, after)]
    handles[2].wait()
    assert all(handle.done for handle in handles)
    assert (before == TOTAL).all()
    assert (after == TOTAL).all()
    if SIZE > 1:
        for _ in range(2):  # as often as it is asked
            with raises(MismatchError, "rank 0: allreduce of 10", "rank 1: allreduce of 11"):
                handles[1].wait()
            with raises(MismatchError):
                handles[1].wait(timeout=5)


def check_closing_waits_for_what_is_under_way(_: gf.Communicator) -> None:
    with gf.init() as comm:
        tensors = [mine(count) for count in SIZES * 5]
        handles = [comm.allreduce_async(x) for x in tensors]
    assert all(handle.done for handle in handles)
    for handle, x in zip(handles, tensors, strict=True):
        assert handle.wait() is x
        assert (x == TOTAL).all()
    for call in (comm.allreduce_async, comm.allreduce):
        with raises(ClosedError, "the communicator is closed"):
            call(mine(3))


# ---- several communicators -------------------------------------------------------------------------------------------


def subgroups() -> list[MPI.Intracomm]:
    """Return the MPI communicators of this rank: the world, turned round, in halves, without rank 0, and alone."""
    later = WORLD.group.Excl([0])
    comms = [WORLD, WORLD.Split(0, SIZE - RANK), WORLD.Split(RANK % 2, RANK)]
    if RANK > 0:
        comms.append(WORLD.Create_group(later))
    return [*comms, MPI.COMM_SELF]


def check_several_communicators(outer: gf.Communicator) -> None:
    with contextlib.ExitStack() as stack:
        config = gf.Config(**outer.describe()["settings"])
        comms = [stack.enter_context(gf.init(mpi, config)) for mpi in subgroups()]
        for comm in comms:
            assert (comm.rank, comm.size) == (comm.mpi.rank, comm.mpi.size)
            members = comm.mpi.allgather(RANK)
            assert comm.allgather(np.array(RANK)).tolist() == members
            x = np.array(RANK + 1)
            comm.broadcast(x, root=comm.size - 1)
            assert x == members[-1] + 1
        totals = [sum(rank + 1 for rank in comm.mpi.allgather(RANK)) for comm in comms]
        for _ in range(5):
            tensors = [[mine(count) for count in SIZES] for _ in comms]
            handles = [[comm.allreduce_async(x) for x in xs] for comm, xs in zip(comms, tensors, strict=True)]
            for number in np.random.default_rng(RANK).permutation(
                len(comms)
            ):  # every rank waits in an order of its own
                for handle, x in zip(handles[number], tensors[number], strict=True):
                    assert handle.wait(timeout=30) is x
                    assert (x == totals[number]).all()


# ---- several threads -------------------------------------------------------------------------------------------------


def check_threads_with_communicators_of_their_own(_: gf.Communicator) -> None:
    with contextlib.ExitStack() as stack:
        comms = [stack.enter_context(gf.init()) for _ in range(3)]

        def work(index: int) -> None:
            comm = comms[index]
            for number in range(40):
                x = mine(SIZES[(number + index) % 3], index + 1)
                comm.allreduce(x) if number % 2 else comm.allreduce_async(x).wait()
                assert (x == (index + 1) * TOTAL).all()
            assert (comm.empty(10, "float32") == 0).all()

        in_threads(work, range(3))


def check_threads_on_one_communicator(comm: gf.Communicator) -> None:
    turn = threading.Condition()
    next_turn = [0]
    threads, rounds = 4, 15

    def in_turn(index: int) -> None:
        for number in range(rounds):
            x = mine(SIZES[number % 3] + index, index + 1)
            with turn:
                turn.wait_for(lambda n=number: next_turn[0] == n * threads + index)
                handle = comm.allreduce_async(x)  # the same order on all ranks
                if index == 2:
                    handle.wait()
                next_turn[0] += 1
                turn.notify_all()
            handle.wait()
            assert (x == (index + 1) * TOTAL).all()

    def in_any_order(_: int) -> None:
        for number in range(25):  # calls that cannot be told apart need no order
            x = mine(300)
            comm.allreduce(x) if number % 2 else comm.allreduce_async(x).wait()
            assert (x == TOTAL).all()

    in_threads(in_turn, range(threads))
    in_threads(in_any_order, range(threads))


@on_ranks(1, 3)
def check_the_interpreter_runs_on(comm: gf.Communicator) -> None:
    """A call that waits, small or large, leaves the interpreter to other threads."""

    def prepared(x: np.ndarray) -> None:
        request = comm.allreduce_init(x)
        request.start()
        request.wait()

    def meeting(x: np.ndarray) -> None:
        comm.barrier()
        comm.allreduce(x)

    ways = (lambda x: comm.allreduce(x), lambda x: comm.allreduce_async(x).wait(), prepared, meeting)
    for wait, elements in itertools.product(ways, (10, 1000)):
        x = mine(elements)
        counted = [0]
        done = threading.Event()

        def count(counted: list[int] = counted, done: threading.Event = done) -> None:
            while not done.is_set():
                counted[0] += 1
                time.sleep(0)
                if counted[0] == 100 and RANK == 0:
                    WORLD.Barrier()  # from here on rank 0 is not late any more

        thread = threading.Thread(target=count, daemon=True)
        if RANK == 0:
            thread.start()
            wait(x) if SIZE > 1 else until(lambda c=counted: c[0] > 100, "the other thread counts")
            assert counted[0] >= 100
        else:
            WORLD.Barrier()
            wait(x)
        done.set()
        if RANK == 0:
            thread.join()
        assert SIZE == 1 or (x == TOTAL).all()


def check_a_pool_in_another_thread(comm: gf.Communicator) -> None:
    pool = gf.GradientPool(comm, [1000, (20, 30), 7])

    def work(index: int) -> None:
        pool.views[index][...] = (index + 1) * (RANK + 1)
        pool.ready(index)

    for _ in range(5):
        in_threads(work, range(3))
        assert pool.ready_count == 3
        in_threads(pool.wait, [None])
        for index, view in enumerate(pool.views):
            assert np.array_equal(view, np.full(view.shape, (index + 1) * TOTAL / SIZE, np.float32))


@on_ranks(1, 3)
def check_no_elements(comm: gf.Communicator) -> None:
    """Tensors without elements, between others, in every call."""
    none = np.empty(0)
    for count in (0, 20_000, 0):
        x = mine(count)
        handles = [
            comm.allreduce_async(none.copy()),
            comm.allreduce_async(none.copy(), "max", out=none.copy()),
            comm.broadcast_async(none.copy(), SIZE - 1),
            comm.allreduce_async(x),
            comm.reduce_async(none.copy()),
            comm.allgather_async(none),
            comm.reduce_scatter_async(none),
            comm.alltoall_async(none),
            comm.gather_async(none),
            comm.scatter_async(none, out=none.copy()),
            comm.allgatherv_async(none, [0] * SIZE),
        ]
        for handle in handles:
            handle.wait(timeout=20)
        assert (x == TOTAL).all()
    assert comm.allgatherv(mine(RANK)).size == SIZE * (SIZE - 1) // 2  # rank 0 puts nothing in


@on_ranks(1, 2, 3)
def check_every_call_at_once(comm: gf.Communicator) -> None:
    """All kinds of calls are in flight together, and on two communicators."""
    with gf.init() as other:
        waiting = []
        for turn, count in enumerate([3, 5000, 40_000] * 3):
            for each in (comm, other):
                blocks = np.repeat(np.arange(SIZE) + 10.0 * RANK, count)
                counts = [count * rank for rank in range(SIZE)]
                ones = np.ones(count)
                root = turn % SIZE
                mean = TOTAL / SIZE
                waiting += [
                    (each.alltoall_async(blocks), np.repeat(10.0 * np.arange(SIZE) + RANK, count)),
                    (each.allreduce_async(mine(count), "mean"), ones * mean),
                    (each.broadcast_async(mine(count), root), ones * (root + 1)),
                    (each.scatter_async(blocks, root, out=ones.copy()), ones * (10 * root + RANK)),
                    (each.allgatherv_async(mine(counts[RANK]), counts), np.repeat(np.arange(SIZE) + 1.0, counts)),
                    (each.gather_async(mine(count), root), np.outer(np.arange(SIZE) + 1.0, ones)),
                    (each.allreduce_async(mine(count).astype(np.float32), wire="float16"), ones * TOTAL),
                ]
        for handle, wanted in reversed(waiting):
            result = handle.wait(timeout=40)
            assert result is None or np.array_equal(result, wanted)


def check_handles_are_not_made_by_hand(comm: gf.Communicator) -> None:
    for wrong in ((None, None, None, ()), (comm._native, comm._native, None, ())):
        with raises(ArgumentTypeError, "a Handle is what an asynchronous call returns"):
            gf.Handle(*wrong)
    assert (comm.allreduce_async(np.ones(3)).wait() == SIZE).all()


# GRADIENTFLOW_NODE_SIZE, which the communicators that the checks make follow as well, says how many ranks are a node.
run_checks(
    [
        {},
        {"inline_bytes": 0, "staging_bytes": 8192, "direct_read_bytes": 100_000},
        {"inline_bytes": 0, "segment_bytes": 1024, "window": 2, "stretch_bytes": 4096},
    ],
)
