"""Recovery of a parameter server after a loss of ranks: the state after the last round that all its servers have."""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gradientflow._location import core
from gradientflow.agreement import gather
from gradientflow.communicator import Communicator
from gradientflow.errors import CommunicationError

Array = npt.NDArray[np.float32]

_ROUNDS = 3  # number of rounds that servers keep: they are at most two rounds apart


class ServerState(NamedTuple):
    """Arrays and counts of all servers after a round, each with one element per weight."""

    round: int
    rows: list[Array]


class Recovery:
    """Assembles the state of a parameter server from the parts that the survivors have.

    Each server has its own part and, with ``replicas=1``, a copy of another server's part. A server made after a
    recovery counts its rounds from the round with which it began.

    Parameters
    ----------
    native : object
        The core's parameter server.
    rows : int
        Number of arrays and counts in the server's state.
    elements : int
        Number of weights.
    in_step : bool
        True if each round has a push of every worker: all parts are then taken after the same round, the last that all
        servers have. Otherwise the latest part of each server is taken.

    Attributes
    ----------
    ended : int or None
        Number of rounds that this rank knows to have ended, if only ended rounds count.
    is_known : bool
        True if the servers have the weights with which training began, and not weights given earlier.
    state : State or None
        The whole state, on ranks that have it.
    """

    def __init__(self, native: core.ParameterServer, rows: int, elements: int, *, in_step: bool) -> None:
        self._native = native
        self._rows = rows
        self._elements = elements
        self._in_step = in_step
        self._number = 0  # number of this parameter server in the sequence of recoveries
        self._last_number = 0  # largest such number of all ranks
        self._first_round = 0
        self._position = _Position(0, 0)
        self._last_kept = 0  # `kept` of the rank with the latest position
        self.ended: int | None = None
        self.is_known = False
        self.state: ServerState | None = None
        native.make_recoverable(_ROUNDS if in_step else 0)

    def find(self, comm: Communicator, *, is_new: bool = False) -> ServerState | None:
        """Return the state from which to continue, the same on all ranks; None if nothing was pushed yet. Collective.

        The parameter server must be closed.

        Parameters
        ----------
        comm : Communicator
            Survivors and joiners.
        is_new : bool
            True if this rank is a joiner, whose own state does not count.

        Raises
        ------
        gradientflow.errors.CommunicationError
            On every rank, if a part of the state is lost.
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
            rows = [self._row_of_copies(row, own) for row in range(self._rows)]
        else:
            round_, owner = max(whole)
            rows = self.state.rows if self.state is not None and comm.rank == -owner else []
        rows = [row.copy() for row in rows] or [np.zeros(self._elements, np.float32) for _ in range(self._rows)]
        for row in rows:
            comm.allreduce(row.view(np.int32))  # one rank has the bits of an element, all other ranks zero
        self.state = ServerState(round_, rows)
        return self.state

    def keep(self, rows: list[Array]) -> None:
        """Keep the whole state, until an iteration has ended."""
        self.state = ServerState(self.ended or 0, rows)
        self._position = _Position(self._position.kept + 1, 0)

    def note_end(self) -> None:
        """Note that an iteration has ended here, or may have ended on other ranks."""
        self.state = None
        self._position = _Position(self._position.kept, self._position.since + 1)
        self.ended = None if self.ended is None else self.ended + 1

    def follow(self, former: Recovery) -> None:
        """Continue the counts of a former parameter server, whose state the new server takes over."""
        self._number = self._last_number = former._last_number + 1
        self._position = _Position(former._last_kept + 1, 0)
        self.state, self.is_known = former.state, former.state is not None
        self._first_round = 0 if former.state is None else former.state.round
        if former.ended is not None:
            self.ended = self._first_round

    def _is_newer(self, whole: list[tuple[int, int]], parts: list[_Part]) -> bool:
        """Return True if a rank has the whole state and parts may be older: newer parts may be lost with ranks."""
        return bool(whole) and (not self._in_step or max(whole)[0] >= parts[0].round)

    def _absolute(self, rounds: list[int]) -> list[int]:
        return [each + self._first_round for each in rounds]

    def _row_of_copies(self, row: int, parts: list[_Part]) -> Array:
        values = np.zeros(self._elements, np.float32)
        for part in parts:
            self._native.read_copy(part.server, part.round - self._first_round, row, values)
        return values


class _Position(NamedTuple):
    """Progress of a rank: how often it kept the whole state, and the number of iterations ended since."""

    kept: int
    since: int


class _Part(NamedTuple):
    """Choice of a rank that gives a server's part, and of the round after which the part is taken."""

    server: int
    round: int
    rank: int


def _parts(holdings: list[list[list[int]]], servers: int, ended: int | None, *, in_step: bool) -> list[_Part] | int:
    """Return the rank and round of each server's part; if a part is lost, the number of its server.

    A part is lost if no rank has it. With `in_step`, a part is also lost if there is no round after which all parts are
    available.
    """
    found: list[dict[int, int]] = [{} for _ in range(servers)]  # for each server, a rank with its part by round
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


__all__ = ["Recovery", "ServerState"]
