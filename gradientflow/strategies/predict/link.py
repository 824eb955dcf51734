"""The cost of a call: a latency and a time per element, fitted to calls of two sizes on the live ranks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np

from gradientflow.communicator import Communicator
from gradientflow.device import DeviceArray
from gradientflow.model.timing import median_seconds_of
from gradientflow.pools.gradient import GradientPool

_SMALL, _LARGE = 1 << 10, 1 << 20  # elements; with both, latency and bandwidth can be told apart
_GATHERED = 1 << 15  # entries: the larger size of an allgather
ENTRY = np.dtype([("index", np.int32), ("value", np.float32)])


@dataclass(frozen=True)
class Link:
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
        cls,
        comm: Communicator,
        dtype: str = "float32",
        wire: str | None = None,
        algorithm: str = "auto",
        device: str | int = "cpu",
        *,
        large: int | None = None,
    ) -> Link:
        """Measure the allreduce of a gradient pool, with up to `large` elements. Collective."""
        large = large or _LARGE
        with ExitStack() as closing:
            pools = [
                closing.enter_context(GradientPool(comm, [count], dtype, "auto", wire, algorithm, device))
                for count in (_SMALL, large)
            ]
            times = median_seconds_of(comm, [partial(_average, pool) for pool in pools])
        return cls.fitted(times, _SMALL, large)

    @classmethod
    def of_allgather(cls, comm: Communicator) -> Link:
        """Measure the allgather of each rank's entries, indices and values. Collective."""
        entries = [np.zeros(count, ENTRY).view(np.int32) for count in (_SMALL, _GATHERED)]
        times = median_seconds_of(comm, [partial(comm.allgather, each) for each in entries])
        return cls.fitted(times, _SMALL, _GATHERED)

    @classmethod
    def fitted(cls, times: Sequence[float], small: int, large: int) -> Link:
        """Return the link that fits the times of two sizes."""
        slope = max(0.0, (times[1] - times[0]) / (large - small))
        return cls(max(0.0, times[0] - slope * small), slope)

    def seconds(self, elements: float) -> float:
        """Return the seconds of a call with so many elements; 0 without any."""
        return self.latency + elements * self.seconds_per_element if elements else 0.0


def _average(pool: GradientPool) -> None:
    pool.ready()
    pool.wait()
    if pool.device is not None:  # reading a byte makes the host wait for the device
        DeviceArray(pool._native.segment, 0, (1,), "uint8", pool.device).get()


__all__ = ["ENTRY", "Link"]
