"""The measured collectives: how bytes are counted, and which result is right.

Byte counts and bus factors follow nccl-tests, so that figures can be compared with published ones: for collectives with
one block per rank, the size is that of the whole array, and bus bandwidth is algorithm bandwidth times the share of the
data that has to cross the slowest link.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

ROOT = 0


@dataclass(frozen=True)
class Collective:
    """The properties of a collective.

    Attributes
    ----------
    name : str
        Name on the command line and in results.
    bus_factor : callable
        Takes the number of ranks; returns bus bandwidth over algorithm bandwidth.
    host_factor : callable
        Takes the numbers of hosts and of ranks on each host; returns the least number of bytes that the busiest host
        has to send, divided by the size.
    reduces : bool
        True if the collective takes an op.
    in_place : bool
        True if the result replaces the input.
    equal_blocks : bool
        True if the size is rounded down to a multiple of the number of ranks.
    """

    name: str
    bus_factor: Callable[[int], float]
    host_factor: Callable[[int, int], float]
    reduces: bool = False
    in_place: bool = False
    equal_blocks: bool = False


def _all_but_own(ranks: int, _: int = 1) -> float:
    """Give the share of the data that belongs to other ranks."""
    return (ranks - 1) / ranks


def _all(ranks: int, _: int = 1) -> float:
    return 1.0


COLLECTIVES = {
    collective.name: collective
    for collective in (
        Collective(
            "allreduce",
            lambda ranks: 2 * _all_but_own(ranks),
            lambda hosts, _: 2 * _all_but_own(hosts),
            reduces=True,
            in_place=True,
        ),
        Collective("broadcast", _all, _all, in_place=True),
        Collective("reduce", _all, _all, reduces=True, in_place=True),
        Collective("allgather", _all_but_own, _all_but_own, equal_blocks=True),
        Collective("reduce-scatter", _all_but_own, _all_but_own, reduces=True),
        Collective("alltoall", _all_but_own, lambda hosts, ranks: ranks * _all_but_own(hosts), equal_blocks=True),
        Collective("gather", _all_but_own, lambda hosts, _: 1 / hosts, equal_blocks=True),
        Collective("scatter", _all_but_own, _all_but_own, equal_blocks=True),
        Collective("barrier", lambda _: 0.0, lambda *_: 0.0, in_place=True),
    )
}


@dataclass(frozen=True)
class Segment:
    """A part of a rank's result, and the source of its right values.

    Attributes
    ----------
    offset : int
        Index in the result at which the part begins.
    source : int or None
        The rank whose input the part repeats; None for the reduction of all ranks' inputs.
    begin, end : int
        The range of the input elements that determine the part.
    """

    offset: int
    source: int | None
    begin: int
    end: int


@dataclass(frozen=True)
class Case:
    """One collective at one size, from the view of one rank.

    Attributes
    ----------
    collective : str
        A key of `COLLECTIVES`.
    size : int
        The requested bytes.
    dtype, op : str
        Element type and reduction.
    ranks, rank : int
        The number of ranks of the job, and this rank.
    wires : tuple of str
        Other wire dtypes of the contestants.
    """

    collective: str
    size: int
    dtype: str
    op: str
    ranks: int
    rank: int
    wires: tuple[str, ...] = ()

    @property
    def item(self) -> DTypeLike:
        """The element type as a NumPy dtype."""
        return np.dtype(self.dtype)

    @property
    def count(self) -> int:
        """Elements of the size, with equal blocks rounded down to a multiple of the number of ranks."""
        if self.collective == "barrier":
            return 0
        count = self.size // np.dtype(self.dtype).itemsize
        return count - count % self.ranks if COLLECTIVES[self.collective].equal_blocks else count

    @property
    def input_count(self) -> int:
        """Elements of this rank's input (for a broadcast: of its buffer)."""
        if self.collective in ("allgather", "gather"):
            return self.count // self.ranks
        return 0 if self.collective == "scatter" and self.rank != ROOT else self.count

    @property
    def result_count(self) -> int:
        """Elements of the array that receives this rank's result."""
        if self.collective == "scatter":
            return self.count // self.ranks
        if self.collective == "reduce-scatter":
            begin, end = block(self.count, self.ranks, self.rank)
            return end - begin
        return 0 if self.collective == "gather" and self.rank != ROOT else self.count

    @property
    def bytes(self) -> int:
        """The bytes of `count` elements."""
        return self.count * np.dtype(self.dtype).itemsize

    @property
    def contributes(self) -> bool:
        """True if this rank's input reaches any result."""
        if self.collective in ("broadcast", "scatter"):
            return self.rank == ROOT
        return self.collective != "barrier"

    def segments(self) -> list[Segment]:
        """Describe the right result of this rank; an empty list if the rank has no result."""
        share = self.count // self.ranks
        own = (self.rank * share, (self.rank + 1) * share)  # this rank's block
        if self.collective == "barrier" or (self.collective in ("reduce", "gather") and self.rank != ROOT):
            return []
        if self.collective == "broadcast":
            return [Segment(0, ROOT, 0, self.count)]
        if self.collective == "scatter":
            return [Segment(0, ROOT, *own)]
        if self.collective == "alltoall":
            return [Segment(source * share, source, *own) for source in range(self.ranks)]
        if self.collective in ("allgather", "gather"):
            return [Segment(source * share, source, 0, share) for source in range(self.ranks)]
        if self.collective == "reduce-scatter":
            return [Segment(0, None, *block(self.count, self.ranks, self.rank))]
        return [Segment(0, None, 0, self.count)]


def block(count: int, ranks: int, rank: int) -> tuple[int, int]:
    """Give the range of one rank's block: each of the first ``count % ranks`` ranks has one element more."""
    share, more = divmod(count, ranks)
    begin = rank * share + min(rank, more)
    return begin, begin + share + (rank < more)
