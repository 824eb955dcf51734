"""Communicators of a training whose ranks change: recovery, admission, and state sent in advance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, TypeVar

from gradientflow.agreement import Kinds
from gradientflow.arguments import checked_int
from gradientflow.communicator import Communicator
from gradientflow.errors import RecoverableError
from gradientflow.plain import Plain
from gradientflow.strategies import Survivable

from .alone import alone
from .membership import Membership, Role
from .prefetch import StatePrefetch, take_prefetched
from .ranks import FixedRanks

_Made = TypeVar("_Made")


class Replica(NamedTuple):
    """State that is the same on all ranks, beside the strategy's: weights, optimizer state and so on."""

    state: Callable[[bool], object]  # returns the state as a plain value; True: with weights
    load: Callable[[Plain, bool], object]  # loads another rank's state; True: the rank begins, and loads all of it


class ChangingRanks(FixedRanks):
    """Ranks that may be lost or join. A joining rank makes its loop alone, and takes part when its steps begin.

    Where each rank trains on weights of its own, joining ranks get all state that they need while members train, up to
    the step with the next exchange. Until then members have two communicators: their own, and a wider one with joining
    ranks.

    Parameters
    ----------
    comm : Communicator
        Ranks that take part.
    min_ranks : int, optional
        As in `Communicator.recover`.
    replica : Replica
        State that a late rank gets from another rank.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the communicator cannot be recovered.
    """

    may_change = True

    def __init__(self, comm: Communicator, min_ranks: int | None, replica: Replica) -> None:
        super().__init__(comm)
        self._min_ranks = None if min_ranks is None else checked_int("min_ranks", min_ranks, 1)
        comm._native.check_recoverable(self._min_ranks)
        self._given, self._replica = comm, replica
        self.wider: Communicator | None = None  # adds joining ranks at its end; used from the next exchange on
        self._outgrown: list[Communicator] = []  # former communicators, kept until all ranks use the wider one
        self._prefetch = StatePrefetch()
        self.role = Role.MEMBER
        # True on a joining rank that has taken the state sent in advance, and on a member as long as the state sent to
        # joining ranks is current.
        self.has_state = True
        former = comm.recovered_from
        if former is not None and len(former) < comm.size:
            self._work_alone(Role.JOINING if comm.rank >= len(former) else Role.FOUNDING)

    def _work_alone(self, role: Role) -> None:
        """Give this rank a communicator of its own, on which it makes its loop."""
        self.role, self.here, self.has_state = role, alone(self.comm._config), False

    @property
    def is_alone(self) -> bool:
        """True until this rank takes part with the ranks that admitted it."""
        return self.here is not self.comm

    def make(self, make: Callable[[Communicator], _Made]) -> _Made:
        """Return the result of a function of the communicator `here`. Collective, except on joining ranks.

        If a rank is lost meanwhile, the function is called on this rank alone. This rank then takes part later, as
        joining ranks do.
        """
        try:
            return make(self.here)
        except RecoverableError:
            if self.is_alone:
                raise
            self._work_alone(Role.SEPARATED)
            return make(self.here)

    # ---- ranks that are lost -------------------------------------------------------------------------------------

    def recover(self, synchronizer: Survivable) -> None:
        """Make a communicator of the survivors. Collective over the survivors."""
        if self.wider is not None:
            self._widen(synchronizer)
        self._use(self.comm.recover(self._min_ranks))
        self._send_prefetched(self.comm, {}, None)
        self._admit_all(synchronizer)

    def _meet_members(self, synchronizer: Survivable) -> None:
        """Move from this rank's own communicator to one with the ranks that have admitted it. Collective."""
        self.here.close()
        self.here = self.comm
        if self.role is Role.SEPARATED:
            self.recover(synchronizer)
            return
        self._send_prefetched(self.comm, {}, None)
        self.membership = replace(self.membership, ranks=tuple(range(len(self.comm.recovered_from or ()))))
        if self.role is Role.JOINING:
            self._take_prefetched(synchronizer)
        self._admit_all(synchronizer)

    def _widen(self, synchronizer: Survivable) -> None:
        """Continue on the wider communicator, with the admitted ranks."""
        assert self.wider is not None
        wider, self.wider = self.wider, None
        self._outgrown.append(self.comm)
        self._use(wider)

    def _use(self, made: Communicator) -> None:
        before = self.membership
        ranks = before.ranks if self.changed else tuple(range(before.size))  # ranks when the last iteration began
        former = (*ranks, *(None for _ in range(before.size - len(ranks))))  # joining ranks have no former rank
        lost = ((former[rank], why) for rank, why in made.lost)
        left = (*(before.left if self.changed else ()), *((rank, why) for rank, why in lost if rank is not None))
        stayed = tuple(rank for each in made.recovered_from or () if (rank := former[each]) is not None)
        self.comm = self.here = made
        self.membership = Membership(made.rank, made.size, stayed, left)

    # ---- ranks that join -----------------------------------------------------------------------------------------

    def _has_requests(self) -> bool:
        """Return True on rank 0 if a process waits to be admitted; False on all other ranks."""
        return self.comm.rank == 0 and self.comm._admission is not None and self.comm._admission.has_pending()

    def _admit_all(self, synchronizer: Survivable) -> None:
        """Admit processes until none waits, unless this strategy admits processes between two steps.

        Some ranks may use a communicator because they have admitted processes, and other ranks because their admission
        has failed. So all ranks call this function first on each communicator.
        """
        while admits_when_recovering(synchronizer) and self._admit(synchronizer):
            pass

    def _admit(self, synchronizer: Survivable) -> bool:
        """Admit processes, if any wait; return True if they take part at once. Collective."""
        trains_on, kept = synchronizer.meets_in == "steps" and not synchronizer.in_step, list[Communicator]()
        try:
            made = self.comm._admit(self._min_ranks, (lambda: kept.append(_same(self.comm))) if trains_on else None)
        except BaseException:
            for each in kept:
                each._end(False)
            raise
        if made is self.comm:
            return False
        changing = self._replica.state(False) if trains_on and made.rank == 0 else None
        self._send_prefetched(
            made, self.entries, changing, synchronizer.shared_state(True) if changing is not None else None
        )
        if trains_on:
            self.comm = self.here = kept[0]
            self.wider, self.has_state = made, True
        else:
            self._use(made)
        return not trains_on

    def _send_prefetched(self, made: Communicator, entries: Kinds, changing: object, lasting: object = None) -> None:
        """Send joining ranks of a communicator, if any, their state in advance, from its rank 0.

        ``{}`` and None carry no state: they only end the wait of `_take_prefetched`, and `catching_up` gives the state
        later.
        """
        if made.rank == 0 and made.size > len(made.recovered_from or ()):
            self._prefetch.begin(made, (dict(entries), changing), lasting)

    def _take_prefetched(self, synchronizer: Survivable) -> None:
        (entries, replica), shared = take_prefetched(self.comm)
        if replica is not None and entries == self.entries:
            self._replica.load(replica, True)
            synchronizer.catch_up(shared, True)
            self.has_state = True

    def allow_step(self) -> None:
        """Wait until the optimizer's state may change."""
        self._prefetch.wait_for_copies()

    def note_that_state_was_loaded(self) -> None:
        """Note that the state sent to joining ranks in advance is no longer current."""
        self.has_state = False

    def close(self, orderly: bool = True) -> None:
        """Close the communicators that were made here."""
        if self.is_alone:
            self.here._end(orderly)
        if self.wider is not None:
            self.wider._end(orderly)
        if self.comm is not self._given:
            self.comm._end(orderly)


def _same(comm: Communicator) -> Communicator:
    """Return another communicator of the same ranks, which outlives this one. Collective."""
    made = comm.split(0)
    assert made is not None
    return made


def admits_when_recovering(synchronizer: Survivable) -> bool:
    """Return True if processes are admitted during a recovery, as if a rank had been lost, not between two steps."""
    return synchronizer.meets_in in ("rounds", "servers")


__all__ = ["ChangingRanks", "Replica", "admits_when_recovering"]
