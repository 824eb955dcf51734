"""Optimisers whose steps are made by the core, over the gradients of a pool: for NumPy arrays and their like."""

from __future__ import annotations

from .learning_rate import LinearWarmup, scaled_rate
from .loss_scale import LossScale
from .optimizer import LARS, SGD

__all__ = ["LARS", "SGD", "LinearWarmup", "LossScale", "scaled_rate"]
