"""Ranks that take part in a training, their roles, and the transfer of state between them.

All ranks take part in each exchange. A rank that has ended an exchange knows that all ranks have sent their parts, so
ranks are at most one exchange apart. `plan` is a pure function of the reports of all ranks, so each rank finds the same
plan.
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
    """The ranks that take part, and the ranks lost in the last change.

    Attributes
    ----------
    rank, size : int
        This process's rank now, and the number of ranks.
    ranks : tuple of int
        The former rank of each rank that stayed, in order. Joining ranks follow.
    left : tuple of (int, str)
        The former rank of each rank that was lost, and the reason.
    dropped : bool
        True if this rank's gradients of the current or last iteration are lost: no step was made with them.
    """

    rank: int
    size: int
    ranks: tuple[int, ...] = ()
    left: tuple[tuple[int, str], ...] = ()
    dropped: bool = False

    @property
    def joined(self) -> range:
        """The ranks that have joined."""
        return range(len(self.ranks), self.size)

    @classmethod
    def of(cls, comm: Communicator) -> Membership:
        """Return the membership of a communicator's ranks, none of them lost."""
        return cls(comm.rank, comm.size, tuple(range(comm.size)))


class Role(IntEnum):
    """The role of a rank in a training. The larger role gives its state to the smaller."""

    JOINING = 0  # admitted to a running training, without weights
    SEPARATED = 1  # made its loop alone, with weights of its own, since a rank was lost meanwhile
    FOUNDING = 2  # made its loop with weights of its own, while processes joined the job
    MEMBER = 3  # has the weights on which all ranks agree; its exchanges count


class Standing(NamedTuple):
    """A rank's report on itself: whole numbers, which all ranks exchange."""

    role: int  # a Role
    exchanges: int  # exchanges that have ended on the rank, except exchanges that its synchronizer counts itself
    own_exchanges: int  # exchanges that its synchronizer counts: `Survivable.exchanges`
    last: int  # Phase in which the last exchange has ended: AVERAGED if it has a result for a step
    next_step: int  # number of the step that follows the last exchange
    has_state: int  # 1 if the state sent in advance was taken (joining rank) or given and is still current (member)

    @property
    def place(self) -> tuple[int, int, int]:
        """The progress of the rank. A rank with the largest progress gives its state."""
        return self[:3]


class Plan(NamedTuple):
    """The transfer of state from one rank to all that are behind it."""

    giver: int  # first of the ranks with the most progress
    takers: tuple[int, ...]  # ranks that take its state
    gives_replica: bool  # weights and optimizer state are given under every strategy: a taker begins without them
    gives_arrays: bool  # arrays of the strategy are given: False if all takers got them in advance


def plan(standings: Sequence[Standing], lost: Collection[int] = ()) -> Plan:
    """Return the transfer of state that brings all ranks up to date.

    Parameters
    ----------
    standings : sequence of Standing
        The reports of all survivors.
    lost : collection of int
        The former ranks of lost ranks.

    Raises
    ------
    gradientflow.errors.CommunicationError
        If no rank has weights to give. The error is no `RecoverableError`: training cannot continue.
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
