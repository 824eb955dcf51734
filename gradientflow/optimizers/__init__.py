"""Optimisers whose steps are made by the core, over the gradients of a pool: for NumPy arrays and their like."""

from __future__ import annotations

from gradientflow.training import LossScale

from .learning_rate import LinearWarmup, scaled_rate
from .optimizer import LARS, SGD, Adam, AdamW

__all__ = ["LARS", "SGD", "Adam", "AdamW", "LinearWarmup", "LossScale", "scaled_rate"]
