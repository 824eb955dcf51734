"""What is left of a parameter server when ranks are lost: the state after the last round that all its servers have."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gradientflow.agreement import gather
from gradientflow.communicator import Communicator
from gradientflow.errors import CommunicationError

Array = npt.NDArray[np.float32]

_ROUNDS = 3  # that servers keep: they are at most two rounds apart


class State(NamedTuple):
    """Arrays and counts of all servers, each with an element for every weight, after a round."""

    round: int
    rows: list[Array]


class Recovery:
    """Puts the state of a parameter server together from what the ranks that are left have of it.

    Each server has its own part, and with ``replicas=1`` copies of another one's. A server that was made after a
    recovery counts its rounds from the one with which it began.

    Parameters
    ----------
    native : object
        The core's parameter server.
    rows : int
        How many arrays and counts its state has.
    elements : int
        How many weights.
    in_step : bool
        Whether each round has a push of every worker: then the servers' parts are those after one round, the last that
        all of them have. Else they are the latest.

    Attributes
    ----------
    ended : int or None
        The rounds of which this rank knows that they have ended, where only those are to count.
    is_known : bool
        Whether the servers have the weights with which training began, and not others that were given before.
    state : State or None
        The whole state, on ranks that have it.
    """

    def __init__(self, native: Any, rows: int, elements: int, *, in_step: bool) -> None:
        self._native = native
        self._rows = rows
        self._elements = elements
        self._in_step = in_step
        self._number = 0  # of parameter servers, each made from what was left of the one before
        self._last_number = 0  # of those of all ranks
        self._first_round = 0
        self._position = _Position(0, 0)
        self._last_kept = 0  # by any rank
        self.ended: int | None = None
        self.is_known = False
        self.state: State | None = None
        native.make_recoverable(_ROUNDS if in_step else 0)

    def find(self, comm: Communicator, *, is_new: bool = False) -> State | None:
        """Return the state with which to go on, the same on all ranks; None if nothing was pushed yet. Collective.

        The parameter server has to be closed.

        Parameters
        ----------
        comm : Communicator
            The ranks that are left, and newcomers.
        is_new : bool
            Whether this rank has come later, so that what it has does not count.

        Raises
        ------
        gradientflow.errors.CommunicationError
            On every rank, if a part of it is lost.
        """
        mine = {
            "number": -1 if is_new else self._number,
            "position": (-1, 0) if is_new else self._position,
            "ended": self.ended,
            "is_known": self.is_known,
            "servers": self._native.servers,
            "holdings": [] if is_new else [(s, *self._absolute(rounds)) for s, *rounds in self._native.holdings()],
            "state": None if is_new or self.state is None else self.state.round,
        }
        everyone = [json.loads(each) for each in gather(comm, json.dumps(mine).encode())]
        self._last_number = last = max(each["number"] for each in everyone)
        latest = max(each["position"] for each in everyone)
        self._last_kept = latest[0]
        if not any(each["is_known"] and each["number"] >= 0 for each in everyone):
            self.state = None
            return None
        ended = [each["ended"] for each in everyone if each["number"] >= 0 and each["ended"] is not None]
        parts = _parts(
            [each["holdings"] if each["number"] == last else [] for each in everyone],
            next(each["servers"] for each in everyone if each["number"] == last),
            max(ended) if ended else None,
            in_step=self._in_step,
        )
        whole = [
            (each["state"], -rank)
            for rank, each in enumerate(everyone)
            if each["state"] is not None and (self._in_step or each["position"] == latest)
        ]
        if isinstance(parts, int) and not whole:
            raise CommunicationError(
                f"the weights of server {parts} are lost with its rank: with replicas=1 another rank keeps copies of "
                "them, unless both are lost; start again from a checkpoint"
            )
        if not isinstance(parts, int) and not self._is_newer(whole, parts):
            round_ = max(each.round for each in parts)
            own = [each for each in parts if each.rank == comm.rank]
            rows = [self._salvaged(row, own) for row in range(self._rows)]
        else:
            round_, owner = max(whole)
            rows = self.state.rows if self.state is not None and comm.rank == -owner else []
        rows = [row.copy() for row in rows] or [np.zeros(self._elements, np.float32) for _ in range(self._rows)]
        for row in rows:
            comm.allreduce(row.view(np.int32))  # one rank has the bits of an element, all others zero
        self.state = State(round_, rows)
        return self.state

    def keep(self, rows: list[Array]) -> None:
        """Keep the whole state, until an iteration has ended."""
        self.state = State(self.ended or 0, rows)
        self._position = _Position(self._position.kept + 1, 0)

    def note_end(self) -> None:
        """Note that an iteration has ended, or may have on others."""
        self.state = None
        self._position = _Position(self._position.kept, self._position.since + 1)
        self.ended = None if self.ended is None else self.ended + 1

    def follow(self, former: Recovery) -> None:
        """Count on from another parameter server, of which this one has got the state."""
        self._number = self._last_number = former._last_number + 1
        self._position = _Position(former._last_kept + 1, 0)
        self.state, self.is_known = former.state, former.state is not None
        self._first_round = 0 if former.state is None else former.state.round
        if former.ended is not None:
            self.ended = self._first_round

    def _is_newer(self, whole: list[tuple[int, int]], parts: list[_Part]) -> bool:
        """Tell whether a rank has the whole state, and parts of it may be of before: ranks may have left with it."""
        return bool(whole) and (not self._in_step or max(whole)[0] >= parts[0].round)

    def _absolute(self, rounds: list[int]) -> list[int]:
        return [each + self._first_round for each in rounds]

    def _salvaged(self, row: int, parts: list[_Part]) -> Array:
        values = np.zeros(self._elements, np.float32)
        for part in parts:
            self._native.salvage(part.server, part.round - self._first_round, row, values)
        return values


class _Position(NamedTuple):
    """How far a rank is: how often it has kept the whole state, and how many iterations have ended since."""

    kept: int
    since: int


class _Part(NamedTuple):
    """Which rank gives the part of which server, after which round."""

    server: int
    round: int
    rank: int


def _parts(holdings: list[list[list[int]]], servers: int, ended: int | None, *, in_step: bool) -> list[_Part] | int:
    """Choose who gives which part; return the first server whose part nobody has, or not after the same round."""
    found: list[dict[int, int]] = [{} for _ in range(servers)]  # of each server, who has its part after a round
    for rank, each in reversed([*enumerate(holdings)]):
        for server, first, last in each:
            found[server] |= dict.fromkeys(range(first, last + 1), rank)
    if not all(found):
        return found.index({})
    rounds = [max(each) for each in found]
    if in_step:
        common = {each for each in set.intersection(*map(set, found)) if ended is None or each <= ended}
        if not common:
            return rounds.index(min(rounds))
        rounds = [max(common)] * servers
    return [_Part(server, each, found[server][each]) for server, each in enumerate(rounds)]


__all__ = ["Recovery", "State"]
