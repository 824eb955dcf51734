"""What the replays of logs have in common: each process does what its log says, as far as it knows what it needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any

from .log import ContradictionError


class LogReplay(ABC):
    """All processes of a job.

    Attributes
    ----------
    ranks : mapping
        Of the processes, by their names: each has its `log`, and how many entries are `done`.
    """

    ranks: Mapping[Any, Any]

    def _run(self, left: Collection[Any]) -> None:
        """Do what all logs say; raise a `ContradictionError` if a process that is left cannot have done all of its."""
        while sum(self._advance(name) for name in self.ranks):
            pass
        for name in left:
            rank = self.ranks[name]
            if rank.done < len(rank.log):
                raise ContradictionError(f"{name} cannot have done {rank.log[rank.done]}, its entry {rank.done}")

    def _advance(self, name: Any) -> int:
        """Do what the log of a process says, up to what needs others; return how much."""
        rank, before = self.ranks[name], self.ranks[name].done
        while rank.done < len(rank.log) and self._does(name, rank, *rank.log[rank.done]):
            rank.done += 1
        return int(rank.done - before)

    @abstractmethod
    def _does(self, name: Any, rank: Any, kind: str, *entry: Any) -> bool:
        """Do what an entry says; return False if it needs others first."""


__all__ = ["LogReplay"]
