"""Metrics of all ranks together."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gradientflow.communicator import Communicator

from .names import METRICS
from .registry import Values


def across_ranks(comm: Communicator, values: Mapping[str, float]) -> Values:
    """Return the metrics of all ranks together, as `gradientflow.metrics` says. Collective."""
    names = [metric.name for metric in METRICS]
    mine = np.array([[name in values, values.get(name, 0.0)] for name in names])
    known, columns = comm.allgather(mine).reshape(comm.size, len(names), 2).T
    found: Values = {}
    for name, has, column in zip(names, known, columns, strict=True):
        ranks = np.flatnonzero(has)
        if ranks.size:
            there = column[ranks]
            found[f"{name}_min"] = float(there.min())
            found[f"{name}_mean"] = float(there.mean())
            found[f"{name}_max"] = float(there.max())
            found[f"{name}_max_rank"] = float(ranks[there.argmax()])
    return found


__all__ = ["across_ranks"]
