"""GradientFlow for JAX: collectives and averaged gradients inside `jax.jit`, on the CPU."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__all__ = ["AverageState", "allreduce", "average", "forget_failed_calls", "metrics"]

if TYPE_CHECKING:
    from .live_metrics import metrics
    from .private import forget_failed_calls
    from .reduction import allreduce
    from .transformation import AverageState, average
else:
    _MODULES = {
        "AverageState": "transformation",
        "allreduce": "reduction",
        "average": "transformation",
        "forget_failed_calls": "private",
        "metrics": "live_metrics",
    }

    def __getattr__(name: str) -> object:
        """Import a name on first use: `versions` is available without JAX."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """List all public names, imported yet or not."""
        return sorted({*globals(), *__all__})
