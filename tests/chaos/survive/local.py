"""Whether weights of each rank's own are right: as a replay of what each has done when."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import local_replay, rounds_replay
from .ending import Ending
from .log import ContradictionError, Entries, read
from .task import MOMENTUM, Vector, contribution

Replay = Callable[[Mapping[int, Entries], Collection[int], Callable[..., Vector]], Any]


@dataclass(frozen=True)
class Local:
    """The check of a strategy by the replay of logs.

    Attributes
    ----------
    replay : callable
        Takes the logs, who is left, and what a process contributes to a step; gives something with `ranks`.
    tolerance : float
        By how much weights may differ, as a share of the largest one; 0 if all sums are of whole numbers.
    """

    replay: Replay
    tolerance: float = 0.0

    @classmethod
    def of_exchanges(cls, words: str) -> Local:
        """Return the check by `local_replay.Replay`, of a strategy in these words."""
        return cls(lambda logs, left, gradient: local_replay.Replay(words, logs, left, gradient, MOMENTUM), 1e-4)

    @classmethod
    def of_rounds(cls) -> Local:
        """Return the check by `rounds_replay.Replay`."""
        return cls(rounds_replay.Replay)

    def __call__(self, ending: Ending) -> str:
        """Give what is wrong; nothing if all is right."""

        def own_contribution(own: int, step: int) -> Vector:
            return contribution(ending.ranks, own, step)

        try:
            ranks = self.replay(read(ending.folder), ending.words.keys(), own_contribution).ranks
        except ContradictionError as error:
            return str(error)
        for number in ending.words:
            with np.load(ending.folder / f"left.{number}.npz") as left:
                apart, residuals = np.abs(left["weights"] - ranks[number].weights), left["residuals"]
                if not apart.max() <= self.tolerance * np.abs(left["weights"]).max():
                    return f"the weights of process {number} are wrong, by up to {apart.max():g}"
                if residuals.size and not np.array_equal(residuals, ranks[number].residuals):
                    return f"the residuals of process {number} are wrong"
        return ""


__all__ = ["Local"]
