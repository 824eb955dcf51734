"""Live metrics: their names, and the sources of this process."""

from __future__ import annotations

from .names import METRICS, Metric
from .registry import Source, sources

__all__ = ["METRICS", "Metric", "Source", "sources"]
