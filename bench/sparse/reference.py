"""Coarse-grained sparse communication in NumPy, straight from its definition: the reference for the pool.

The reference needs no communication: every rank can generate the gradients of all ranks. It covers a range of whole
chunks, so that the ranks can divide the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.data import Source, Values
from .plan import chunks_sent

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Layout:
    """The layout of the gradients in memory.

    Attributes
    ----------
    places : sequence of (int, int)
        (first element, end) of each tensor; padding between tensors is zero.
    elements : int
        The number of elements, with the padding between tensors.
    chunk_size : int
        Elements of a chunk; the last chunk may be shorter.
    """

    places: Sequence[tuple[int, int]]
    elements: int
    chunk_size: int

    @property
    def chunks(self) -> int:
        """The number of chunks."""
        return -(-self.elements // self.chunk_size)

    def range_of(self, chunks: range) -> tuple[int, int]:
        """Give the range of elements of consecutive chunks."""
        begin, end = (min(chunk * self.chunk_size, self.elements) for chunk in (chunks.start, chunks.stop))
        return begin, end


class PaddedSource:
    """Gradients laid out in memory, with zeros between the tensors.

    Parameters
    ----------
    source : Source
        The values of the tensors.
    layout : Layout
        The layout of the tensors.
    """

    def __init__(self, source: Source, layout: Layout) -> None:
        self._source = source
        ends = [0, *(end for _, end in layout.places)]
        begins = [*(begin for begin, _ in layout.places), layout.elements]
        self._gaps = [(end, begin) for end, begin in zip(ends, begins, strict=True) if begin > end]

    def values(self, rank: int, begin: int, end: int) -> Values:
        """Give elements ``[begin, end)`` of one rank's gradients."""
        values = self._source.values(rank, begin, end) if end > begin else np.zeros(0, np.float32)
        for first, after in self._gaps:
            if first < end and after > begin:
                values[max(first - begin, 0) : after - begin] = 0
        return values


@dataclass(frozen=True)
class Iteration:
    """The right outcome of an iteration on the chunks of a reference.

    Attributes
    ----------
    mean : array
        The gradient of the step: the means in chunks that are sent, zeros elsewhere.
    magnitude : array
        The means of the absolute values of the summands, which bound the rounding error.
    norms : array
        By chunk: the sum of the ranks' L1 norms; for sent chunks, the L1 norm of the mean, times the number of ranks.
    """

    mean: Doubles
    magnitude: Doubles
    norms: Doubles


class Reference:
    """The iterations of some ranks on some chunks.

    Parameters
    ----------
    layout : Layout
        The chunks.
    chunks : range
        The chunks that are covered.
    ranks : sequence of int
        The ranks whose gradients are used; all ranks if means are needed.
    momentum : float
        The factor on residuals in each iteration.

    Attributes
    ----------
    residuals : dict of int to array
        The residuals of each rank.
    """

    def __init__(self, layout: Layout, chunks: range, ranks: Sequence[int], momentum: float) -> None:
        self._begin, self._end = layout.range_of(chunks)
        self._chunks, self._size = chunks, layout.chunk_size
        self._momentum = np.float32(momentum)
        self.residuals: dict[int, Floats] = {rank: np.zeros(self._end - self._begin, np.float32) for rank in ranks}

    def iterate(self, source: Source, important: Flags) -> Iteration:
        """Make an iteration that sends the important chunks."""
        own = important[self._chunks.start : self._chunks.stop]
        sent = np.repeat(own, self._size)[: self._end - self._begin]
        total, magnitude = np.zeros((2, self._end - self._begin), np.float64)
        norms = np.zeros(len(own), np.float64)
        for rank, residual in self.residuals.items():
            gradient = source.values(rank, self._begin, self._end) + residual
            total += gradient
            magnitude += np.abs(gradient)
            norms += self._norms(gradient)
            self.residuals[rank] = np.where(sent, np.float32(0), self._momentum * gradient)
        ranks = len(self.residuals)
        mean = np.where(sent, total / ranks, 0.0)
        return Iteration(mean, magnitude / ranks, np.where(own, ranks * self._norms(mean), norms))

    def _norms(self, values: np.ndarray) -> Doubles:
        if not len(values):
            return np.zeros(0, np.float64)
        starts = np.arange(0, len(values), self._size)
        return np.add.reduceat(np.abs(values), starts, dtype=np.float64)


def choose(norms: Doubles, density: float) -> Flags:
    """Choose the next important chunks: the largest norms; among equal norms the first."""
    important = np.zeros(len(norms), bool)
    important[np.argsort(-norms, kind="stable")[: chunks_sent(density, len(norms))]] = True
    return important
