"""The compression ratio with which communication hides behind backpropagation (LAGS-SGD, section 5, equation 19)."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gradientflow._location import core


class Cost(Protocol):
    """The time of calls."""

    def seconds(self, elements: float, /) -> float:
        """Return the seconds of a call with this number of elements."""


@dataclass(frozen=True)
class Stage:
    """Layers that are sent together, and the computation that can hide their communication.

    Attributes
    ----------
    elements : tuple of int
        Elements of each layer.
    selecting_seconds : float
        Seconds of selecting and scattering.
    computing_seconds : float or None
        Seconds of backpropagation of the next stage; None if there is none, or it was not measured.
    """

    elements: tuple[int, ...]
    selecting_seconds: float
    computing_seconds: float | None

    def entries(self, ratio: float) -> int:
        """Return the number of elements that are sent with a ratio."""
        return sum(core.k_of(count, ratio) for count in self.elements)


def adaptive_ratio(stage: Stage, dense: Cost, sparse: Cost, ranks: int, max_ratio: float) -> float:
    """Return the smallest ratio with which communication hides behind backpropagation, at most `max_ratio`.

    Ratio 1 means a dense allreduce, without selection. Between 1 and the number of ranks an allgather of entries costs
    more than this allreduce, so no such ratio is chosen. The last stage takes `max_ratio`, as does a stage whose
    communication cannot be hidden.

    Parameters
    ----------
    stage : Stage
        The layers that are sent.
    dense, sparse : Cost
        Costs of an allreduce, by elements, and of an allgather, by the entries of a rank.
    ranks : int
        Number of ranks.
    max_ratio : float
        The largest ratio, 1 or more.
    """
    time = stage.computing_seconds
    if time is None:
        return max_ratio
    if dense.seconds(sum(stage.elements)) <= time:
        return 1.0
    left = time - stage.selecting_seconds
    ratios = range(max(2, ranks), math.floor(max_ratio) + 1)
    place = bisect_left(ratios, True, key=lambda ratio: sparse.seconds(stage.entries(ratio)) <= left)
    return float(ratios[place]) if place < len(ratios) else max_ratio


def stages_of(counts: Sequence[int], least: int) -> list[range]:
    """Return the tensors of each stage, in order: a stage ends with a large tensor, of at least `least` elements.

    Smaller tensors, such as biases, belong to the stage of the next large tensor, or to the last stage if none follows.
    """
    ends = [index + 1 for index, count in enumerate(counts) if count >= least]
    if not ends:
        return [range(len(counts))] if counts else []
    return [range(begin, end) for begin, end in zip([0, *ends], [*ends[:-1], len(counts)], strict=False)]


__all__ = ["Stage", "adaptive_ratio", "stages_of"]
