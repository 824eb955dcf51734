"""Ranks of a training: which of them take part, in which roles, and which gives its state to which.

All ranks take part in each exchange, so a rank that has ended one knows that all have sent their part of it: ranks are
at most one exchange apart. `plan` is a pure function of what all ranks say of themselves, so each rank finds the same.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from gradientflow.communicator import Communicator
from gradientflow.errors import CommunicationError


@dataclass(frozen=True)
class Membership:
    """The ranks that take part, and what their last change has cost.

    Attributes
    ----------
    rank, size : int
        The rank of this process now, and how many there are.
    ranks : tuple of int
        The former ranks of those that stayed, in the order of their ranks. Newcomers come behind them.
    left : tuple of (int, str)
        The former ranks of those that were lost, and why.
    dropped : bool
        Whether the gradients of this rank in the current or last iteration are lost: no step was made with them.
    """

    rank: int
    size: int
    ranks: tuple[int, ...] = ()
    left: tuple[tuple[int, str], ...] = ()
    dropped: bool = False

    @property
    def joined(self) -> range:
        """The ranks that have come."""
        return range(len(self.ranks), self.size)

    @classmethod
    def of(cls, comm: Communicator) -> Membership:
        """Return the ranks of a communicator, of which none was lost."""
        return cls(comm.rank, comm.size, tuple(range(comm.size)))


class Role(IntEnum):
    """The role of a rank in a training. Of two roles the larger one gives its state to the other."""

    JOINING = 0  # let in by the other ranks; it has no weights
    SEPARATED = 1  # a rank was lost while the loop was made: it has made it alone, with weights of its own
    FOUNDING = 2  # others join the job while the loop is made, with weights of its own
    MEMBER = 3  # its weights are those that all have agreed on, and its exchanges count


class Standing(NamedTuple):
    """A rank's report on itself: whole numbers, which all ranks exchange."""

    role: int  # a Role
    exchanges: int  # those that have ended on it, beside those that its synchronizer counts
    own_exchanges: int  # those that its synchronizer counts
    last: int  # the Phase in which the last one has ended: AVERAGED if it has a result for a step
    next_step: int  # the number of the step that follows it
    has_state: int  # whether it has the state that joining ranks are sent beforehand, or has given the current one

    @property
    def place(self) -> tuple[int, int, int]:
        """How far the rank has come, in the order of what it can give."""
        return self[:3]


class Plan(NamedTuple):
    """The transfer of state from one rank to all that are behind it."""

    giver: int  # the first of the ranks that have come furthest
    takers: tuple[int, ...]  # ranks that take its state
    gives_replica: bool  # weights and optimizer state are given under every strategy: a taker begins without them
    gives_arrays: bool  # arrays of the strategy are given: False if all takers were sent them beforehand


def plan(standings: Sequence[Standing], lost: Collection[int] = ()) -> Plan:
    """Return which rank gives which state to which.

    Parameters
    ----------
    standings : sequence of Standing
        Of all ranks that are left.
    lost : collection of int
        The former ranks that were lost.

    Raises
    ------
    gradientflow.errors.CommunicationError
        If no rank has weights to give. It is no `RecoverableError`: nothing is left to go on with.
    """
    giver = max(range(len(standings)), key=lambda rank: (standings[rank].place, -rank))
    first = standings[giver]
    if first.role == Role.JOINING:
        raise CommunicationError("all ranks that had weights to give to newcomers have died")
    if first.role == Role.SEPARATED and 0 in lost:
        message = "rank 0 has died before its weights, with which all begin, had reached another rank"
        raise CommunicationError(message)
    takers = [
        rank
        for rank, each in enumerate(standings)
        if rank != giver and (each.place < first.place or first.role < Role.MEMBER)
    ]
    begin = [standings[rank] for rank in takers if standings[rank].role < Role.MEMBER]
    gives_replica = any(not (each.has_state and first.has_state) for each in begin)
    return Plan(giver, tuple(takers), gives_replica, gives_replica or len(begin) < len(takers))


__all__ = ["Membership", "Plan", "Role", "Standing", "plan"]
