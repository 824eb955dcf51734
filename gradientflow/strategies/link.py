"""What it costs to send: a latency and a time for each element, fitted to calls of two sizes on the live ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from gradientflow.communicator import Communicator
from gradientflow.device import DeviceArray
from gradientflow.pool import GradientPool

_SMALL, _LARGE = 1 << 10, 1 << 20  # elements; with both, latency and bandwidth can be told apart
_GATHERED = 1 << 15  # entries, in place of the larger one
_REPETITIONS = 5
ENTRY = np.dtype([("index", np.int32), ("value", np.float32)])  # of a sparse gradient


@dataclass(frozen=True)
class Link:
    """What a call takes.

    Attributes
    ----------
    latency : float
        Seconds that do not depend on the size.
    seconds_per_element : float
        For each element that a rank brings.
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
        """Measure the allreduce of a gradient pool, with up to so many elements. Collective."""
        large = large or _LARGE
        times = []
        for count in (_SMALL, large):
            with GradientPool(comm, [count], dtype, "auto", wire, algorithm, device) as pool:
                times.append(median_seconds(comm, partial(_average, pool)))
        return cls.fitted(times, _SMALL, large)

    @classmethod
    def of_allgather(cls, comm: Communicator) -> Link:
        """Measure the allgather of the entries of a rank, indices and values. Collective."""
        times = []
        for count in (_SMALL, _GATHERED):
            entries = np.zeros(count, ENTRY).view(np.int32)
            times.append(median_seconds(comm, partial(comm.allgather, entries)))
        return cls.fitted(times, _SMALL, _GATHERED)

    @classmethod
    def fitted(cls, times: Sequence[float], small: int, large: int) -> Link:
        """Return latency and time for each element, from the times of two sizes."""
        slope = max(0.0, (times[1] - times[0]) / (large - small))
        return cls(max(0.0, times[0] - slope * small), slope)

    def seconds(self, elements: float) -> float:
        """Return what a call with so many elements takes; nothing without any."""
        return self.latency + elements * self.seconds_per_element if elements else 0.0


def _average(pool: GradientPool) -> None:
    pool.ready()
    pool.wait()
    if pool.device is not None:  # the host waits for it, behind which a byte is read
        DeviceArray(pool._native.segment, 0, (1,), "uint8", pool.device).get()


def median_seconds(comm: Communicator, call: Callable[[], object]) -> float:
    """Return how long the slowest rank waits for a call, after one time that does not count."""
    times = np.zeros(_REPETITIONS + 1)
    for i in range(len(times)):
        comm.barrier()
        begin = time.perf_counter()
        call()
        times[i] = time.perf_counter() - begin
    comm.allreduce(times, "max")
    return float(np.median(times[1:]))


__all__ = ["ENTRY", "Link", "median_seconds"]
