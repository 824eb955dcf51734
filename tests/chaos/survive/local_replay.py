"""A straight-line replay of training on weights of each rank's own, from logs of what each has done when.

The entries of a log, each a list that begins with its kind:

- "gradient": the number of the step that it is for;
- "step": the same, once it is made;
- "send": the number of an exchange, its fragment, and the names of those that take part in it;
- "end": the same, once its result is applied; the fragment is None for the mean of weights at the end of training;
- "give": the name of a gift: ranks that begin get the state of this one;
- "catch up": the numbers of exchanges that have ended here and on the rank whose state is taken, and its gift on a rank
  that begins.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from gradientflow.strategies import as_strategy
from gradientflow.strategies.methods.sparse_loco import decode, encode

from .log import ContradictionError, Entries
from .log_replay import LogReplay
from .task import RATE, SIZES, Vector

_PARTS = {None: slice(None), (1, 0): slice(None), (2, 0): slice(0, SIZES[0]), (2, 1): slice(SIZES[0], None)}


class Rank:
    """A process: its weights, the momentum of its optimizer, and its residuals."""

    def __init__(self, log: Entries, dtype: str) -> None:
        self.log = log
        self.done = 0
        self.weights, self.momentum, self.residuals, self.left = np.zeros((4, sum(SIZES)), dtype)
        self.last_sends: dict[int, int] = {}  # of each exchange: the entry with what counts
        self.sent: dict[int, int | None] = {}  # the exchanges that have not ended here, and their fragments


class Replay(LogReplay):
    """All processes of a job.

    Parameters
    ----------
    strategy : str
        The words of a strategy that exchanges weights every few steps.
    logs : mapping
        Of the processes, also those that have died, by their names.
    left : collection of names
        Of the processes that have not died.
    contribution : callable
        Takes the name of a process and what is in its entry of a step; gives its gradient.
    momentum : float
        Of the steps.

    Raises
    ------
    ContradictionError
        If the logs of those that are left do not fit to each other.
    """

    def __init__(
        self,
        strategy: str,
        logs: Mapping[Any, Entries],
        left: Collection[Any],
        contribution: Callable[..., Vector],
        momentum: float = 1.0,
    ) -> None:
        self.strategy: Any = as_strategy(strategy)
        self.is_sparse = hasattr(self.strategy, "decay")  # of residuals
        dtype = "float32" if self.is_sparse else "float64"
        self.ranks = {name: Rank(log, dtype) for name, log in logs.items()}
        self.members: dict[int, Sequence[Any]] = {}
        self._contribution, self._factor = contribution, np.dtype(dtype).type(momentum)
        self._find_members(left)
        self._given: dict[tuple[Any, ...], Vector] = {}
        self._values: dict[int, dict[Any, Vector]] = {}  # that were sent
        zeros = np.zeros(sum(SIZES), dtype)
        self._common = [(zeros, zeros)]  # weights and the outer momentum, after each exchange
        self._run(left)

    def _find_members(self, left: Collection[Any]) -> None:
        """Find who has taken part in each exchange: one who died may have been alone with a result.

        Those that have ended more exchanges have gone on from that of an exchange.
        """
        ended = {
            name: [(entry[1], entry[3]) for entry in rank.log if entry[0] == "end"] for name, rank in self.ranks.items()
        }
        for name in sorted(ended, key=lambda name: (name not in left, -max((e for e, _ in ended[name]), default=-1))):
            for exchange, members in ended[name]:
                known = self.members.setdefault(exchange, members)
                if name in left and known != members:
                    raise ContradictionError(f"either {known} or {members} have taken part in exchange {exchange}")
        for rank in self.ranks.values():  # what is sent anew to the same ones takes the place of what was sent before
            for place, (kind, *entry) in enumerate(rank.log):
                if kind == "send" and entry[2] == self.members.get(entry[0]):
                    rank.last_sends[entry[0]] = place

    def _does(self, name: Any, rank: Rank, kind: str, *entry: Any) -> bool:
        if kind == "gradient":
            return True
        if kind == "step":
            rank.momentum = self._factor * rank.momentum + self._contribution(name, *entry)
            rank.weights = rank.weights - rank.weights.dtype.type(RATE) * rank.momentum
        elif kind == "give":
            self._given[tuple(entry[0])] = rank.momentum
        elif kind == "send":
            self._send(name, rank, *entry)
        elif kind == "end":
            return self._ends(rank, entry[0], entry[0] + 1)
        else:
            assert kind == "catch up"
            first, last, gift = entry
            if gift is None:
                return self._ends(rank, first, last)
            if tuple(gift) not in self._given or not self._is_known(last):
                return False
            rank.weights, rank.momentum = self._common[last][0], self._given[tuple(gift)]
        return True

    def _send(self, name: Any, rank: Rank, exchange: int, fragment: int | None, _: Sequence[Any]) -> None:
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
            self._is_known(exchange)
            values = self._common[min(exchange, len(self._common) - 1)][0][part] - rank.weights[part]
        if rank.last_sends.get(exchange) == rank.done:
            self._values.setdefault(exchange, {})[name] = values

    def _is_known(self, exchanges: int) -> bool:
        """Find the common weights after so many exchanges, if all have sent what they had to."""
        while len(self._common) <= exchanges:
            number = len(self._common) - 1
            sent = self._values.get(number, {})
            if number not in self.members or set(sent) != set(self.members[number]):
                return False
            mean = sum(sent[name] for name in self.members[number])
            mean = mean / mean.dtype.type(len(sent))  # type: ignore[union-attr]
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


__all__ = ["Replay"]
