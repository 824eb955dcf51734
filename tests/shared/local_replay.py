"""A straight-line replay of training on weights of each rank's own, from logs of what each has done when.

The entries of a log, each a list that begins with its kind:

- "step": a number, a rank and how many there are, as for `gradient`;
- "send": the number of an exchange, its fragment, and the names of those that take part in it;
- "end": the same, once its result is applied; the fragment is None for the mean of weights at the end of training;
- "give": the number of exchanges after which others get the state of this rank;
- "catch up": the numbers of exchanges that have ended here and on the rank whose state is taken, and whether it begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from survival_replay import RATE, SIZES, gradient

from gradientflow.strategies import as_strategy
from gradientflow.strategies.methods.sparse_loco import decode, encode

Vector = np.ndarray[Any, Any]
Log = Sequence[Sequence[Any]]

_PARTS = {None: slice(None), (1, 0): slice(None), (2, 0): slice(0, SIZES[0]), (2, 1): slice(SIZES[0], None)}


UNKNOWN = "?"  # in place of names, to those that came later


def are_same(names: Sequence[str], others: Sequence[str]) -> bool:
    """Tell whether two lists of names may be the same."""
    pairs = zip(names, others, strict=False)
    return len(names) == len(others) and all(one == other or UNKNOWN in (one, other) for one, other in pairs)


class Rank:
    """A process: its weights, the momentum of its optimizer, and its residuals."""

    def __init__(self, log: Log, dtype: str) -> None:
        self.log = log
        self.done = 0
        self.weights, self.momentum, self.residuals, self.left = np.zeros((4, sum(SIZES)), dtype)
        self.sent: dict[int, int | None] = {}  # the exchanges that have not ended here, and their fragments


class Replay:
    """All processes of a job.

    Parameters
    ----------
    strategy : str
        The words of a strategy that exchanges weights every few steps.
    logs : mapping
        Of the processes, also those that have died, by their names.
    """

    def __init__(self, strategy: str, logs: Mapping[str, Log]) -> None:
        self.strategy: Any = as_strategy(strategy)
        self.is_sparse = self.strategy.name == "sparse_loco"
        dtype = "float32" if self.is_sparse else "float64"
        self.ranks = {name: Rank(log, dtype) for name, log in logs.items()}
        self.members: dict[int, list[str]] = {}
        for log in logs.values():
            for kind, *entry in log:
                if kind == "end":
                    exchange, _, members = entry
                    known = self.members.setdefault(exchange, members)
                    assert are_same(known, members)  # all agree on who has taken part
                    self.members[exchange] = known if UNKNOWN not in known else members
        self._given: dict[int, Vector] = {}
        self._values: dict[int, dict[str, Vector]] = {}  # that were sent
        zeros = np.zeros(sum(SIZES), dtype)
        self._common = [(zeros, zeros)]  # weights and the outer momentum, after each exchange
        while sum(self._advance(name) for name in self.ranks):
            pass
        for name, rank in self.ranks.items():
            assert rank.done == len(rank.log), (name, rank.log[rank.done])

    def _advance(self, name: str) -> int:
        """Do what the log of a rank says, up to what needs others; return how much."""
        rank, before = self.ranks[name], self.ranks[name].done
        while rank.done < len(rank.log) and self._does(name, rank, *rank.log[rank.done]):
            rank.done += 1
        return rank.done - before

    def _does(self, name: str, rank: Rank, kind: str, *entry: Any) -> bool:
        if kind == "step":
            rank.momentum = rank.momentum + gradient(*entry)
            rank.weights = rank.weights - rank.weights.dtype.type(RATE) * rank.momentum
        elif kind == "give":
            self._given[entry[0]] = rank.momentum
        elif kind == "send":
            self._send(name, rank, *entry)
        elif kind == "end":
            return self._ends(rank, entry[0], entry[0] + 1)
        else:
            assert kind == "catch up"
            first, last, begins = entry
            if not begins:
                return self._ends(rank, first, last)
            if last not in self._given or not self._is_known(last):
                return False
            rank.weights, rank.momentum = self._common[last][0], self._given[last]
        return True

    def _send(self, name: str, rank: Rank, exchange: int, fragment: int | None, members: list[str]) -> None:
        rank.sent[exchange] = fragment
        if fragment is None:
            values = rank.weights
        elif self.is_sparse:
            total = rank.residuals * np.float32(self.strategy.decay) + (self._common[exchange][0] - rank.weights)
            parts = np.split(total, np.cumsum(SIZES)[:-1])
            values = np.concatenate([decode(encode(part), part.size) for part in parts])
            rank.left = total - values
        else:
            part = _PARTS[self.strategy.fragments, fragment]
            known = max(number for number in range(exchange + 1) if self._is_known(number))
            values = self._common[known][0][part] - rank.weights[part]
        if are_same(members, self.members.get(exchange, [])):
            self._values.setdefault(exchange, {})[name] = values

    def _is_known(self, exchanges: int) -> bool:
        """Find the common weights after so many exchanges, if all have sent what they had to."""
        while len(self._common) <= exchanges:
            number = len(self._common) - 1
            sent = self._values.get(number, {})
            if number not in self.members or set(sent) != set(self.members[number]):
                return False
            mean = sum(sent[name] for name in self.members[number])
            mean = mean / mean.dtype.type(len(sent))
            fragment = next(self.ranks[name].sent[number] for name in sent)
            common, velocity = (each.copy() for each in self._common[-1])
            if fragment is None:
                common = mean
            else:
                part, rule = _PARTS[self.strategy.fragments, fragment], self.strategy
                velocity[part] = rule.outer_momentum * velocity[part] + mean
                extra = rule.outer_momentum * velocity[part] if rule.nesterov else velocity[part] - mean
                common[part] -= common.dtype.type(rule.outer_rate) * (mean + extra)
            self._common.append((common, velocity))
        return True

    def _ends(self, rank: Rank, first: int, last: int) -> bool:
        if not self._is_known(last):
            return False
        for number in range(first, last):
            fragment = rank.sent.pop(number)
            part = slice(None) if fragment is None else _PARTS[self.strategy.fragments, fragment]
            own = 0.0 if fragment is None else self.strategy.own_share
            rank.weights = rank.weights.copy()
            rank.weights[part] = own * rank.weights[part] + (1 - own) * self._common[last][0][part]
            if self.is_sparse and fragment is not None:
                rank.residuals = rank.left
        return True


__all__ = ["UNKNOWN", "Log", "Replay", "Vector", "are_same"]
