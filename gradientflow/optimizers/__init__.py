"""Optimizers for NumPy and similar arrays. The core makes the steps, with the gradients of a pool or an `ArrayLoop`."""

from __future__ import annotations

from gradientflow.training import LossScale

from .learning_rate import LinearWarmup, scaled_rate
from .optimizer import LARS, SGD, Adam, AdamW

__all__ = ["LARS", "SGD", "Adam", "AdamW", "LinearWarmup", "LossScale", "scaled_rate"]
