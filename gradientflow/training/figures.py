"""Metrics that take a look at the pools of a training, or a pass over memory."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from gradientflow.annotations import TensorLike
from gradientflow.communicator import Communicator
from gradientflow.memory import itemsize
from gradientflow.metrics.registry import Values
from gradientflow.pools.base import BasePool
from gradientflow.pools.exchange_figures import exchange_figures
from gradientflow.strategies import Layout, Synchronizer

_CHUNK = 1 << 18  # elements that are converted at once


def figures(synchronizer: Synchronizer, comm: Communicator, waited_from: float, mean_sent: float | None) -> Values:
    """Return metrics of the strategy and of its last exchange. Does not communicate.

    Parameters
    ----------
    synchronizer : Synchronizer
        The synchronizer, between two iterations.
    comm : Communicator
        Ranks that take part.
    waited_from : float
        Time from which the last exchange was waited for, in seconds of `time.monotonic`.
    mean_sent : float or None
        Bytes that this rank sends in a step, if known.
    """
    strategy, layout = synchronizer.strategy, synchronizer.layout
    found: Values = {"gradientflow_participants": comm.size}
    period = strategy.profile().period
    if period > 1:
        found["gradientflow_period_steps"] = period
    for name, attribute in (("delay_steps", "delay"), ("staleness_limit_steps", "staleness")):
        value = getattr(strategy, attribute, None)
        if isinstance(value, int):
            found[f"gradientflow_{name}"] = value
    found |= exchange_figures(
        synchronizer.reports,
        shares_memory=comm.local_size > 1,
        has_times=layout.device == "cpu",
        waited_from=waited_from,
    )
    exchanged = _exchanged_bytes(synchronizer, comm, mean_sent)
    if exchanged:
        found["gradientflow_compression_ratio"] = _gradient_bytes(layout) / exchanged
    residuals = synchronizer.withheld().residuals
    if len(residuals):
        found["gradientflow_residual_norm"] = norm(residuals)
    return found


def _gradient_bytes(layout: Layout) -> float:
    return float(sum(count * itemsize(dtype) for count, dtype in zip(layout.counts, layout.dtypes, strict=True)))


def _exchanged_bytes(synchronizer: Synchronizer, comm: Communicator, mean_sent: float | None) -> float | None:
    """Return the bytes of gradients that were exchanged in the last step, or are in the mean; None if unknown."""
    pools: Iterable[BasePool] = getattr(synchronizer, "pools", ())
    found = 0.0
    for pool in pools:
        wire = getattr(pool, "wire", None)
        share = itemsize(wire) / itemsize(pool.dtype) if wire is not None and comm.nodes > 1 else 1.0
        found += share * sum(each.nbytes for each in pool.reports)
    if not found and mean_sent and comm.nodes == comm.size:
        found = mean_sent * comm.size / (2 * (comm.size - 1))  # an allreduce sends each byte so often
    return found or None


def norm(arrays: Iterable[TensorLike]) -> float:
    """Return the Euclidean norm of all elements of some arrays, on the host or on a CUDA device."""
    total = 0.0
    for array in arrays:
        flat = np.asarray(array.get() if hasattr(array, "get") else array).reshape(-1)
        for begin in range(0, len(flat), _CHUNK):
            part = flat[begin : begin + _CHUNK].astype(np.float32, copy=False)
            total += float(np.dot(part, part))
    return math.sqrt(total)


__all__ = ["figures", "norm"]
