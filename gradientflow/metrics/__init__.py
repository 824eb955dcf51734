"""Live metrics: their names, and the sources of this process.

A method ``metrics(across_ranks=False)`` returns the values of this rank, by name. Call it between two steps. Metrics
that a strategy does not have are missing. Norms take a pass over gradients and residuals, in this call only; that of
the gradients is missing once they are overwritten or set to zero.

``metrics(across_ranks=True)`` returns minimum, mean and maximum over the ranks, and the rank of the maximum, as
``NAME_min``, ``NAME_mean``, ``NAME_max`` and ``NAME_max_rank``. It is collective; otherwise nothing is communicated.
Ranks without a metric do not count. A value that is not a number counts: it is the minimum, mean and maximum.
"""

from __future__ import annotations

from .names import METRICS, Metric
from .registry import Source, sources

__all__ = ["METRICS", "Metric", "Source", "sources"]
