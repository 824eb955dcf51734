"""Going on with other ranks, when some are lost or come: all agree on the last exchange that has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gradientflow.agreement import require_same_as_first
from gradientflow.arguments import checked_int
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError, CommunicationError, MismatchError, PeerError, RecoverableError
from gradientflow.strategies import Synchronizer

from .alone import alone
from .handover import handing_over
from .head_start import HeadStart, take_head_start
from .steps import Steps

_NO_WEIGHTS, _NO_COMMON_WEIGHTS = -2, -1  # exchanges of newcomers; and of those that make a loop with newcomers


_Made = TypeVar("_Made")


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


class Replica(NamedTuple):
    """What is the same on all ranks beside the strategy's state, such as weights and optimizer state."""

    state: Callable[[bool], Any]  # returns it, a plain value, with weights or without
    load: Callable[[Any, bool], object]  # takes it, of another rank; all of it on a rank that begins


class Survival:
    """What a rank knows of its exchanges, so that it can go on with others when some are lost.

    All ranks take part in each exchange, so a rank that has ended one knows that all have sent what they had to: ranks
    are at most one exchange apart. Those that are behind get the weights and the optimizer's state of one that is not,
    and keep what they have sent as sent. If none has ended an exchange, it is dropped on all. The end of training is an
    exchange, too. A newcomer is a rank that is behind, and has sent nothing. It makes its loop alone, and comes to the
    others when its steps begin.

    Where each rank trains on weights of its own, an iteration is no exchange. The synchronizer counts them, and ranks
    that are behind get what follows from an exchange: only newcomers get the optimizer's state. They get all they need
    while the others train on, up to the step with the next exchange: until then these have two communicators, one of
    their own, and one with the newcomers.

    Parameters
    ----------
    comm : Communicator
        Whose ranks take part.
    min_ranks : int, optional
        As in `Communicator.recover`.
    replica : Replica
        What ranks that are behind get from another.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the communicator cannot be recovered.

    Attributes
    ----------
    comm : Communicator
        Whose ranks take part now.
    wider : Communicator or None
        With newcomers that take part from the next exchange on; the ranks of `comm` are the first.
    here : Communicator
        On which the loop is made: the same, or where newcomers are in it, one of this rank alone.
    exchanges : int
        That have ended, beside those of the synchronizer; less than 0 on a rank that has not come to the others yet.
    entries : mapping of str to str
        What has to be the same on all ranks, by name.
    undone : int
        How many exchanges that had ended here do not count, since they were undone.
    is_behind : bool
        Whether this rank was behind, when the ranks last compared themselves.
    changed : bool
        Whether ranks were lost, or have come, since the last iteration began: the same on all ranks between two.
    membership : Membership
        The ranks now.
    steps : Steps
        The numbers of steps.
    """

    def __init__(self, comm: Communicator, min_ranks: int | None, replica: Replica) -> None:
        self._min_ranks = None if min_ranks is None else checked_int("min_ranks", min_ranks, 1)
        comm._native.check_recoverable(self._min_ranks)
        self.comm = comm
        self.wider: Communicator | None = None
        self._head_start: HeadStart | None = None
        self._narrow: Communicator | None = None  # that was used beside the wider one
        self._replica = replica
        self.entries: Mapping[str, str] = {}
        self.is_behind = False
        self.changed = False
        self.membership = Membership.of(comm)
        self.steps = Steps()
        former = comm.recovered_from
        self.is_apart = former is not None and len(former) < comm.size
        self.here = alone(comm._config) if self.is_apart else comm
        self.exchanges = 0
        if former is not None and self.is_apart:
            self.exchanges = _NO_WEIGHTS if comm.rank >= len(former) else _NO_COMMON_WEIGHTS
        self._awaits_head_start = self.exchanges == _NO_WEIGHTS
        self._has_lost = False  # a rank, before the loop was made
        self._has_state = not self.is_apart
        self.undone = 0
        self._was_applied = False  # whether the last of them has a result for a step
        self._has_undone = False  # some that had ended here
        self._made: Communicator | None = None  # here
        self._met_after = (-1, 0)  # exchanges

    def make(self, make: Callable[[Communicator], _Made]) -> _Made:
        """Return what a function makes of the communicator `here`. Collective, except on newcomers.

        If a rank is lost meanwhile, it is made alone. This rank then comes to the others as newcomers do.
        """
        try:
            return make(self.here)
        except RecoverableError:
            if self.is_apart:
                raise
            self.is_apart = self._has_lost = True
            self.here = alone(self.comm._config)
            self.exchanges, self._has_state = _NO_COMMON_WEIGHTS, False
            return make(self.here)

    def check_takes_part(self) -> None:
        """Raise an error on a rank that has not come to the others yet."""
        if self._has_lost and self.is_apart:
            raise PeerError("a rank was lost while the loop was made: those that are left meet where steps() begins")
        if self.is_apart:
            raise ArgumentError("a rank that has joined others takes part in their training from steps() on")

    def begin(self) -> None:
        """Note that an iteration begins, with the changes so far."""
        if self.changed:
            self.changed = False
            self.membership = replace(self.membership, dropped=False)

    def ended(self, applied: bool, is_exchange: bool) -> None:
        """Note that an iteration has ended on this rank, with a result for a step or without."""
        if is_exchange:
            self.exchanges += 1
            self._was_applied = applied
        self.steps.ended()

    def finished(self) -> None:
        """Note that training has ended on this rank, with all ranks there."""
        self.exchanges += 1
        self._was_applied = False

    def recover(self, synchronizer: Synchronizer) -> None:
        """Make a communicator of the ranks that are left. Collective over these."""
        if self.wider is not None:
            self.widen()
        self._use(self.comm.recover(self._min_ranks))
        self._greet(self.comm, {}, None)
        self._admit_all(synchronizer)

    def someone_waits(self) -> bool:
        """Tell on rank 0 whether a newcomer waits; False on all others."""
        return self.comm.rank == 0 and self.comm._door is not None and self.comm._door.someone_waits()

    def _admit_all(self, synchronizer: Synchronizer) -> None:
        """Let newcomers in until none waits, if that is not done between two steps.

        Some ranks may be on a communicator because they have let newcomers in, and others because that has failed for
        them: so it is the first thing that all do on each.
        """
        if not lets_in_when_recovering(synchronizer):
            return
        try:
            self._take_head_start(synchronizer)
            while self.admit(synchronizer):
                pass
        except RecoverableError:
            if self.comm.closed:  # too few are left
                raise
            self.recover(synchronizer)

    def admit(self, synchronizer: Synchronizer) -> bool:
        """Let newcomers in, if any wait; return whether they take part at once. Collective."""
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
        self._greet(made, self.entries, changing, synchronizer.shared_state(True) if changing is not None else None)
        if trains_on:
            self.comm, self.here, self.wider, self._has_state = kept[0], kept[0], made, True
        else:
            self._use(made)
        return not trains_on

    def _greet(self, made: Communicator, entries: Mapping[str, str], changing: Any, lasting: Any = None) -> None:
        """Give newcomers of a communicator what they get before they take part, on its rank 0."""
        if made.rank == 0 and made.size > len(made.recovered_from or ()):
            self._end_head_start()
            self._head_start = HeadStart(made, (dict(entries), changing), lasting)

    def _end_head_start(self) -> None:
        if self._head_start is not None:
            self._head_start.end()
            self._head_start = None

    def widen(self) -> None:
        """Go on with the newcomers that were let in."""
        assert self.wider is not None
        self._narrow, wider, self.wider = self.comm, self.wider, None
        self._use(wider)

    def allow_step(self) -> None:
        """Wait until the optimizer's state may change."""
        if self._head_start is not None:
            self._head_start.wait_for_copies()

    def note_that_state_was_loaded(self) -> None:
        """Note that newcomers have been given a state that is no longer the current one."""
        self._has_state = False

    def have_met(self, synchronizer: Synchronizer) -> bool:
        """Tell whether no exchange has ended since the ranks have last met: the same on all between two."""
        return self._met_after == (self.exchanges, synchronizer.exchanges)

    def meet(self, synchronizer: Synchronizer) -> None:
        """Note that the ranks have met."""
        self._met_after = (self.exchanges, synchronizer.exchanges)

    def come(self, synchronizer: Synchronizer) -> None:
        """Leave the communicator of this rank alone. Collective over those that have let it in, and it."""
        self.is_apart = False
        self.here.close()
        self.here = self.comm
        if self._has_lost:
            self.recover(synchronizer)
            return
        self._greet(self.comm, {}, None)
        self.membership = replace(self.membership, ranks=tuple(range(len(self.comm.recovered_from or ()))))
        self.changed = True
        self._admit_all(synchronizer)

    def _use(self, made: Communicator) -> None:
        before = self.membership
        ranks = before.ranks if self.changed else tuple(range(before.size))  # at the last call of `begin`
        former = (*ranks, *(None for _ in range(before.size - len(ranks))))  # newcomers were none
        gone = ((former[rank], why) for rank, why in made.lost)
        left = (*(before.left if self.changed else ()), *((rank, why) for rank, why in gone if rank is not None))
        stayed = tuple(rank for each in made.recovered_from or () if (rank := former[each]) is not None)
        self.comm = self.here = self._made = made
        self.membership = Membership(made.rank, made.size, stayed, left)
        self.changed = True

    def go_back(self, dropped: bool) -> None:
        """Note that the iteration under way has no step here, and whether gradients of this rank are lost with it."""
        self.membership = replace(self.membership, dropped=dropped or self._has_undone)
        self._has_undone = False
        self.steps.go_back()

    @contextmanager
    def catching_up(self, synchronizer: Synchronizer) -> Iterator[None]:
        """Take what a rank that is ahead has, if this one is behind: `is_behind` tells. Collective.

        It travels during the ``with`` block, which may use `comm`, and is taken after it: all of it, or nothing, for
        the rank that is ahead may be lost meanwhile.
        """
        self._take_head_start(synchronizer)
        try:
            require_same_as_first(self.comm, "models", self.entries)
        except MismatchError:
            self.comm._end(False)  # the others go on without this one
            raise
        undone = synchronizer.recover(self.comm, self.exchanges < 0)
        if undone:
            self.exchanges -= undone
            self.undone += undone
            self.steps.undo(undone)
            self._has_undone = True
        own = _Standing(self.exchanges, synchronizer.exchanges, self._was_applied, self.steps.next, self._has_state)
        everyone = [_Standing(*each) for each in self.comm.allgather(np.array(own)).tolist()]
        first = max(everyone, key=lambda each: each[:2])
        if first.exchanges == _NO_WEIGHTS:
            message = "all ranks that had weights to give to newcomers have died"
            raise CommunicationError(message)  # no RecoverableError: there is nothing to go on with
        if first.exchanges < 0 and self._has_lost and 0 in dict(self.membership.left):
            message = "rank 0 has died before its weights, with which all begin, had reached another rank"
            raise CommunicationError(message)
        is_leader = self.comm.rank == everyone.index(first)
        exchanges = max(first.exchanges, 0)
        self.is_behind = not is_leader and own[:2] < (exchanges, first.weights_exchanged)
        are_some = first.exchanges < 0 or any(each[:2] != first[:2] for each in everyone)
        with ExitStack() as stack:
            given = None
            part = self.comm.split(0 if is_leader or self.is_behind else None, -is_leader) if are_some else None
            if part is not None:
                mine = self._given(synchronizer, first, everyone) if is_leader else None
                given = stack.enter_context(handing_over(part, mine))
            yield
        if self.is_behind:
            assert given is not None
            self._take(synchronizer, first, *given.result())
        self.exchanges, self._has_state = exchanges, True
        self._end_head_start()
        if self._narrow is not None:
            self._narrow._end(False)
            self._narrow = None

    def _take_head_start(self, synchronizer: Synchronizer) -> None:
        if not self._awaits_head_start or self.comm.rank == 0:
            return
        self._awaits_head_start = False
        (entries, replica), shared = take_head_start(self.comm)
        if replica is not None and entries == self.entries:
            self._replica.load(replica, True)
            synchronizer.catch_up(shared, True)
            self._has_state = True

    def _given(self, synchronizer: Synchronizer, own: _Standing, everyone: Sequence[_Standing]) -> Any:
        """Return what the ranks that are behind get from this one."""
        behind = [each for each in everyone if each[:2] != own[:2] or each.exchanges < 0]
        lack_all = [each for each in behind if each.exchanges < 0 and not (each.has_state and own.has_state)]
        have_head_start = not lack_all and all(each.exchanges < 0 for each in behind)
        all_take_replica = synchronizer.in_step  # else those that begin
        replica = self._replica.state(all_take_replica) if all_take_replica or lack_all else None
        return replica, astuple(self.membership), synchronizer.shared_state(not have_head_start)

    def _take(
        self, synchronizer: Synchronizer, first: _Standing, replica: Any, membership: Sequence[Any], shared: Any
    ) -> None:
        begins, all_take_replica = self.exchanges < 0, synchronizer.in_step
        if first.was_applied and not begins:  # else it has sent nothing
            synchronizer.settle()
        if begins or all_take_replica:
            if replica is not None:  # else it has had a head start
                self._replica.load(replica, begins)
            self._was_applied, self.steps.next = bool(first.was_applied), first.next
        synchronizer.catch_up(shared, begins)
        if begins:
            self.membership = replace(Membership(*membership), rank=self.comm.rank)

    def close(self, orderly: bool = True) -> None:
        """Close the communicators that were made here."""
        if self.is_apart:
            self.here._end(orderly)
        if self.wider is not None:
            self.comm._end(orderly)
            self.wider._end(orderly)
        elif self._made is not None:
            self._made._end(orderly)


class _Standing(NamedTuple):
    """What a rank says of itself."""

    exchanges: int
    weights_exchanged: int  # exchanges of the synchronizer
    was_applied: int
    next: int  # step
    has_state: int  # or could give what is current to newcomers


def _same(comm: Communicator) -> Communicator:
    """Return another communicator of the same ranks, which lives on when this one is closed. Collective."""
    made = comm.split(0)
    assert made is not None
    return made


def lets_in_when_recovering(synchronizer: Synchronizer) -> bool:
    """Tell whether newcomers are let in as if a rank had been lost, not between two steps."""
    return synchronizer.meets_in in ("rounds", "servers")


def check_on_failure(on_failure: str, min_ranks: int | None) -> bool:
    """Return whether to go on without ranks that are lost.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If it is neither "raise" nor "continue", or `min_ranks` has no use.
    """
    if on_failure not in ("raise", "continue"):
        raise ArgumentError(f"on_failure is 'raise' or 'continue', not {on_failure!r}")
    if min_ranks is not None and on_failure == "raise":
        raise ArgumentError("min_ranks goes with on_failure='continue'")
    return on_failure == "continue"


__all__ = ["Membership", "Replica", "Survival", "check_on_failure", "lets_in_when_recovering"]
