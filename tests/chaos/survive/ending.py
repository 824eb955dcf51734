"""What is left of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .task import FLOATS, RATE

History = Sequence[tuple[int, Sequence[int]]]  # after how many steps, who has contributed to the next ones


@dataclass(frozen=True)
class Ending:
    """What those that went on to the end have left.

    Attributes
    ----------
    folder : Path
        With their files.
    ranks : int
        How many ranks the job had at its beginning.
    hits : int
        How many times ranks were ended.
    words : mapping
        The last of each, by the number of its process: the same on all.
    dtypes : sequence of str
        Of the tensors.
    rate : callable
        Gives the learning rate of a step.
    """

    folder: Path
    ranks: int
    hits: int
    words: Mapping[int, Mapping[str, Any]]
    dtypes: Sequence[str] = FLOATS
    rate: Callable[[int], float] = lambda _: RATE

    @property
    def changes(self) -> set[int]:
        """The steps before which ranks were lost or have come."""
        return changes(next(iter(self.words.values()))["history"])

    @property
    def steps(self) -> list[Sequence[int]]:
        """Who has contributed to each step."""
        said = next(iter(self.words.values()))
        return expanded(said["history"], said["steps"])


def changes(history: History) -> set[int]:
    """Return the steps before which ranks were lost or have come."""
    return {start for start, _ in history[1:]}


def expanded(history: History, steps: int) -> list[Sequence[int]]:
    """Return who has contributed to each of so many steps."""
    ends = [*(start for start, _ in history[1:]), steps]
    return [members for (start, members), end in zip(history, ends, strict=True) for _ in range(start, end)]
