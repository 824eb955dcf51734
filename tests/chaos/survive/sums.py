"""What ranks add up that call the collectives themselves, and the same in a straight line, by which it is checked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .ending import Ending
from .telling import checksum

Weights = NDArray[np.float64]

LENGTHS = (5, 2000, 5, 50_000, 5, 2000, 5, 200_000)  # of the steps in turn: every way that messages take
_PATTERN = np.arange(max(LENGTHS), dtype=np.float64) % 7


def gradient(own: int, step: int) -> Weights:
    """Give what a rank contributes to a step: small whole numbers, so that sums are exact in any order."""
    return _PATTERN[: LENGTHS[step % len(LENGTHS)]] * (own + 1) + step % 5


def new_weights() -> Weights:
    """Give the weights before the first step."""
    return np.zeros(max(LENGTHS))


def add(weights: Weights, total: Weights) -> None:
    """Take a step."""
    weights[: total.size] += total


def replayed(steps: Sequence[Sequence[int]]) -> int:
    """Give the checksum of the weights after steps to which these have contributed."""
    weights = new_weights()
    for step, members in enumerate(steps):
        add(weights, sum(gradient(own, step) for own in members))  # type: ignore[arg-type]
    return checksum(weights)


def problem(ending: Ending) -> str:
    """Give what is wrong with the sums; nothing if they have the bits of the replay."""
    return "the sums are wrong" if replayed(ending.steps) != next(iter(ending.words.values()))["checksum"] else ""
