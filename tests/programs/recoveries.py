"""comm.recover() where nobody dies: what ends with the old communicator, and what ranks may not differ about."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from support import RANK, SIZE, WORLD, communicator, over, raises, run_checks

import gradientflow as gf
from gradientflow.errors import (
    ArgumentError,
    ArgumentTypeError,
    ClosedError,
    CommunicationTimeoutError,
    GradientFlowError,
    MismatchError,
    PeerError,
)

EVERYBODY = tuple(range(SIZE))


def works(comm: gf.Communicator) -> None:
    for count in (3, 30_000):
        assert (comm.allreduce(np.full(count, comm.rank + 1.0)) == comm.size * (comm.size + 1) // 2).all()
    WORLD.Barrier()  # recover() ends what others have under way


@contextmanager
def fails() -> Iterator[None]:
    """Expect some error: which one depends on who is first."""
    try:
        yield
    except (ClosedError, CommunicationTimeoutError, PeerError):
        return
    raise AssertionError("no error")


def check_all_come_along(comm: gf.Communicator) -> None:
    array = comm.empty(1000)
    array[:] = RANK
    for _ in range(3):
        new = comm.recover()
        assert comm.closed
        assert (new.rank, new.size, new.recovered_from, new.lost) == (RANK, SIZE, EVERYBODY, ())
        assert new.describe()["nodes"] == comm.describe()["nodes"]
        works(new)
        assert (array == RANK).all()
        with raises(ClosedError):
            comm.allreduce(np.ones(3))
        with raises(ClosedError):
            comm.recover()
        comm = new
    comm.close()


def check_first_has_no_origin(comm: gf.Communicator) -> None:
    assert comm.recovered_from is None
    assert comm.lost == ()


def check_settings_stay(_: gf.Communicator) -> None:
    with gf.init(config=gf.Config(timeout=77, transport="tcp")).recover() as comm:
        assert comm.describe()["settings"]["timeout"] == "77"


def check_parts_stay(comm: gf.Communicator) -> None:
    part = comm.split(RANK % 2)
    assert part is not None
    with comm.recover() as whole, part:
        works(part)
        with part.recover() as again:
            works(again)
            works(whole)


def check_calls_under_way_end(comm: gf.Communicator) -> None:
    seen: list[BaseException] = []

    def wait() -> None:
        try:
            comm.barrier()
        except GradientFlowError as error:
            seen.append(error)

    # Rank 0 makes no call: those of the others do not end by themselves.
    handles = [comm.allreduce_async(np.ones(1000)) for _ in range(3)] if RANK != 0 else []
    waiting = threading.Thread(target=wait)
    if RANK != 0:
        waiting.start()
    time.sleep(0.05)
    with comm.recover() as new:
        for handle in handles:
            with fails():
                handle.wait()
        if RANK != 0:
            waiting.join()
            assert isinstance(seen[0], (ClosedError, PeerError))
        works(new)


def check_the_others_hear_of_it(comm: gf.Communicator) -> None:
    if RANK == 0:
        new = comm.recover()
    else:
        with raises(PeerError, "recovers the communicator"):
            comm.allreduce(np.ones(1000))
        new = comm.recover()
    with new:
        works(new)


def check_after_a_timeout(_: gf.Communicator) -> None:
    with gf.init(config=gf.Config(timeout=1, transport="tcp")) as comm:
        if RANK == 0:
            time.sleep(1.5)
            new = comm.recover()
        else:
            with fails():
                comm.allreduce(np.ones(1000))
            new = comm.recover()
        with new:
            works(new)


def check_one_thread_of_two_gets_it(comm: gf.Communicator) -> None:
    found: list[gf.Communicator] = []
    errors: list[BaseException] = []

    def recover() -> None:
        try:
            found.append(comm.recover())
        except ClosedError as error:
            errors.append(error)

    threads = [threading.Thread(target=recover) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert (len(found), len(errors)) == (1, 1)
    with found[0] as new:
        works(new)


def check_several_communicators(first: gf.Communicator) -> None:
    with gf.init(transport="tcp") as second, second.recover() as new_second, first.recover() as new_first:
        works(new_first)
        works(new_second)


def check_min_ranks(comm: gf.Communicator) -> None:
    with comm.recover(min_ranks=SIZE) as new:
        works(new)
        with raises(PeerError, f"only {SIZE} ranks of {SIZE} can go on, fewer than min_ranks={SIZE + 1}"):
            new.recover(SIZE + 1)
        assert new.closed


def check_min_ranks_that_differ(comm: gf.Communicator) -> None:
    with raises(MismatchError, "min_ranks of recover() differs between ranks: 1 on rank 0, None on rank 1"):
        comm.recover(min_ranks=None if RANK == 1 else 1)
    assert comm.closed


def check_arguments(comm: gf.Communicator) -> None:
    with raises(ArgumentError, "min_ranks is a number of 1 or more, not 0"):
        comm.recover(0)
    with raises(ArgumentTypeError, "min_ranks is a whole number, not '2'"):
        comm.recover("2")  # type: ignore[arg-type]
    works(comm)


def check_over_mpi(_: gf.Communicator) -> None:
    with over("mpi"), communicator({}) as (comm,):
        with raises(ArgumentError, "a communicator over MPI cannot be recovered", "GRADIENTFLOW_TRANSPORT=tcp"):
            comm.recover()
        works(comm)


run_checks([{"transport": "tcp"}, {"transport": "tcp", "node_size": 1}])
