"""The time of a call as a linear function of its size, fitted to calls of two sizes on the ranks of the job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import numpy as np

from gradientflow.communicator import Communicator
from gradientflow.model.timing import average_pool, median_seconds_of
from gradientflow.pools.gradient import GradientPool

_REDUCED = 1 << 10, 1 << 16  # elements; two sizes give latency and bandwidth
_GATHERED = 1 << 10, 1 << 15  # entries


class CallTime(NamedTuple):
    """The time of a call, as a linear function of its size.

    Attributes
    ----------
    latency : float
        Seconds that do not depend on the size.
    seconds_per_element : float
        Seconds for each element that a rank contributes.
    """

    latency: float
    seconds_per_element: float

    @classmethod
    def of_allreduce(
        cls, comm: Communicator, dtype: str, wire: str | None, algorithm: str, device: str | int
    ) -> CallTime:
        """Measure the allreduce of a gradient pool. Collective."""
        with ExitStack() as closing:
            pools = [
                closing.enter_context(GradientPool(comm, [count], dtype, "auto", wire, algorithm, device))
                for count in _REDUCED
            ]
            return cls._fitted(comm, _REDUCED, [partial(average_pool, pool) for pool in pools])

    @classmethod
    def of_allgather(cls, comm: Communicator) -> CallTime:
        """Measure the allgather of each rank's entries, indices and values. Collective."""
        entries = [np.zeros(2 * count, np.int32) for count in _GATHERED]
        return cls._fitted(comm, _GATHERED, [partial(comm.allgather, each) for each in entries])

    @classmethod
    def _fitted(cls, comm: Communicator, sizes: tuple[int, int], calls: Sequence[Callable[[], object]]) -> CallTime:
        (small, large), (short, long) = sizes, median_seconds_of(comm, calls)
        slope = max(0.0, (long - short) / (large - small))
        return cls(max(0.0, short - slope * small), slope)

    def seconds(self, elements: float) -> float:
        """Return the seconds of a call with this number of elements; 0 for no elements."""
        return self.latency + elements * self.seconds_per_element if elements else 0.0


__all__ = ["CallTime"]
