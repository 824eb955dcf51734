"""The training that newcomers join, and the same in a straight line: from how many ranks took which step."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
History = Sequence[tuple[int, int]]  # from which step on how many ranks took part

RATE, MOMENTUM = 2.0**-10, 0.5  # powers of two: products are exact, so a step rounds only its two sums

# Random whole numbers that are repeated over all tensors. The period is a prime, so a piece that lands in the wrong
# place is noticed, and a replay needs one period only.
_PERIOD = 65_521
_PATTERN = np.random.default_rng(0).integers(-8, 9, _PERIOD).astype(np.float32)
_TENSORS = 8


def pattern(count: int) -> Floats:
    """Give so many values."""
    return np.resize(_PATTERN, count)


def split(values: Floats) -> list[Floats]:
    """Give the tensors that lie one behind the other in an array."""
    return np.array_split(values, _TENSORS)


def factor(step: int, rank: int, size: int) -> float:
    """Give the pattern's factor in a rank's gradient: a multiple of the number of ranks, so that means are exact."""
    return float((rank + 1) * size * (step % 5 + 1) * (-1) ** step)


def checksum(arrays: Sequence[Floats]) -> int:
    """Identify arrays by their bits."""
    found = 0
    for array in arrays:
        found = zlib.crc32(np.ascontiguousarray(array).data.cast("B"), found)
    return found


def replayed(history: History, steps: int, count: int) -> tuple[int, int]:
    """Give the checksums of so many weights, and of their momentum, after so many steps."""
    weights, momentum = _PATTERN.copy(), np.zeros_like(_PATTERN)
    ends = [*(start for start, _ in history[1:]), steps]
    for (start, size), end in zip(history, ends, strict=True):
        for step in range(start, end):
            mean = sum(factor(step, rank, size) for rank in range(size)) / size
            momentum = np.float32(MOMENTUM) * momentum + np.float32(mean) * _PATTERN
            weights = weights - np.float32(RATE) * momentum
    return checksum([np.resize(weights, count)]), checksum([np.resize(momentum, count)])


def replayed_apart(history: History, steps: int, count: int, strategy: Any) -> tuple[Floats, list[int]]:
    """Give some of the weights, and the checksums of the momenta, where ranks exchange weights every few steps.

    A rank that was lost is noticed in the exchange: it has no part in it, though the steps before were those of a job
    of its size. A newcomer has the common weights, and the momentum of the first rank, of the exchange before.
    """

    def size_in(step: int) -> int:
        return next(size for start, size in reversed(history) if start <= step)

    common, velocity, given = _PATTERN.copy(), np.zeros_like(_PATTERN), np.zeros_like(_PATTERN)
    weights, momenta = list[Floats](), list[Floats]()
    for step in range(steps):
        size = size_in(step)
        for _ in range(len(momenta), size):
            weights.append(common.copy())
            momenta.append(given.copy())
        for rank in range(size):
            momenta[rank] = np.float32(MOMENTUM) * momenta[rank] + np.float32(factor(step, rank, size)) * _PATTERN
            weights[rank] -= np.float32(RATE) * momenta[rank]
        if (step + 1) % strategy.period == 0:
            del weights[size_in(step + 1) :], momenta[size_in(step + 1) :]
            mean = sum(common - each for each in weights) / np.float32(len(weights))
            velocity = np.float32(strategy.outer_momentum) * velocity + mean
            direction = mean + np.float32(strategy.outer_momentum) * velocity if strategy.nesterov else velocity
            common = common - np.float32(strategy.outer_rate) * direction
            weights, given = [common.copy() for _ in weights], momenta[0]
    return np.resize(common, count)[places(count)], [checksum([np.resize(each, count)]) for each in momenta]


def places(count: int) -> NDArray[np.int64]:
    """Give the places of the weights that are compared one by one, in all tensors."""
    return np.linspace(0, count - 1, 1000).astype(np.int64)


def is_near(found: Sequence[float], weights: Floats) -> bool:
    """Tell whether weights differ by rounding only."""
    return np.allclose(found, weights, rtol=1e-4, atol=1e-4)
