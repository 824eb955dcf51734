"""The training that newcomers join, and the same in a straight line: from how many ranks took which step."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

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
