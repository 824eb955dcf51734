"""The collectives as the benchmark sees them: how bytes are counted and what the right result is.

Byte counts and bus factors are those of nccl-tests, so that figures can be compared with published ones: the size of an
allgather or a reduce-scatter is that of the whole array (all ranks' blocks together), and bus bandwidth is algorithm
bandwidth times the share of the data that has to cross the slowest link.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

ROOT = 0


@dataclass(frozen=True)
class Collective:
    """What sets one collective apart from the others.

    Attributes
    ----------
    name : str
        As on the command line and in results.
    reduces : bool
        Whether it takes an op.
    bus_factor : callable
        From the number of ranks to bus bandwidth over algorithm bandwidth.
    """

    name: str
    reduces: bool
    bus_factor: Callable[[int], float]


COLLECTIVES = {
    collective.name: collective
    for collective in (
        Collective("allreduce", reduces=True, bus_factor=lambda ranks: 2 * (ranks - 1) / ranks),
        Collective("broadcast", reduces=False, bus_factor=lambda _: 1.0),
        Collective("reduce", reduces=True, bus_factor=lambda _: 1.0),
        Collective("allgather", reduces=False, bus_factor=lambda ranks: (ranks - 1) / ranks),
        Collective("reduce-scatter", reduces=True, bus_factor=lambda ranks: (ranks - 1) / ranks),
        Collective("barrier", reduces=False, bus_factor=lambda _: 0.0),
    )
}


@dataclass(frozen=True)
class Segment:
    """A part of a rank's result and where its right values come from.

    Attributes
    ----------
    offset : int
        Where in the result the part begins.
    source : int or None
        The rank whose input it repeats; None for the reduction of all ranks' inputs.
    begin, end : int
        The range of the input elements it is made of.
    """

    offset: int
    source: int | None
    begin: int
    end: int


@dataclass(frozen=True)
class Case:
    """One collective at one size, as one rank sees it.

    Attributes
    ----------
    collective : str
        A key of `COLLECTIVES`.
    size : int
        The bytes asked for.
    dtype, op : str
        Element type and reduction.
    ranks, rank : int
        The job's number of ranks, and which one this is.
    """

    collective: str
    size: int
    dtype: str
    op: str
    ranks: int
    rank: int

    @property
    def item(self) -> DTypeLike:
        """The element type as NumPy's."""
        return np.dtype(self.dtype)

    @property
    def input_count(self) -> int:
        """Elements that this rank puts in (for a broadcast: the elements of its buffer)."""
        if self.collective == "barrier":
            return 0
        count = self.size // np.dtype(self.dtype).itemsize
        return count // self.ranks if self.collective == "allgather" else count

    @property
    def result_count(self) -> int:
        """Elements of the array that this rank's result is written to."""
        if self.collective == "allgather":
            return self.input_count * self.ranks
        if self.collective == "reduce-scatter":
            begin, end = block(self.input_count, self.ranks, self.rank)
            return end - begin
        return self.input_count

    @property
    def bytes(self) -> int:
        """The bytes really handled: an allgather's blocks are equal, so its size is rounded down to fit."""
        count = self.result_count if self.collective == "allgather" else self.input_count
        return count * np.dtype(self.dtype).itemsize

    @property
    def contributes(self) -> bool:
        """Whether this rank's input reaches any result."""
        return self.rank == ROOT if self.collective == "broadcast" else self.collective != "barrier"

    def segments(self) -> list[Segment]:
        """Describe the right result of this rank; empty where it has none."""
        count = self.input_count
        if self.collective == "broadcast":
            return [Segment(0, ROOT, 0, count)]
        if self.collective == "allgather":
            return [Segment(source * count, source, 0, count) for source in range(self.ranks)]
        if self.collective == "reduce-scatter":
            return [Segment(0, None, *block(count, self.ranks, self.rank))]
        if self.collective == "barrier" or (self.collective == "reduce" and self.rank != ROOT):
            return []
        return [Segment(0, None, 0, count)]


def block(count: int, ranks: int, rank: int) -> tuple[int, int]:
    """Give the range of one rank's block: the first ``count % ranks`` ranks have one element more."""
    share, more = divmod(count, ranks)
    begin = rank * share + min(rank, more)
    return begin, begin + share + (rank < more)
