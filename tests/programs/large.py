"""More than 2^31 elements in one call: every element is checked, in chunks, against a pattern that knows its place."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import numpy as np
from support import RANK, SIZE, run

import gradientflow as gf

BEYOND = (1 << 31) + 12_345  # no 32-bit count holds it
CHUNK = 1 << 22
PATTERN = (np.arange(CHUNK) % 251).astype(np.uint8)


def chunks(array: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    for number, begin in enumerate(range(0, array.size, CHUNK)):
        yield number, array[begin : begin + CHUNK]


def value(number: int, rank: int) -> int:
    return (number * 7 + rank * 101) % 256


def fill(array: np.ndarray) -> None:
    for number, chunk in chunks(array):
        np.add(PATTERN[: chunk.size], np.uint8(value(number, RANK)), out=chunk)


def check(array: np.ndarray, ranks: list[int]) -> None:
    """Compare to the sum over these ranks, which wraps around."""
    buffer = np.empty(CHUNK, np.uint8)
    times = np.uint8(len(ranks))
    for number, chunk in chunks(array):
        wanted = np.multiply(PATTERN[: chunk.size], times, out=buffer[: chunk.size])
        wanted += np.uint8(sum(value(number, rank) for rank in ranks) % 256)
        assert np.array_equal(chunk, wanted), f"wrong elements from {number * CHUNK} on"


def in_node_memory() -> None:
    with gf.init() as comm:
        x = comm.empty(BEYOND, "uint8")
        fill(x)
        comm.allreduce(x)
        check(x, list(range(SIZE)))


def ordinary() -> None:
    with gf.init() as comm:
        x = np.empty(BEYOND, np.uint8)
        fill(x)
        comm.allreduce(x)
        check(x, list(range(SIZE)))


def between_nodes() -> None:
    """A call to MPI takes 2^30 elements at most, so there are two rounds; a tensor sent to one rank has two parts."""
    with gf.init(config=gf.Config(node_size=1)) as comm:
        x = np.empty((1 << 30) + 1001, np.uint8)
        for algorithm in ("auto", "mpi"):
            fill(x)
            comm.broadcast(x, root=SIZE - 1, algorithm=algorithm)
            check(x, [SIZE - 1])
        fill(x)
        if RANK == 0:
            comm.send(x, 1)
        elif RANK == 1:
            comm.recv(x, 0)
        check(x, [0] if RANK <= 1 else [RANK])


def main() -> None:
    for what in sys.argv[1:]:
        {"node": in_node_memory, "ordinary": ordinary, "between": between_nodes}[what]()
        gc.collect()


run(main)
