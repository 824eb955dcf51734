"""Communicators of parts of the ranks: who is in which, together with the whole, nested, closed in any order."""

from __future__ import annotations

import gc

import numpy as np
from marks import on_ranks
from mpi4py import MPI
from support import RANK, SIZE, WORLD, in_threads, raises, run_checks

import gradientflow as gf
from gradientflow.errors import ArgumentError, ClosedError, MismatchError, PeerError

COUNTS = (3, 5000, 60_000)


def works(comm: gf.Communicator, members: list[int]) -> None:
    """Check that the communicator has these ranks, in this order, and that calls on it are among them."""
    assert comm.size == len(members)
    assert members[comm.rank] == RANK
    assert comm.allgather(np.array(RANK)).tolist() == members
    for count in COUNTS:
        assert (comm.allreduce(np.full(count, RANK + 1.0)) == sum(rank + 1 for rank in members)).all()
    x = np.full(10, RANK)
    assert (comm.broadcast(x, comm.size - 1) == members[-1]).all()


def alike(color: int, modulus: int = 2) -> list[int]:
    return [rank for rank in range(SIZE) if rank % modulus == color]


@on_ranks(1, 2, 3)
def check_colors(comm: gf.Communicator) -> None:
    for modulus in (1, 2, 3, SIZE):
        color = RANK % modulus
        with comm.split(color) as part:
            works(part, alike(color, modulus))
            assert part.describe()["settings"] == comm.describe()["settings"]
        assert part.closed
        works(comm, list(range(SIZE)))
    with comm.split(2**31 - 1) as part:  # the largest color that MPI takes
        works(part, list(range(SIZE)))


def check_keys(comm: gf.Communicator) -> None:
    with comm.split(0, SIZE - RANK) as part:  # turned round
        works(part, list(range(SIZE))[::-1])
        with part.split(0, 7) as again:  # equal keys: the order stays
            works(again, list(range(SIZE))[::-1])
    with comm.split(RANK % 2, -RANK) as part:
        works(part, alike(RANK % 2)[::-1])


@on_ranks(1, 3)
def check_ranks_that_get_none(comm: gf.Communicator) -> None:
    part = comm.split(None if RANK == 0 else 5)
    if RANK == 0:
        assert part is None
    else:
        works(part, list(range(1, SIZE)))
        part.close()
    assert comm.split(None) is None
    works(comm, list(range(SIZE)))


def check_wrong_colors(comm: gf.Communicator) -> None:
    """They are noticed before anything is sent."""
    for color in (-1, -(2**31)):
        with raises(ArgumentError, f"a color is a number of 0 or more, or None, not {color}"):
            comm.split(color)
    works(comm, list(range(SIZE)))


@on_ranks(1, 2, 3)
def check_nested(comm: gf.Communicator) -> None:
    """Down to one rank each."""
    parts = [comm]
    members = list(range(SIZE))
    while len(members) > 1:
        middle = len(members) // 2
        color = int(parts[-1].rank >= middle)
        parts.append(parts[-1].split(color))
        members = members[middle:] if color else members[:middle]
        works(parts[-1], members)
    for part in parts[1:]:  # the outer ones first
        part.close()
    works(comm, list(range(SIZE)))


def check_a_part_while_the_whole_is_in_use(comm: gf.Communicator) -> None:
    """Asynchronous calls of both are under way at once, and the whole is split between its own calls."""
    x, y = np.full(40_000, RANK + 1.0), np.full(40_000, RANK + 1.0)
    before = comm.allreduce_async(x)
    part = comm.split(RANK % 2)
    members = alike(RANK % 2)
    handles = []
    for number in range(20):
        handles.append((part, part.allreduce_async(np.full(3 + 1000 * number, RANK + 1.0))))
        handles.append((comm, comm.allreduce_async(np.full(5 + 1000 * number, RANK + 1.0))))
    after = comm.allreduce_async(y, "max")
    total = {part: sum(rank + 1 for rank in members), comm: SIZE * (SIZE + 1) // 2}
    for owner, handle in reversed(handles):
        assert (handle.wait(timeout=30) == total[owner]).all()
    assert (before.wait() == total[comm]).all()
    assert (after.wait() == SIZE).all()
    part.close()


def check_threads(comm: gf.Communicator) -> None:
    """Each of several parts is used by a thread of its own."""
    parts = [comm.split(0), comm.split(RANK % 2), comm.split(0, -RANK)]
    members = [list(range(SIZE)), alike(RANK % 2), list(range(SIZE))[::-1]]

    def work(index: int) -> None:
        for _ in range(10):
            works(parts[index], members[index])

    in_threads(work, range(3))
    for part in parts:
        part.close()


def check_the_whole_ends_first(_: gf.Communicator) -> None:
    comm = gf.init(config=gf.Config(node_size=2))
    part = comm.split(RANK % 2)
    array = part.empty(1000)
    comm.close()
    with raises(ClosedError):
        comm.split(0)
    works(part, alike(RANK % 2))
    array[:] = RANK
    part.close()
    del part, comm
    gc.collect()
    assert (array == RANK).all()


def check_any_order_of_closing(comm: gf.Communicator) -> None:
    """Every rank closes, or forgets, its parts in an order of its own."""
    for _ in range(5):
        parts = [comm.split(0), comm.split(RANK % 2), comm.split(0), comm.split(RANK // 2)]
        for part in parts:
            part.allreduce(np.ones(100))
        comm.barrier()
        for index in np.random.default_rng(RANK).permutation(len(parts)):
            if (index + RANK) % 3:
                parts[index].close()
                parts[index].close()
        del parts, part
        gc.collect()
    works(comm, list(range(SIZE)))


def check_one_leaves_its_part(comm: gf.Communicator) -> None:
    """The others in the part are told; the whole is not touched by it."""
    part = comm.split(0)
    if RANK == 0:
        part.close()
    elif RANK == 1:
        with raises(PeerError, "rank 0 has closed its communicator"):
            part.barrier()
    works(comm, list(range(SIZE)))
    part.close()


def check_other_calls_than_split(comm: gf.Communicator) -> None:
    """One rank splits while the others reduce: all are told, no communicator is made, and all can go on."""
    if SIZE == 1:
        return
    for count in (3, 60_000):
        with raises(MismatchError, "split", f"allreduce of {count} float64", "rank 0"):
            comm.split(0) if RANK == 0 else comm.allreduce(np.ones(count))
        with raises(MismatchError, "split", f"allreduce of {count} float64", f"rank {SIZE - 1}"):
            comm.allreduce(np.ones(count)) if RANK == SIZE - 1 else comm.split(None)
    works(comm, list(range(SIZE)))


@on_ranks(1, 3)
def check_the_communicator_of_mpi(comm: gf.Communicator) -> None:
    """A part has one of its own, which is freed with it."""
    part = comm.split(RANK % 2)
    assert part.mpi.allgather(RANK) == alike(RANK % 2)
    part.close()
    assert part.mpi == MPI.COMM_NULL
    assert WORLD.allreduce(1) == SIZE


run_checks([{}, {"node_size": 1}, {"node_size": 2}], by_mpi=[check_the_communicator_of_mpi])
