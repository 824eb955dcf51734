"""Places of names beside the ends of lines in pictures."""

from __future__ import annotations

from collections.abc import Sequence


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Return places between 0 and 1 that are at least `gap` apart, with the least squared distance from those wanted.

    Parameters
    ----------
    wanted : sequence of float
        The wanted places, in rising order.
    gap : float
        The least distance of two places; smaller if there is no room for it.
    """
    gap = min(gap, 1 / max(1, len(wanted) - 1))
    blocks: list[list[float]] = []  # wanted places, less the gaps below, of neighbors that touch
    for number, place in enumerate(wanted):
        blocks.append([place - number * gap])
        while len(blocks) > 1 and _mean(blocks[-2]) >= _mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    most = 1 - (len(wanted) - 1) * gap
    lowered = [min(max(_mean(block), 0.0), most) for block in blocks for _ in block]
    return [place + number * gap for number, place in enumerate(lowered)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


__all__ = ["spread"]
