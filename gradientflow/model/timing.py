"""Times that ranks wait for calls, as medians of turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from gradientflow._location import core
from gradientflow.communicator import Communicator
from gradientflow.device import DeviceArray
from gradientflow.pools.gradient import GradientPool

_LEAST_TURNS, _MOST_TURNS = 5, 25
_SECONDS = 0.05  # limit for all turns beyond _LEAST_TURNS


def median_seconds_of(
    comm: Communicator, calls: Sequence[Callable[[], object]], *, rest: float = 0.0, budget: float = _SECONDS
) -> list[float]:
    """Return the time that the slowest rank waits for each call, after one turn that is not measured. Collective.

    The calls take turns; short calls get more turns. A disturbance of some milliseconds therefore affects few turns of
    each call, and the medians leave it out.

    Parameters
    ----------
    comm : Communicator
        Communicator of the ranks that make the calls.
    calls : sequence of callable
        The calls.
    rest : float
        Seconds for which all ranks are idle before each call.
    budget : float
        Seconds of all turns together. The least number of turns is made even if it takes longer.
    """
    _turns(comm, calls, 1, rest)
    times = _turns(comm, calls, _LEAST_TURNS, rest)
    fitting = budget * _LEAST_TURNS / max(float(times.sum()), 1e-9)
    more = int(min(fitting, _MOST_TURNS)) - _LEAST_TURNS
    if more > 0:
        times = np.concatenate([times, _turns(comm, calls, more, rest)])
    return [float(median) for median in np.median(times, axis=0)]


def _turns(
    comm: Communicator, calls: Sequence[Callable[[], object]], number: int, rest: float
) -> npt.NDArray[np.float64]:
    """Return the waiting times of the slowest rank, on all ranks: a row for each turn, a column for each call."""
    times = np.zeros((number, len(calls)))
    for turn in times:
        for index, call in enumerate(calls):
            time.sleep(rest)
            comm.barrier()
            begin = time.perf_counter()
            call()
            turn[index] = time.perf_counter() - begin
    comm.allreduce(times, "max")
    return times


def average_pool(pool: GradientPool) -> None:
    """Average a pool, and wait until its device is done."""
    pool.ready()
    pool.wait()
    segment = pool._native.segment
    if pool.device is not None and not isinstance(segment, core.Segment):
        DeviceArray(segment, 0, (1,), "uint8", pool.device).get()  # reading a byte makes the host wait for the device


__all__ = ["average_pool", "median_seconds_of"]
