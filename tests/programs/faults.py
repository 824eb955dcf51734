"""One rank dies, leaves, is late or is interrupted; the others must be told who and go on or end, never hang."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from support import RANK, SIZE, WORLD, mine, nothing, raises, run, run_checks, say, scaled

import gradientflow as gf
from gradientflow.errors import ClosedError, CommunicationTimeoutError, PeerError

TOTAL = SIZE * (SIZE + 1) // 2
FAULTY = 1
SOON = scaled(5.0)  # seconds within which everybody must know
LARGE = 400_000  # elements that take several pieces


def works(comm: gf.Communicator) -> None:
    for count in (10, 5000):
        assert (comm.allreduce(mine(count)) == comm.mpi.allreduce(RANK + 1)).all()


@contextmanager
def soon() -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < SOON, f"it took {time.monotonic() - start:.1f} s"


def tell_memory() -> None:
    """Print which node memory this process maps, so that the test can look for those who still do."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    inodes = set(re.findall(r"\S+ \S+ \S+ \S+ (\d+) +/memfd:gradientflow", maps))
    say("memory", *sorted(inodes))


def every_call(comm: gf.Communicator) -> dict[str, Callable[[], Any]]:
    """Return calls of every kind, each to be made once, on communicators of their own."""
    array, large = mine(), mine(LARGE)
    node_memory = comm.empty(5000, "float64")
    pool = gf.GradientPool(comm, [3000, 5])
    top_k = gf.TopKGradientPool(comm, [3000, 5])
    return {
        "allreduce of 10 float64": lambda: comm.allreduce(array),
        f"allreduce of {LARGE} float64": lambda: comm.allreduce(large),
        "allreduce of 5000 float64": lambda: comm.allreduce(node_memory),
        "reduce of 10 float64": lambda: comm.reduce(array),
        f"broadcast of {LARGE} float64": lambda: comm.broadcast(large, root=FAULTY),
        "allgather of 10 float64": lambda: comm.allgather(array),
        "reduce_scatter of 10 float64": lambda: comm.reduce_scatter(array),
        "barrier": comm.barrier,
        "allreduce of 100 float64": lambda: comm.allreduce_async(mine(100)).wait(timeout=60),
        "a gradient pool": pool.wait,
        "averaging a gradient pool": top_k.wait,
        "allocate of 4000 bytes": lambda: comm.empty(1000),
    }


def later_calls(comm: gf.Communicator, call: Callable[[], Any]) -> list[Callable[[], Any]]:
    """Return what can no longer be called after `call` has failed; a pool fails alone."""
    pool = getattr(call, "__self__", None)
    if isinstance(pool, gf.GradientPool | gf.TopKGradientPool):
        return [pool.wait, pool.ready, lambda: pool.ready(0)]
    return [
        comm.barrier,
        lambda: comm.allreduce(mine()),
        lambda: comm.allreduce_async(mine()),
        lambda: comm.empty(3),
    ]


alive: list[Any] = []  # pools whose end the others would notice


def wait_and_be_told(comms: list[gf.Communicator], fragment: str) -> Any:
    """Make one call on each communicator; the faulty rank does not take part in any. Return what must stay alive."""
    calls = [every_call(comm) for comm in comms]  # needs all ranks
    WORLD.Barrier()
    if RANK == FAULTY:
        return calls
    for number, comm in enumerate(comms):
        name, call = list(calls[number].items())[number]
        its = fragment.replace("communicator", "gradient pool") if "gradient pool" in name else fragment
        with soon(), raises(PeerError, f"rank {FAULTY}", its, name, f"while rank {RANK} waited"):
            call()
        for later in later_calls(comm, call):
            start = time.monotonic()
            with raises(PeerError, "cannot be used any more", f"rank {FAULTY}", its):
                later()
            assert time.monotonic() - start < SOON
        assert not comm.closed
        comm.close()
        comm.close()
        assert comm.closed
        with raises(ClosedError):
            comm.barrier()
    return calls


def communicators() -> list[gf.Communicator]:
    with gf.init() as comm:
        number = len(every_call(comm))
    return [gf.init() for _ in range(number)]


# ---- death -----------------------------------------------------------------------------------------------------------


def kill_one_of_many_waits(how: str) -> None:
    """A rank dies while the others wait in all kinds of calls; a communicator without it goes on."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    others = WORLD.Split(int(RANK == FAULTY), RANK)
    comms = communicators()
    with gf.init(others) as survivors:
        array = survivors.empty(100, "float64")
        alive.append(wait_and_be_told(comms, f"(process {WORLD.bcast(os.getpid(), FAULTY)}) has died"))
        if RANK == FAULTY:
            os.kill(os.getpid(), signal.SIGKILL) if how == "kill" else os._exit(3)
        tell_memory()
        array[:] = RANK + 1
        works(survivors)
        assert (survivors.allreduce(array) == TOTAL - FAULTY - 1).all()


def kill_one_between_nodes() -> None:
    """The MPI library notices the death, in whatever the others are doing then, and the error names the rank."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    others = WORLD.Split(int(RANK == FAULTY), RANK)
    config = gf.Config(timeout=15, node_size=1)
    comms = [gf.init(config=config) for _ in range(4)]
    survivors = gf.init(others, config)
    works(comms[0])
    WORLD.Barrier()
    if RANK == FAULTY:
        os.kill(os.getpid(), signal.SIGKILL)
    calls: list[Callable[[], Any]] = [
        lambda: comms[0].allreduce(mine()),
        lambda: comms[1].allreduce(mine(LARGE)),
        lambda: comms[2].allreduce(mine(LARGE), algorithm="mpi"),
        lambda: comms[3].recv(mine(), FAULTY),
        lambda: gf.init(config=config),
    ]
    for call in calls:
        with soon(), raises(PeerError, f"rank {FAULTY} has died"):
            call()
    assert (survivors.allreduce(mine()) == TOTAL - FAULTY - 1).all()


def kill_one(count: int) -> None:
    """As users meet it: mpirun ends the other ranks soon after, but they have been told before that."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    comm = gf.init()
    works(comm)
    tell_memory()
    x = mine(count)
    WORLD.Barrier()
    if RANK == FAULTY:
        os.kill(os.getpid(), signal.SIGKILL)
    with soon(), raises(PeerError, f"rank {FAULTY} (process", "has died", f"allreduce of {count} float64"):
        comm.allreduce(x)


def kill_one_during_calls() -> None:
    """Nobody is at a known place: the ranks are in the middle of large calls when one dies."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    comm = gf.init()
    large = comm.empty(4 * LARGE) if SIZE % 2 else np.zeros(4 * LARGE, np.float32)
    pid = WORLD.bcast(os.getpid(), FAULTY)
    WORLD.Barrier()
    if RANK == FAULTY:
        threading.Timer(0.2, lambda: os.kill(pid, signal.SIGKILL)).start()
    start = time.monotonic()
    calls = 0
    try:
        while time.monotonic() - start < 20:
            comm.allreduce(large)
            calls += 1
    except PeerError as error:  # about the one that died, or about one that noticed it first
        assert re.search("rank [0-9]+ .*(has died|has given up)", str(error))  # noqa: PT017
    else:
        there = Path(f"/proc/{pid}/status").exists()
        message = f"nothing was noticed in {calls} calls; the process {'is still there' if there else 'has died'}"
        raise AssertionError(message)


# ---- leaving ---------------------------------------------------------------------------------------------------------


def check_leave_by_closing() -> None:
    comms = communicators()
    alive.append(wait_and_be_told(comms, "has closed its communicator"))
    if RANK == FAULTY:
        for comm in comms:
            comm.close()


def check_leave_by_raising() -> None:
    comm = gf.init()
    WORLD.Barrier()
    try:
        with soon(), comm:
            works(comm)
            if RANK == FAULTY:
                raise KeyError("something of the user's")
            comm.allreduce(mine())
    except KeyError:
        assert RANK == FAULTY
    except PeerError as error:
        assert f"rank {FAULTY} has closed its communicator" in str(error)  # noqa: PT017
    else:
        raise AssertionError
    assert comm.closed


def crash() -> None:
    """An exception that nobody catches: the others are told, and mpirun ends the job."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    comm = gf.init()
    works(comm)
    WORLD.Barrier()
    if RANK == FAULTY:
        raise RuntimeError("a mistake of the user's")
    with soon(), raises(PeerError, f"rank {FAULTY} has closed its communicator"):
        comm.allreduce(mine())
    say("survived", RANK)


# ---- being late ------------------------------------------------------------------------------------------------------


def late(node_size: int) -> None:
    """Some ranks come later than the others want to wait: those are named, and the late ones are told too."""
    missing = [rank for rank in (1, 3) if rank < SIZE]
    named = ("rank " if len(missing) == 1 else "ranks ") + ", ".join(map(str, missing))
    config = gf.Config(timeout=1, node_size=node_size)
    for call in ("allreduce", "async", "large"):
        comm = gf.init(config=config)
        arguments = mine(LARGE if call == "large" else 10)

        def make(comm: gf.Communicator = comm, call: str = call, x: np.ndarray = arguments) -> None:
            if call == "async":
                comm.allreduce_async(x).wait()
            else:
                comm.allreduce(x)

        if RANK not in missing:
            start = time.monotonic()
            with raises(CommunicationTimeoutError, "timed out after 1 s", f"rank {RANK}"):
                make()
            assert 0.9 < time.monotonic() - start < 1 + SOON
            expect_names(comm, named)
            with raises(CommunicationTimeoutError, "cannot be used any more"):
                comm.barrier()
        WORLD.Barrier()
        if RANK in missing:
            with soon():
                expect_an_error(make, comm)
        WORLD.Barrier()
        comm.close()


def check_late() -> None:
    late(0)


def check_late_between_nodes() -> None:
    late(1)


def expect_names(comm: gf.Communicator, named: str) -> None:
    try:
        comm.barrier()
    except CommunicationTimeoutError as error:
        assert str(error).endswith(f": no sign of {named}"), error  # noqa: PT017
    else:
        raise AssertionError("a broken communicator was used")


def expect_an_error(make: Callable[[], None], comm: gf.Communicator) -> None:
    """A small call that lacked nobody else may still come to its end; the next one may not.

    It tells the reason of the others. Between nodes it is also of the kind of theirs: who tells it may have waited for
    ranks of other nodes on behalf of all ranks of its own.
    """
    try:
        make()
        comm.barrier()
    except (PeerError, CommunicationTimeoutError) as error:
        assert isinstance(error, PeerError if comm.nodes == 1 else CommunicationTimeoutError)  # noqa: PT017
        assert re.search("rank [0-9]+ has given up", str(error))  # noqa: PT017
        assert "timed out after 1 s" in str(error)  # noqa: PT017
    else:
        raise AssertionError("a rank that came too late was not told")


def check_stopped() -> None:
    """A rank that is stopped, not dead, is missing too; woken up, it is told."""
    others = WORLD.Split(int(RANK == FAULTY), RANK)
    comm = gf.init(config=gf.Config(timeout=1))
    pid = WORLD.bcast(os.getpid(), FAULTY)
    WORLD.Barrier()
    if RANK == FAULTY:
        os.kill(pid, signal.SIGSTOP)  # until rank 0 wakes it
        with soon():
            expect_an_error(lambda: comm.allreduce(mine()), comm)
    else:
        with raises(CommunicationTimeoutError, "timed out after 1 s", f"no sign of rank {FAULTY}"):
            comm.allreduce(mine())
        others.Barrier()
        if RANK == 0:
            os.kill(pid, signal.SIGCONT)
    WORLD.Barrier()


def check_absent() -> None:
    """A rank does not come where a communicator is made: it is named, told when it comes, and can join the next try."""
    config = gf.Config(timeout=1)
    what = f"making a communicator of {SIZE} ranks"
    outside = WORLD.Dup()  # the late rank makes no other collective call on `mpi` before that of the others
    for mpi in (WORLD, WORLD.Dup()):
        for late_rank in range(min(SIZE, 2)):
            if late_rank == RANK:
                outside.Barrier()
                with soon(), raises(PeerError, "given up waiting before all ranks came", what):
                    gf.init(mpi, config)
            else:
                with soon(), raises(CommunicationTimeoutError, what, "after 1 s", f": no sign of rank {late_rank}"):
                    gf.init(mpi, config)
                outside.Barrier()
        with gf.init(mpi, config) as comm:
            works(comm)


def check_absent_from_a_split() -> None:
    """A rank does not come out of MPI's split: it is named, told when it does, and nobody has a part."""
    from native import mpi  # compiled, which the other checks go without

    whole, outside = mpi.Communicator(MPI._addressof(WORLD), 1.0), WORLD.Dup()
    if RANK == FAULTY:
        outside.Barrier()
        given_up = ", ".join(str(rank) for rank in range(SIZE) if rank != RANK)
        with raises(PeerError, f"ranks {given_up} have given up waiting", f"rank 1 fails in a split of {SIZE} ranks"):
            whole.split(0, 0)
    else:
        what = f"a split of {SIZE} ranks timed out after 1 s"
        with raises(CommunicationTimeoutError, what, f"no sign of rank {FAULTY}"):
            whole.split(0, 0)
        outside.Barrier()


def check_late_whatever_the_yields() -> None:
    """The timeout is counted while a rank yields its core, too, which takes long on a busy machine."""
    comm = gf.init(config=gf.Config(timeout=1, yields=2**31 - 1))
    if RANK != FAULTY:
        with raises(CommunicationTimeoutError, "timed out after 1 s", f"no sign of rank {FAULTY}"):
            comm.allreduce(mine())
    WORLD.Barrier()


def stop_while_making(node_size: int) -> None:
    """A rank is stopped at any place of the set-up: nobody waits for it for ever."""
    others = WORLD.Split(int(RANK == FAULTY), RANK)
    pid = WORLD.bcast(os.getpid(), FAULTY)
    WORLD.Barrier()
    if RANK == FAULTY:
        threading.Timer(0.2, lambda: os.kill(pid, signal.SIGSTOP)).start()  # until rank 0 wakes it
    start = time.monotonic()
    try:
        while time.monotonic() - start < 20:
            gf.init(config=gf.Config(timeout=1, node_size=node_size)).close()
    except (CommunicationTimeoutError, PeerError) as error:
        assert time.monotonic() - start < 1 + SOON or RANK == FAULTY, error  # noqa: PT017
    else:
        raise AssertionError("nothing was noticed")
    if RANK != FAULTY:
        others.Barrier()
        if RANK == 0:
            os.kill(pid, signal.SIGCONT)


def check_patient() -> None:
    """No timeout is too long to wait with."""
    for timeout in (1e6, 1e10, 1e15):
        for node_size in (0, 1):
            with gf.init(config=gf.Config(timeout=timeout, node_size=node_size)) as comm:
                if RANK == 0:
                    time.sleep(0.1)
                assert (comm.allreduce(mine()) == TOTAL).all()
                handle = comm.allreduce_async(mine())
                assert (handle.wait(timeout=timeout) == TOTAL).all()


# ---- closing and interrupting ----------------------------------------------------------------------------------------


def check_close_during_a_call() -> None:
    """close() in another thread lets a call end; leaving by an exception does not."""
    comm = gf.init()
    x = mine(5000)
    if RANK == 0:
        closer = threading.Thread(target=lambda: (WORLD.Recv(np.empty(1), 1), time.sleep(0.05), comm.close()))
        closer.start()
        WORLD.Send(np.empty(1), 1)
        comm.allreduce(x)
        closer.join(timeout=20)
        assert not closer.is_alive()
    else:
        if RANK == 1:
            WORLD.Recv(np.empty(1), 0)
            WORLD.Send(np.empty(1), 0)
        time.sleep(0.2)
        comm.allreduce(x)
        comm.close()
    assert (x == TOTAL).all()
    assert comm.closed
    with raises(ClosedError):
        comm.allreduce(x)


def leave_during_a_call(node_size: int) -> None:
    """Leaving `with` by an exception, in another thread, ends a call that waits for ranks that do not come."""
    comm = gf.init(config=gf.Config(timeout=scaled(12), node_size=node_size))
    WORLD.Barrier()
    if RANK == 0:
        closer = threading.Thread(
            target=lambda: (time.sleep(0.1), comm.__exit__(KeyError, KeyError(), None)), daemon=True
        )
        closer.start()
        with soon(), raises(ClosedError, "closed during allreduce of 5000 float64"):
            comm.allreduce(mine(5000))
        closer.join(timeout=SOON)
        assert not closer.is_alive(), "the call has ended, but close() has not"
        assert comm.closed
    WORLD.Barrier()
    comm.close()


def check_leave_during_a_call() -> None:
    leave_during_a_call(0)


def check_leave_during_a_call_between_nodes() -> None:
    leave_during_a_call(1)


def leave_what_is_under_way(node_size: int) -> None:
    """An exception inside `with` does not wait for asynchronous calls that the others never join."""
    comm = gf.init(config=gf.Config(timeout=scaled(12), node_size=node_size))
    WORLD.Barrier()
    if RANK == 0:
        with soon(), contextlib.suppress(KeyError), comm:
            handles = [comm.allreduce_async(mine()), comm.allreduce_async(mine(5000)), comm.barrier_async()]
            time.sleep(0.1)  # so that the first is under way
            raise KeyError("something of the user's")
        assert comm.closed
        for handle in handles:
            with soon(), raises(ClosedError):
                handle.wait()
    WORLD.Barrier()
    comm.close()


def check_leave_what_is_under_way() -> None:
    leave_what_is_under_way(0)


def check_leave_what_is_under_way_between_nodes() -> None:
    leave_what_is_under_way(1)


def wait_for_ever() -> None:
    """Rank 1 never comes: for tests that end the job from outside."""
    comm = gf.init()
    works(comm)
    WORLD.Barrier()
    say("ready")
    if RANK == FAULTY:
        while True:
            time.sleep(1)
    comm.allreduce(mine())


def check_interrupt() -> None:
    """Ctrl-C in a rank that computes; the others wait for it."""
    comm = gf.init()
    WORLD.Barrier()
    try:
        with comm:
            works(comm)
            if RANK == FAULTY:
                signal.raise_signal(signal.SIGINT)
            with soon(), raises(PeerError, f"rank {FAULTY} has closed"):
                comm.allreduce(mine())
    except KeyboardInterrupt:
        assert RANK == FAULTY


def interrupt_and_tell_others() -> None:
    time.sleep(0.5)  # until the main thread waits
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.1)
    for rank in set(range(SIZE)) - {RANK}:
        WORLD.send(None, rank)


def check_interrupt_in_a_wait() -> None:
    """Ctrl-C in a rank that waits is an exception once the call has ended, which takes nothing from the call."""
    with gf.init() as comm:
        x, prepared = mine(), mine()
        request = comm.allreduce_init(prepared)
        pool = gf.GradientPool(comm, [10])
        calls: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
            (lambda: None, lambda: comm.allreduce(x)),
            (request.start, request.wait),
            (pool.ready, pool.wait),
        ]
        pool.views[0][:] = RANK + 1
        for start, wait in calls:
            if RANK == FAULTY:
                start()
                thread = threading.Thread(target=interrupt_and_tell_others)
                thread.start()
                with raises(KeyboardInterrupt):
                    wait()
                thread.join()
            else:
                WORLD.recv(source=FAULTY)
                start()
                wait()
        assert (x == TOTAL).all()
        assert (prepared == TOTAL).all()
        assert (pool.views[0] == np.float32(TOTAL / SIZE)).all()
        for start, wait in calls:  # and everything goes on
            start()
            wait()


def leave_by_ending() -> None:
    """The program of a rank is at its end, and nothing was closed."""
    kept.extend(communicators())
    alive.append(wait_and_be_told(kept, "has closed its communicator"))


kept: list[gf.Communicator] = []


MODES: dict[str, Callable[[], None]] = {
    "kill": lambda: kill_one_of_many_waits("kill"),
    "die": lambda: kill_one_of_many_waits("exit"),
    "kill_between_nodes": kill_one_between_nodes,
    "kill_small": lambda: kill_one(10),
    "kill_large": lambda: kill_one(LARGE),
    "kill_during_calls": kill_one_during_calls,
    "end": leave_by_ending,
    # No checks, since MPI_COMM_WORLD may be out of step on the ranks afterwards.
    "stopped_while_making": lambda: stop_while_making(0),
    "stopped_while_making_between_nodes": lambda: stop_while_making(1),
    "wait_for_ever": wait_for_ever,
}
DEADLY = ("kill", "die", "kill_during_calls", "kill_between_nodes")


def main() -> None:
    mode = sys.argv[1]
    others = WORLD.Split(int(RANK == FAULTY), RANK) if mode in DEADLY else None
    try:
        MODES[mode]()
    except Exception:
        say(f"rank {RANK} failed in {mode}")
        raise
    say("survived", RANK)
    if others is not None:
        others.Barrier()  # the launcher may end the job when one leaves like this
        os._exit(0)  # ending MPI without one of its ranks may hang


if not sys.argv[1:]:
    run_checks(around=nothing)
elif sys.argv[1] == "crash":
    crash()  # without anything around it
else:
    run(main)
