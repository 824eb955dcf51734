"""Whether weights are right that all ranks share in every step: as a replay of who has contributed to which step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .ending import Ending
from .task import MOMENTUM, Vector, contribution
from .training_replay import replay


@dataclass(frozen=True)
class Means:
    """The check of a strategy by `training_replay.replay`.

    Attributes
    ----------
    sent : str
        What is sent, as there.
    options : mapping
        Of the replay.
    tolerance : float
        By how much weights and residuals may differ, as a share of the largest weight: 0 if sums are of whole numbers,
        and the bits are the same.
    contribution : callable
        What a process contributes to a step.
    """

    sent: str
    options: Mapping[str, float] = field(default_factory=dict)
    tolerance: float = 0.0
    contribution: Callable[[int, int, int], Vector] = contribution

    def __call__(self, ending: Ending) -> str:
        """Give what is wrong; nothing if all is right."""

        def contributions(step: int, members: Sequence[Any]) -> Vector:
            return np.array([self.contribution(ending.ranks, own, step) for own in members])

        steps = ending.steps
        rates = [ending.rate(step) for step in range(len(steps))]
        weights, residuals = replay(
            self.sent, self.options, steps, rates, contributions, MOMENTUM, ending.dtypes, ending.changes
        )
        for number in ending.words:
            with np.load(ending.folder / f"left.{number}.npz") as left:
                for name, wanted in (("weights", weights), ("residuals", residuals[number])):
                    if not _are_same(left[name], wanted, self.tolerance * np.abs(weights).max()):
                        return f"the {name} of process {number} are wrong: {_difference(left[name], wanted)}"
        return ""


def _are_same(found: Vector, wanted: Vector, tolerance: float) -> bool:
    return found.shape == wanted.shape and bool((np.abs(found - wanted) <= tolerance).all())


def _difference(found: Vector, wanted: Vector) -> str:
    if found.shape != wanted.shape:
        return f"{found.size} in place of {wanted.size}"
    apart = np.abs(found - wanted)
    return f"{np.count_nonzero(apart)} of {apart.size} differ, by up to {apart.max():g} of {np.abs(wanted).max():g}"
