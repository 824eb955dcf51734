"""Metrics of all ranks together."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gradientflow.communicator import Communicator

from .names import METRICS
from .registry import Values


def across_ranks(comm: Communicator, values: Mapping[str, float]) -> Values:
    """Return ``NAME_min``, ``NAME_mean``, ``NAME_max`` and ``NAME_max_rank`` of each metric. Collective.

    Ranks without a metric do not count.
    """
    names = [metric.name for metric in METRICS]
    mine = np.array([values.get(name, np.nan) for name in names])
    rows = comm.allgather(mine).reshape(comm.size, len(names))
    found: Values = {}
    for name, column in zip(names, rows.T, strict=True):
        if not np.isnan(column).all():
            found[f"{name}_min"] = float(np.nanmin(column))
            found[f"{name}_mean"] = float(np.nanmean(column))
            found[f"{name}_max"] = float(np.nanmax(column))
            found[f"{name}_max_rank"] = float(np.nanargmax(column))
    return found


__all__ = ["across_ranks"]
