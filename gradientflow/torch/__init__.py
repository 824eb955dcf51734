"""GradientFlow for PyTorch: an optimizer that averages gradients over the ranks, and a process group."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .registration import register

if TYPE_CHECKING:
    from .bucket_means import mean_hook
    from .elastic_sampler import ElasticSampler
    from .group_metrics import metrics
    from .lars import LARS
    from .optimizer import DistributedOptimizer
    from .parameters import broadcast_optimizer_state, broadcast_parameters

# Imported on first use, because every `import torch` imports this module to register the process group.
_PLACES = {
    "LARS": ".lars",
    "DistributedOptimizer": ".optimizer",
    "ElasticSampler": ".elastic_sampler",
    "broadcast_optimizer_state": ".parameters",
    "broadcast_parameters": ".parameters",
    "mean_hook": ".bucket_means",
    "metrics": ".group_metrics",
}

register()


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name], __name__), name)


__all__ = [
    "LARS",
    "DistributedOptimizer",
    "ElasticSampler",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "mean_hook",
    "metrics",
    "register",
]
