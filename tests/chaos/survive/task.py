"""What ranks train: tensors, the rules of a step, and gradients of whole numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Vector = np.ndarray[Any, np.dtype[np.float32]]

SHAPES = [(32, 20), (112,), (16,)]
SIZES = [math.prod(shape) for shape in SHAPES]
FLOATS = ("float32",) * len(SHAPES)
RATE = 0.5  # of a step
MOMENTUM = 0.5  # powers of two, so that products are exact
_THIN = np.random.default_rng(0).integers(-1, 2, (sum(SHAPES[0]), 2)).astype(np.float32)
_LEFT, _RIGHT = _THIN[: SHAPES[0][0]], _THIN[SHAPES[0][0] :].T


def numbers(unit: int, *seed: int) -> Vector:
    """Return random gradients of all tensors, one after the other: whole numbers of `unit`."""
    return (unit * np.random.default_rng(seed).integers(-3, 4, sum(SIZES))).astype(np.float32)


def contribution(ranks: int, own: int, step: int) -> Vector:
    """Return what a process contributes to a step, of which the means over up to `ranks` are whole numbers, too.

    The first tensor is a matrix of rank 2, as all means of it are: products of two thin matrices are what they stand
    for. Otherwise powersgd would be chaotic, and rounding would soon grow to errors as large as the weights.
    """
    unit = math.lcm(*range(1, ranks + 1))
    found = numbers(unit, step, own)
    middle = np.clip(found[:4].reshape(2, 2), -unit, unit) + 5 * unit * np.eye(2, dtype=np.float32)
    found[: SIZES[0]] = ((-1) ** step * _LEFT @ middle @ _RIGHT).ravel()
    return found


def flat(arrays: Sequence[Any]) -> Any:
    """Return all entries of arrays, one after the other."""
    return np.concatenate([np.zeros(0, np.float32), *(each.ravel() for each in arrays)])
