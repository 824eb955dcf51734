"""A training on whole numbers, and its straight-line replay in NumPy from who took part in which step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradientflow.bench.survive import training_replay
from gradientflow.bench.survive.task import FLOATS, RATE, SHAPES, SIZES, Vector

STEPS = 30
UNIT = 12  # a multiple of all numbers of ranks, so that means are whole numbers
FALLING = [RATE * 0.5 ** (step // 10) for step in range(STEPS)]  # rates


def gradient(step: int, rank: int, size: int) -> Vector:
    """Return what a rank contributes to a step: all of its gradients, one after the other."""
    numbers = np.random.default_rng([step, rank, size]).integers(-3, 4, sum(SIZES))
    return (UNIT * numbers).astype(np.float32)


def replay(
    sent: str,
    options: Mapping[str, Any],
    steps: Sequence[Sequence[Any]],
    rates: Sequence[float] = (RATE,) * STEPS,
    dtypes: Sequence[str] = FLOATS,
) -> tuple[Vector, dict[Any, Vector]]:
    """Return the weights in the end, and the residuals of those who took part in the last step.

    Parameters are those of `training_replay.replay`.
    """

    def gradients(step: int, members: Sequence[Any]) -> Vector:
        return np.array([gradient(step, rank, len(members)) for rank in range(len(members))])

    return training_replay.replay(sent, options, steps, rates, gradients, dtypes=dtypes)


__all__ = ["FALLING", "FLOATS", "RATE", "SHAPES", "SIZES", "STEPS", "gradient", "replay"]
