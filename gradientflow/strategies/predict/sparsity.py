"""The part of the gradients that is sent, and its cost."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradientflow._location import load_core
from gradientflow.communicator import Communicator
from gradientflow.pools.chunk import SparseGradientPool
from gradientflow.pools.top_k import TopKGradientPool

from .link import Link

_LARGE = 1 << 20  # elements of the pool whose bookkeeping is measured
_REPETITIONS = 5
_FLOAT, _INDEX = 4, 4  # bytes


class Sparsity(ABC):
    """The part of the gradients that is sent."""

    @abstractmethod
    def sent(self, parameters: int) -> int:
        """Return how many of the gradients of so many parameters are sent."""

    @abstractmethod
    def traffic(self, comm: Communicator, parameters: int, width: int) -> float:
        """Return the bytes that a rank sends to other nodes in a step, with numbers of `width` bytes."""

    @abstractmethod
    def seconds(self, comm: Communicator, parameters: int, own: Callable[[], Link], dense: Link) -> float:
        """Return the seconds of sending: `own` measures an allreduce in the wire dtype, `dense` is that of float32."""

    @abstractmethod
    def pool(self, comm: Communicator, parameters: int, device: str | int) -> Any:
        """Make the pool whose bookkeeping is measured: of `_LARGE` elements, or of one chunk if that is larger."""


@dataclass(frozen=True)
class Chunks(Sparsity):
    """Chunks that all ranks agree on are averaged.

    Attributes
    ----------
    density : float
        The share of the chunks.
    chunk_size : int
        Elements of a chunk.
    """

    density: float
    chunk_size: int

    def sent(self, parameters: int) -> int:  # noqa: D102
        size = min(self.chunk_size, max(1, parameters))
        count: int = load_core().important_count(self.density, math.ceil(parameters / size)) * size
        return min(parameters, count)

    def _norms(self, parameters: int) -> int:
        """Return the bytes of the norms, which are averaged, too."""
        return 8 * (math.ceil(parameters / min(self.chunk_size, max(1, parameters))) + 6)

    def traffic(self, comm: Communicator, parameters: int, width: int) -> float:  # noqa: D102
        return allreduce_bytes(comm, self.sent(parameters) * width + self._norms(parameters))

    def seconds(self, comm: Communicator, parameters: int, own: Callable[[], Link], dense: Link) -> float:  # noqa: D102
        return own().seconds(self.sent(parameters)) + dense.seconds(self._norms(parameters) / _FLOAT)

    def pool(self, comm: Communicator, parameters: int, device: str | int) -> SparseGradientPool:  # noqa: D102
        size = min(self.chunk_size, max(1, parameters))
        return SparseGradientPool(comm, [max(_LARGE, size)], density=self.density, chunk_size=size, device=device)


@dataclass(frozen=True)
class Entries(Sparsity):
    """Entries that each rank chooses are gathered, with their indices.

    Attributes
    ----------
    ratio : float
        One of so many elements is sent.
    """

    ratio: float

    def sent(self, parameters: int) -> int:  # noqa: D102
        return int(load_core().k_of(parameters, self.ratio))

    def traffic(self, comm: Communicator, parameters: int, width: int) -> float:  # noqa: D102
        return float(self.sent(parameters) * (_INDEX + width) * (comm.nodes - 1))

    def seconds(self, comm: Communicator, parameters: int, own: Callable[[], Link], dense: Link) -> float:  # noqa: D102
        gathered = Link.of_allgather(comm).seconds(self.sent(parameters))
        return min(gathered, dense.seconds(parameters))  # a layer is averaged densely where that is cheaper

    def pool(self, comm: Communicator, parameters: int, device: str | int) -> TopKGradientPool:  # noqa: D102
        return TopKGradientPool(comm, [_LARGE], ratios=self.ratio, device=device)


def bookkeeping_seconds(comm: Communicator, sparsity: Sparsity, parameters: int, device: str | int) -> float:
    """Return the seconds of bookkeeping for so many parameters, on the slowest rank."""
    times = np.zeros(_REPETITIONS + 2)
    with sparsity.pool(comm, parameters, device) as pool:
        gradient = np.random.default_rng(comm.rank).standard_normal(pool.shapes[0], np.float32)
        for i in range(len(times)):
            if pool.device is None:
                pool.views[0][...] = gradient
            else:
                pool.views[0].set(gradient)
            pool.ready()
            pool.wait()
            times[i] = pool.bookkeeping_seconds
    comm.allreduce(times, "max")
    return float(np.median(times[2:])) * parameters / int(gradient.size)


def allreduce_bytes(comm: Communicator, nbytes: float) -> float:
    """Return the bytes that a rank sends to other nodes in an allreduce: its share of a ring over nodes."""
    return 2 * nbytes * (comm.nodes - 1) / comm.nodes * comm.nodes / comm.size if comm.nodes > 1 else 0.0


__all__ = ["Chunks", "Entries", "Sparsity", "allreduce_bytes", "bookkeeping_seconds"]
