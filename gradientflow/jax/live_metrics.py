"""Metrics of averaged gradients inside of compiled programs."""

from __future__ import annotations

from gradientflow.errors import ArgumentError
from gradientflow.metrics import sources
from gradientflow.metrics.registry import Values


def metrics() -> Values:
    """Return metrics of the `average` that was used first and is still in use, by name; see `gradientflow.metrics`.

    `gradientflow.metrics.sources` lists those of all. Nothing is communicated.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If no gradients were averaged yet.
    """
    for source in sources():
        if source.kind == "jax":
            return source.metrics()
    raise ArgumentError("no gradients were averaged yet: run a step with gradientflow.jax.average first")


__all__ = ["metrics"]
