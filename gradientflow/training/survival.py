"""Training that survives rank failures and admits joining ranks: all ranks agree on the last exchange that has ended.

A rank that missed it copies weights and optimizer state from a rank that completed it; its gradients count as sent. If
no rank has ended the exchange, all drop it. The end of training is an exchange, too. A joining rank counts as late, and
has sent nothing: `membership.plan` decides which rank gives which state to which.

Where each rank trains on weights of its own, an iteration is no exchange. The synchronizer then counts exchanges, and
late ranks get their results. Only joining ranks get the optimizer's state.

The moments of training are in `FixedRanks` (ranks.py), communicators in `ChangingRanks` (changing_ranks.py), counts of
exchanges and the transfer of state in `Survival` (here), and numbers of steps in `Steps` (steps.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, replace
from typing import Any, cast

import numpy as np

from gradientflow.agreement import require_same_as_first
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError, MismatchError, PeerError, RecoverableError
from gradientflow.strategies import Survivable, Synchronizer
from gradientflow.strategies.update import Phase

from .changing_ranks import ChangingRanks, Replica, admits_when_recovering
from .handover import handing_over
from .membership import Membership, Plan, Role, Standing, plan
from .ranks import FixedRanks, Loop
from .steps import Steps

_Change = Callable[[Survivable], object]


class Survival(ChangingRanks):
    """Survival of rank failures: counts completed exchanges, and brings late ranks up to date.

    Parameters as in `ChangingRanks`.
    """

    def __init__(self, comm: Communicator, min_ranks: int | None, replica: Replica) -> None:
        super().__init__(comm, min_ranks, replica)
        self.numbers = Steps()
        # Exchanges that have ended here and were not undone, except exchanges that the synchronizer counts itself.
        self.exchanges = 0
        self._last = Phase.DROPPED  # phase in which the last exchange has ended, AVERAGED if a step follows it
        self._met_after: tuple[int, ...] = ()  # both counts of exchanges when the ranks last met

    def check(self, synchronizer: Synchronizer) -> None:
        """Raise unless survivors can continue with this synchronizer's state."""
        if not isinstance(synchronizer, Survivable):
            name = synchronizer.strategy.name
            message = f"{name} cannot go on without a rank that was lost: it needs on_failure='raise'"
            raise ArgumentError(message)
        synchronizer.check_survival()

    def steps(self, loop: Callable[[], Loop], total: int, finish: Callable[[], object]) -> Iterator[int]:
        """Return an iterator over the numbers of steps; the number of a lost step is given out again."""
        yield from self.numbers.count(total, lambda: self.meet(loop()), finish)

    # ---- moments of an iteration ---------------------------------------------------------------------------------

    def begin_pass(self, passes: int) -> None:
        """Note that an iteration begins: `changed` becomes False."""
        if passes == 0:
            self._check_takes_part()
            if self.changed:
                self.membership = self._membership_before = replace(self.membership, dropped=False)

    def _check_takes_part(self) -> None:
        if self.is_alone and self.role is Role.SEPARATED:
            raise PeerError("a rank was lost while the loop was made: those that are left meet where steps() begins")
        if self.is_alone:
            raise ArgumentError("a rank that has joined others takes part in their training from steps() on")

    def defers(self, error: BaseException) -> bool:
        """Return True for the loss of a rank: `Synchronizer.wait` raises the same error later."""
        return isinstance(error, RecoverableError)

    @contextmanager
    def surviving(self, loop: Loop, *, has_gradients: bool) -> Iterator[None]:
        """Continue with the survivors if ranks are lost in a ``with`` block."""
        try:
            yield
        except RecoverableError:
            self._rebind(loop, self.recover, has_gradients=has_gradients)

    def ended(self, loop: Loop, phase: Phase) -> None:
        """Note that an iteration has ended on this rank, AVERAGED if it has a result for a step."""
        if _of(loop).in_step:
            self.exchanges += 1
            self._last = phase
        self.numbers.ended()

    def after_step(self, loop: Loop) -> None:
        """Let the strategy act after the step. If weights are the rank's own, repeat this after the loss of a rank."""
        while True:
            with self.surviving(loop, has_gradients=False):
                loop.let_write(loop.synchronizer.after_step)
                loop.learn_order()
                return
            if _of(loop).in_step:  # all ranks have made the same step
                return

    # ---- between two steps, and at the end -----------------------------------------------------------------------

    def meet(self, loop: Loop) -> None:
        """Let processes join, between two steps. Collective, if an exchange has ended since the ranks last met.

        Recovery and admission are meetings, too. Where ranks train on weights of their own, joining ranks take part
        from the next step that ends with an exchange, and get all they need before.
        """
        loop.abandon_unfinished()
        if loop.progress.passes > 0:  # gradients still add up
            return
        synchronizer = _of(loop)
        if self.is_alone:
            self._rebind(loop, self._meet_members)
        elif admits_when_recovering(synchronizer):
            if self._has_requests():
                self._rebind(loop, self.recover)  # makes other ranks recover, too
        elif synchronizer.meets_in == "steps" and self._met_after != (self.exchanges, synchronizer.exchanges):
            try:
                if self._admit(synchronizer):
                    self._rebind(loop, lambda _: None)
            except RecoverableError:
                if self.comm.closed:  # too few ranks are left
                    raise
                self._rebind(loop, self.recover)
            self._note_meeting(loop)
        if self.wider is not None and loop.synchronizer.exchanges_weights():
            self._rebind(loop, self._widen)
        loop.progress.forget_update()

    def _note_meeting(self, loop: Loop) -> None:
        self._met_after = (self.exchanges, _of(loop).exchanges)

    def finish(self, loop: Loop, also: Callable[[], object]) -> None:
        """End training on all ranks, and give late ranks another rank's state. No rank waits for ranks that returned.

        Work that all ranks have done is not repeated: its result would differ from the result on ranks that have
        returned.
        """
        self._check_takes_part()
        loop.take_weights()
        loop.abandon_unfinished()
        if self.wider is not None:
            self._rebind(loop, self._widen)
        end, is_done, are_servers = self._all_exchanges + 1, False, _of(loop).meets_in == "servers"
        while self._all_exchanges < end:
            with self.surviving(loop, has_gradients=False):
                if are_servers:  # servers ignore a rank that finishes again
                    loop.let_write(loop.synchronizer.finish)
                if not self.comm.allgather(np.array([is_done])).all():
                    is_done = False
                    if not are_servers:
                        loop.let_write(loop.synchronizer.finish)
                    also()
                    is_done = True
                self.comm.barrier()
                self.finished()
        if loop.progress.phase is Phase.LOST:
            loop.progress.forget_update()

    @property
    def _all_exchanges(self) -> int:  # counts undone exchanges, too: it never decreases
        return self.exchanges + self.numbers.undone

    def finished(self) -> None:
        """Note that all ranks have reached the end of training."""
        self.exchanges += 1
        self._last = Phase.DROPPED

    # ---- other ranks ---------------------------------------------------------------------------------------------

    def _rebind(self, loop: Loop, change: _Change, *, has_gradients: bool = False) -> None:
        """Call `change`, and bind the strategy to the new ranks. Gradients of an iteration that no rank ended are lost.

        If another rank is lost meanwhile, start again with its recovery as the change.
        """
        previous, begins, was_behind, undone = _of(loop), self.is_alone, False, self.numbers.undone
        previous.close(orderly=False)  # ends calls of ranks that wait for this rank
        while True:
            bound: Synchronizer | None = None
            try:
                change(previous)
                with self.catching_up(previous) as found:
                    bound = loop.bound_to_other_ranks()
                was_behind |= self.comm.rank in found.takers
                loop.use(bound, previous)
                break
            except RecoverableError:
                if bound is not None:
                    bound.close(orderly=False)
                if self.comm.closed:  # too few ranks are left
                    raise
                change = self.recover
        loop.restart()
        self._note_meeting(loop)
        if begins or _of(loop).in_step:
            dropped = (has_gradients and not was_behind) or self.numbers.undone > undone
            self.membership = replace(self.membership, dropped=dropped)
            self.numbers.go_back()

    # ---- state that another rank gives ---------------------------------------------------------------------------

    @contextmanager
    def catching_up(self, synchronizer: Survivable) -> Iterator[Plan]:
        """Take the state of a rank that is ahead, if this rank is late. Collective.

        Yields the `Plan` of the transfer. The state travels during the ``with`` block, which may use `comm`, and is
        taken after it: all of it or nothing, since the giver may be lost meanwhile.
        """
        try:
            require_same_as_first(self.comm, self.entries)
        except MismatchError:
            self.comm._end(False)  # other ranks continue without this rank
            raise
        undone = synchronizer.agree_on_state(self.comm, self.role < Role.MEMBER)
        self.exchanges -= undone
        self.numbers.undo(undone)
        standings = self._standings(synchronizer)
        found = plan(standings, dict(self.membership.left))
        own, first = standings[self.comm.rank], standings[found.giver]
        with ExitStack() as stack:
            given = None
            if found.takers:
                takes_part = self.comm.rank in (found.giver, *found.takers)
                part = self.comm.split(0 if takes_part else None, -(own is first))
                if part is not None:
                    mine = self._gift(synchronizer, found) if own is first else None
                    given = stack.enter_context(handing_over(part, mine))
            yield found
        if self.comm.rank in found.takers:
            assert given is not None
            self._take(synchronizer, first, *given.result())
        self.role, self.exchanges, self.has_state = Role.MEMBER, first.exchanges, True
        self._prefetch.end()
        while self._outgrown:
            self._outgrown.pop()._end(False)

    def _standings(self, synchronizer: Survivable) -> list[Standing]:
        """Return the reports of all ranks on themselves. Collective."""
        exchanges = self.exchanges, synchronizer.exchanges
        own = Standing(self.role, *exchanges, self._last.value, self.numbers.next, self.has_state)
        return [Standing(*each) for each in self.comm.allgather(np.array(own)).tolist()]

    def _gift(self, synchronizer: Survivable, found: Plan) -> object:
        """Return the state that late ranks get from this rank."""
        everyone_takes = synchronizer.in_step  # False: only beginning ranks take it
        replica = self._replica.state(everyone_takes) if everyone_takes or found.gives_replica else None
        return replica, astuple(self.membership), synchronizer.shared_state(found.gives_arrays)

    def _take(
        self, synchronizer: Survivable, first: Standing, replica: object, membership: Any, shared: object
    ) -> None:
        begins = self.role < Role.MEMBER
        if first.last == Phase.AVERAGED.value and not begins:  # otherwise this rank has sent nothing
            synchronizer.commit()
        if begins or synchronizer.in_step:
            if replica is not None:  # otherwise sent in advance
                self._replica.load(replica, begins)
            self._last, self.numbers.next = Phase(first.last), first.next_step
        synchronizer.catch_up(shared, begins)
        if begins:
            self.membership = replace(Membership(*membership), rank=self.comm.rank)


def _of(loop: Loop) -> Survivable:
    """Return the loop's synchronizer, which `Survival.check` has accepted."""
    return cast("Survivable", loop.synchronizer)


def ranks_of(comm: Communicator, on_failure: str, min_ranks: int | None, replica: Replica) -> FixedRanks:
    """Return the ranks of a training: a `Survival` if `on_failure` is "continue".

    Raises
    ------
    gradientflow.errors.ArgumentError
        If `on_failure` is neither "raise" nor "continue", or `min_ranks` has no use.
    """
    return Survival(comm, min_ranks, replica) if check_on_failure(on_failure, min_ranks) else FixedRanks(comm)


def check_on_failure(on_failure: str, min_ranks: int | None) -> bool:
    """Return True to continue without lost ranks; raise if the arguments do not go together."""
    if on_failure not in ("raise", "continue"):
        raise ArgumentError(f"on_failure is 'raise' or 'continue', not {on_failure!r}")
    if min_ranks is not None and on_failure == "raise":
        raise ArgumentError("min_ranks goes with on_failure='continue'")
    return on_failure == "continue"


__all__ = ["Survival", "check_on_failure", "ranks_of"]
