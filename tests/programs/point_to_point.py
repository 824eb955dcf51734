"""Tensors from one rank to another: order, sizes, what does not fit, threads, and collective calls at the same time."""

from __future__ import annotations

import time

import numpy as np
from marks import on_ranks
from support import (
    DTYPES,
    RANK,
    SIZE,
    STORAGE,
    WORLD,
    as_tensor,
    exact_inputs,
    in_threads,
    raises,
    run_checks,
    same_bits,
    scaled,
    still_works,
)

import gradientflow as gf
from gradientflow.errors import ArgumentError, ArgumentTypeError, ClosedError, MismatchError, PeerError

RIGHT, LEFT = (RANK + 1) % SIZE, (RANK - 1) % SIZE
PARTNER = RANK ^ 1  # the last of an odd number of ranks has none
HAS_PARTNER = PARTNER < SIZE
FIRST = RANK < PARTNER
TOTAL = SIZE * (SIZE + 1) // 2
COUNTS = [0, 1, 7, 1000, 8192, 8193, 300_007]  # small ones leave at once, large ones wait for their receiver


def numbers(rank: int, count: int, turn: int = 0) -> np.ndarray:
    return np.arange(count, dtype=np.float64) * (rank + 1) + turn


# ---- what arrives ----------------------------------------------------------------------------------------------------


@on_ranks(2, 3)
def check_sizes(comm: gf.Communicator) -> None:
    """One sends and the other receives, then the other way round."""
    if not HAS_PARTNER:
        return
    for count in COUNTS:
        for sends in (FIRST, not FIRST):
            if sends:
                x = numbers(RANK, count)
                comm.send(x, PARTNER)
                x[:] = -1  # it may change as soon as send has returned
            else:
                x = np.full(count + 2, -2.0)
                assert comm.recv(x[1:-1], PARTNER).base is x
                assert same_bits(x[1:-1], numbers(PARTNER, count))
                assert x[0] == x[-1] == -2


def check_dtypes_and_memory(comm: gf.Communicator) -> None:
    pool = comm.empty((20, 100), "float64")
    if not HAS_PARTNER:
        return
    for dtype in DTYPES:
        inputs = exact_inputs(dtype, 2000, 1)
        x = inputs[RANK].copy() if FIRST else np.zeros(2000, STORAGE[dtype])
        (comm.send if FIRST else comm.recv)(as_tensor(x, dtype), PARTNER)
        assert same_bits(x, inputs[min(RANK, PARTNER)])
    if FIRST:
        pool[:] = RANK
        comm.send(pool, PARTNER)
        frozen = pool.copy()
        frozen.flags.writeable = False
        comm.send(frozen, PARTNER)
        comm.send(b"12345", PARTNER)
    else:
        assert comm.recv(pool, PARTNER) is pool  # whatever the shape, the elements arrive in their order
        assert (pool == PARTNER).all()
        assert (comm.recv(np.empty(2000), PARTNER) == PARTNER).all()
        assert bytes(comm.recv(bytearray(5), PARTNER)) == b"12345"


def check_order(comm: gf.Communicator) -> None:
    """Small and large tensors arrive in the order in which they were sent, from each rank."""
    turns = 40

    def send() -> None:
        for turn in range(turns):
            comm.send(numbers(RANK, COUNTS[turn % len(COUNTS)], turn), RIGHT)

    def receive() -> None:
        for turn in range(turns):
            x = np.empty(COUNTS[turn % len(COUNTS)])
            assert same_bits(comm.recv(x, LEFT), numbers(LEFT, x.size, turn))

    in_threads(lambda work: work(), [send, receive])


def check_all_to_all_in_threads(comm: gf.Communicator) -> None:
    """Every rank sends to all others and receives from all others, each in a thread of its own."""
    others = [rank for rank in range(SIZE) if rank != RANK]

    def send(to: int) -> None:
        for turn in range(5):
            comm.send(numbers(RANK, 20_000, turn + to), to)

    def receive(source: int) -> None:
        for turn in range(5):
            assert same_bits(comm.recv(np.empty(20_000), source), numbers(source, 20_000, turn + RANK))

    def collect() -> None:
        for count in COUNTS * 3:
            assert (comm.allreduce(np.full(count, RANK + 1.0)) == TOTAL).all()

    works = [lambda r=rank: send(r) for rank in others] + [lambda r=rank: receive(r) for rank in others]
    in_threads(lambda work: work(), [*works, collect])


def check_it_does_not_wait_for_collective_calls(comm: gf.Communicator) -> None:
    """Rank 0 is late for a collective call; the others, who wait in it, send and receive meanwhile."""
    x = np.full(20_000, RANK + 1.0)
    handle = None if RANK == 0 else comm.allreduce_async(x)
    if HAS_PARTNER:
        for _ in range(3):
            comm.send(numbers(RANK, 100), PARTNER)
            assert same_bits(comm.recv(np.empty(100), PARTNER), numbers(PARTNER, 100))
    assert handle is None or not handle.done
    WORLD.Barrier()
    if handle is None:
        handle = comm.allreduce_async(x)
    assert (handle.wait(timeout=20) == TOTAL).all()


def check_several_communicators(_: gf.Communicator) -> None:
    """What is sent on one communicator is not received on another."""
    with gf.init() as one, gf.init(config=gf.Config(node_size=1)) as two:
        if HAS_PARTNER:
            for comm, turn in ((one, 1), (two, 2), (two, 3), (one, 4)):
                comm.send(numbers(RANK, 10, turn), PARTNER)
            for comm, turn in ((two, 2), (one, 1), (one, 4), (two, 3)):
                assert same_bits(comm.recv(np.empty(10), PARTNER), numbers(PARTNER, 10, turn))
        WORLD.Barrier()


# ---- what does not fit -----------------------------------------------------------------------------------------------


def check_what_does_not_fit(comm: gf.Communicator) -> None:
    """The receiver gets an error and no data; the next tensor is the next one that was sent."""
    if not HAS_PARTNER:
        return
    sent = "float64"
    for count in (0, 10, 300_007):
        for other in (np.empty(count + 1), np.full(count, 7.0, np.float32), np.full(2 * count, 7, np.int32)):
            if FIRST:
                comm.send(numbers(RANK, count), PARTNER)
                comm.send(numbers(RANK, 5), PARTNER)
            else:
                other[:] = 7
                what = f"rank {PARTNER} sent {count} {sent}, but rank {RANK} receives {other.size} {other.dtype}"
                with raises(MismatchError, what):
                    comm.recv(other, PARTNER)
                assert (other == 7).all()
                assert same_bits(comm.recv(np.empty(5), PARTNER), numbers(PARTNER, 5))
    still_works_with_partner(comm)


def still_works_with_partner(comm: gf.Communicator) -> None:
    mine = numbers(RANK, 3)
    comm.send(mine, PARTNER)
    assert same_bits(comm.recv(np.empty(3), PARTNER), numbers(PARTNER, 3))


def check_wrong_arguments(comm: gf.Communicator) -> None:
    x = np.ones(3)
    for call in (comm.send, comm.recv):
        with raises(ArgumentError, f"rank {RANK} cannot send to itself"):
            call(x, RANK)
        for nobody in (-1, SIZE, 1 << 20):
            with raises(ArgumentError, f"{nobody} is not a rank: ranks are 0 to {SIZE - 1}"):
                call(x, nobody)
        with raises(ArgumentTypeError):
            call([1.0], RIGHT)
        with raises(ArgumentError, "is not contiguous"):
            call(np.ones(6)[::2], RIGHT)
    with raises(ArgumentError, "is read-only"):
        comm.recv(b"123", LEFT)
    still_works(comm)


# ---- ranks that are not there ----------------------------------------------------------------------------------------


@on_ranks(2, 3)
def check_a_partner_that_has_closed(_: gf.Communicator) -> None:
    """What it sent before it closed can still be received; after that, there is nobody."""
    comm = gf.init()
    if HAS_PARTNER and FIRST:
        comm.send(numbers(RANK, 10), PARTNER)
        comm.close()
        with raises(ClosedError):
            comm.send(np.ones(3), PARTNER)
        with raises(ClosedError):
            comm.recv(np.ones(3), PARTNER)
    WORLD.Barrier()
    if HAS_PARTNER and not FIRST:
        assert same_bits(comm.recv(np.empty(10), PARTNER), numbers(PARTNER, 10))
        start = time.monotonic()
        with raises(
            PeerError, f"rank {PARTNER} has closed its communicator", f"receive of 10 float64 from rank {PARTNER}"
        ):
            comm.recv(np.empty(10), PARTNER)
        assert time.monotonic() - start < scaled(5)
    WORLD.Barrier()
    comm.close()


def check_a_partner_of_this_node_that_has_closed_its_port(_: gf.Communicator) -> None:
    """Nothing has passed between the two: the memory of the node says why no connection can be made."""
    with gf.init(transport="tcp", config=gf.Config(node_size=0)) as comm:
        if HAS_PARTNER and FIRST:
            comm.close()
        WORLD.Barrier()
        if HAS_PARTNER and not FIRST:
            with raises(PeerError, f"rank {PARTNER} has closed its communicator"):
                comm.recv(np.empty(10), PARTNER)


run_checks([{}, {"node_size": 1}, {"node_size": 2}])
