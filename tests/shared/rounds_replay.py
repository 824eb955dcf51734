"""A straight-line replay of hpsgd from logs of what each rank has done when.

The entries of a log, each a list that begins with its kind:

- "step": a number, a rank and how many there are, as for `gradient`;
- "train": a step on the replica;
- "round": the number of the round that ends, or 0, who takes part in it, and whether the step's gradient is added up;
- "send": the number of a round that begins, or begins anew, and who takes part in it;
- "catch up": the number of the last round that has ended on the rank whose weights are taken;
- "weights": the checksum of the weights.
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from local_replay import UNKNOWN, Log, Vector, are_same
from survival_replay import FLOATS, RATE, SIZES, gradient
from survivors import Fate, Left, logs_and_rest, rounded, run_ranks


def checksum(weights: Vector) -> int:
    """Identify weights by their bits."""
    return zlib.crc32((weights + 0).tobytes())  # there is no -0 in it


class Rank:
    """A process: its weights, the sum of its gradients that it has not sent, and the sums that it has."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.done = 0
        self.gradient, self.weights, self.sums = np.zeros((3, sum(SIZES)), np.float32)
        self.sent: dict[int, Vector] = {}


class Replay:
    """All processes of a job.

    Parameters
    ----------
    logs : mapping
        Of the processes, also those that have died, by their names.
    left : names
        Of those that have not.

    Attributes
    ----------
    common : list of arrays
        The common weights after each round.
    """

    def __init__(self, logs: Mapping[str, Log], left: Collection[str]) -> None:
        self.ranks = {name: Rank(log) for name, log in logs.items()}
        self.common = [np.zeros(sum(SIZES), np.float32)]
        self._left = left
        self._members: dict[int, Sequence[str]] = {}
        for name in sorted(logs, key=lambda name: name not in left):  # who dies may have been alone with a result
            for kind, *entry in logs[name]:
                if kind == "round" and entry[0]:
                    known = self._members.setdefault(entry[0], entry[1])
                    assert name not in left or are_same(known, entry[1])  # all agree on who has taken part
        for kind, *entry in itertools.chain(*logs.values()):
            if kind == "send" and UNKNOWN not in entry[1] and are_same(entry[1], self._members.get(entry[0], ())):
                self._members[entry[0]] = entry[1]
        while sum(self._advance(name) for name in self.ranks):
            pass
        for name in left:
            rank = self.ranks[name]
            assert rank.done == len(rank.log), (name, rank.log[rank.done])
            assert not rank.sums.any()
            assert max(rank.sent, default=0) < len(self.common)

    def _advance(self, name: str) -> int:
        """Do what the log of a rank says, up to what needs others; return how much."""
        rank, before = self.ranks[name], self.ranks[name].done
        while rank.done < len(rank.log) and self._does(name, rank, *rank.log[rank.done]):
            rank.done += 1
        return rank.done - before

    def _does(self, name: str, rank: Rank, kind: str, *entry: Any) -> bool:
        if kind == "step":
            rank.gradient = gradient(*entry)
        elif kind == "train":
            rank.sums = rank.sums + rank.gradient
            rank.weights = rank.weights - np.float32(RATE) * rank.gradient
        elif kind == "send":
            if entry[0] not in rank.sent:
                rank.sent[entry[0]], rank.sums = rank.sums, np.zeros_like(rank.sums)
        elif kind == "weights":
            assert name not in self._left or entry[0] == checksum(rank.weights), (name, rank.done)
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
            mean = sum(sums) / np.float32(len(sums))  # type: ignore[arg-type]
            self.common.append(self.common[-1] - np.float32(RATE) * mean)
        return True


def train(
    program: Sequence[str],
    folder: Path,
    ranks: int,
    fates: Sequence[Fate],
    dtypes: Sequence[str] = FLOATS,
    *,
    restart: bool = False,
) -> Left:
    """Run the command of tests/programs/rounds_survival.py, or of one like it.

    Return what is left, which is to the bit that of a replay.
    """
    folder.mkdir()
    run_ranks(program, ranks, folder, "hpsgd", json.dumps(fates), *dtypes, restart=restart)
    logs, left = logs_and_rest(folder)
    replay = Replay(logs, left)
    for found in left.values():
        assert np.array_equal(found["masters"], replay.common[-1])
        assert np.array_equal(found["weights"], rounded(found["masters"], dtypes))
    return left


__all__ = ["Replay", "checksum", "train"]
