"""A straight-line replay of hpsgd from logs of what each rank has done when.

The entries of a log, each a list that begins with its kind:

- "gradient": the number of the step that it is for;
- "step": the number of a step that was made;
- "train": a step on the replica;
- "round": the number of the round that ends, or 0, who takes part in it, and whether the step's gradient is added up;
- "send": the number of a round that begins, or begins anew, and who takes part in it;
- "catch up": the number of the last round that has ended on the rank whose weights are taken;
- "weights": the checksum of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from .log import ContradictionError, Entries
from .log_replay import LogReplay
from .task import RATE, SIZES, Vector
from .telling import checksum


class Rank:
    """A process: its weights, the sum of its gradients that it has not sent, and the sums that it has."""

    def __init__(self, log: Entries) -> None:
        self.log = log
        self.done = 0
        self.gradient, self.weights, self.sums = np.zeros((3, sum(SIZES)), np.float32)
        self.sent: dict[int, Vector] = {}


class Replay(LogReplay):
    """All processes of a job.

    Parameters
    ----------
    logs : mapping
        Of the processes, also those that have died, by their names.
    left : collection of names
        Of the processes that have not died.
    contribution : callable
        Takes the name of a process and what is in its entry of a step; gives its gradient.

    Attributes
    ----------
    common : list of arrays
        The common weights after each round.

    Raises
    ------
    ContradictionError
        If the logs of those that are left do not fit to each other.
    """

    def __init__(self, logs: Mapping[Any, Entries], left: Collection[Any], contribution: Callable[..., Vector]) -> None:
        self.ranks = {name: Rank(log) for name, log in logs.items()}
        self.common = [np.zeros(sum(SIZES), np.float32)]
        self._left, self._contribution = left, contribution
        self._members: dict[int, Sequence[Any]] = {}
        for name in sorted(logs, key=lambda name: name not in left):  # who dies may have been alone with a result
            for kind, *entry in logs[name]:
                if kind == "round" and entry[0]:
                    known = self._members.setdefault(entry[0], entry[1])
                    if name in left and known != entry[1]:
                        raise ContradictionError(f"either {known} or {entry[1]} have taken part in round {entry[0]}")
        self._run(left)
        for name in left:
            rank = self.ranks[name]
            if rank.sums.any() or max(rank.sent, default=0) >= len(self.common):
                raise ContradictionError(f"{name} has gradients left that are in no round")

    def _does(self, name: Any, rank: Rank, kind: str, *entry: Any) -> bool:
        if kind == "step":
            return True
        if kind == "gradient":
            rank.gradient = self._contribution(name, *entry)
        elif kind == "train":
            rank.sums = rank.sums + rank.gradient
            rank.weights = rank.weights - np.float32(RATE) * rank.gradient
        elif kind == "send":
            if entry[0] not in rank.sent:
                rank.sent[entry[0]], rank.sums = rank.sums, np.zeros_like(rank.sums)
        elif kind == "weights":
            if name in self._left and entry[0] != checksum(rank.weights):
                raise ContradictionError(f"{name} has other weights than it should at its entry {rank.done}")
        else:
            assert kind in ("round", "catch up")
            number = entry[0]
            if not self._is_known(number):
                return False
            if number:
                rank.weights = self.common[number]
            if kind == "round" and entry[2]:
                rank.sums = rank.sums + rank.gradient
        return True

    def _is_known(self, number: int) -> bool:
        """Find the common weights after a round, if all have sent their sums."""
        while len(self.common) <= number:
            following = len(self.common)
            members = self._members.get(following, ())
            sums = [self.ranks[name].sent.get(following) for name in members if name in self.ranks]
            if not members or len(sums) < len(members) or any(each is None for each in sums):
                return False
            mean = sum(sums) / np.float32(len(sums))
            self.common.append(self.common[-1] - np.float32(RATE) * mean)
        return True


__all__ = ["Replay"]
