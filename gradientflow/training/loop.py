"""The training loop of all frameworks: which backward passes are exchanged, and what follows from an exchange."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from gradientflow.agreement import failing_together
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError, NonFiniteError, RecoverableError
from gradientflow.strategies import Layout, Strategy, Synchronizer, Update
from gradientflow.strategies.update import Iteration, SettingsOf

from .batches import Batches
from .binding import bind_together
from .loss_scale import LossScale
from .order import BackwardOrder
from .overlap import Overlap
from .status import Outcome, Status
from .survival import Survival, lets_in_when_recovering
from .tensors import Tensors


class Loop:
    """Drives a synchronizer through the iterations of training: accumulation, gradients that lack, errors, steps.

    Parameters
    ----------
    comm : Communicator
        Whose ranks take part.
    strategy : Strategy
        How the ranks are synchronised.
    layout : Layout
        The layout of the tensors.
    tensors : Tensors
        The framework's adapter for them.
    accumulation_steps : int
        Every n-th backward pass is exchanged; gradients add up in between.
    loss_scale : LossScale or None
        The factor that gradients have to be divided by.
    previous : Synchronizer or None
        A previous synchronizer of the same strategy and some of the tensors, whose state is taken over.
    survival : Survival or None
        With it, the ranks that are left go on when others were lost; else the error is raised.

    Attributes
    ----------
    comm : Communicator
        Whose ranks take part now.
    synchronizer : Synchronizer
        The synchronizer that is driven.
    layout : Layout
        The tensors, in the order of the synchronizer.
    order : list of int
        The tensors whose gradients are final in this iteration, in the order in which they became final.
    used : list of bool
        Which tensors have received a gradient since all were zeroed.
    hold : bool
        Whether the current backward pass only accumulates, without an exchange.
    flushed : bool
        Whether all gradients have been handed to the synchronizer.
    update : Update or None
        The result of the last exchange; None after the step.
    unscaled : bool
        Whether the gradients have been divided by the loss scale.
    overflowed : bool
        Whether gradients were not finite in an exchange since the last step; the next step is skipped then.
    must_zero : bool
        Whether the iteration was dropped, and `zero` has to come first.
    status : Status
        What is sent with the gradients.
    batches : Batches
        Which ranks have batches left.
    backward_order : BackwardOrder
        The order of the tensors, until it is known.
    """

    def __init__(
        self,
        comm: Communicator,
        strategy: Strategy,
        layout: Layout,
        tensors: Tensors,
        *,
        accumulation_steps: int = 1,
        loss_scale: LossScale | None = None,
        previous: Synchronizer | None = None,
        survival: Survival | None = None,
    ) -> None:
        self.comm = comm if survival is None else survival.here
        self.strategy = strategy
        self.tensors = tensors
        self.accumulation_steps = accumulation_steps
        self.loss_scale = loss_scale
        self.order: list[int] = []
        self.used: list[bool] = [False] * len(layout)
        self.hold = False
        self.flushed = False
        self.update: Update | None = None
        self.unscaled = False
        self.overflowed = False
        self.must_zero = False
        self.status = Status(self.comm, len(layout), is_sent=strategy.gradients == "mean")
        self.batches = Batches()
        self._overlap = Overlap(self.comm if layout.device == "cpu" else None)
        self.survival = survival
        self.on_new_order: Callable[[], object] = lambda: None
        self.settings: SettingsOf = tensors.settings
        self._masters: dict[str, Any] = {}  # by the names of their tensors
        self._round_masters: Callable[[], object] = lambda: None
        self._update_masters: Callable[[], object] = lambda: None  # to weights of 16 bits that the user has changed
        self._passes = 0  # backward passes since the last step
        self._begun = False  # whether the synchronizer has begun the iteration
        self._no_sync = False
        self._must_abandon = False  # a call of the synchronizer failed: the other ranks have to be told
        self._exchange_failed = False  # and it was `after_step` or `finish`
        self._is_lost = False  # the iteration was, with a rank, and has no step
        self._sent: int | None = None  # bytes, by the synchronizer up to the last step
        self._sent_for_step: int | None = None
        self._bind(layout, previous)
        if survival is not None:
            try:
                self.synchronizer.check_survival()
            except ArgumentError:
                self.synchronizer.close()
                raise
        self.backward_order = BackwardOrder(is_known=not self.synchronizer.uses_backward_order)

    def _bind(self, layout: Layout, previous: Synchronizer | None) -> None:
        """Bind the strategy, and take the state of the previous synchronizer."""
        self._use(self._bound(layout), previous)

    def _bound(self, layout: Layout) -> Synchronizer:
        return bind_together(self.strategy, self.comm, replace(layout, extra=self.status.count), self.tensors)

    def _use(self, synchronizer: Synchronizer, previous: Synchronizer | None) -> None:
        """Drive a synchronizer, which takes the state of the previous one."""
        if previous is not None:
            try:
                with self.tensors.default_stream():
                    self._give_masters(synchronizer)
                    synchronizer.take_over(previous)
            except BaseException:
                synchronizer.close(orderly=False)
                raise
        self.synchronizer, self.layout = synchronizer, synchronizer.layout
        self.synchronizer.set_iteration(self._iteration())  # bound again after an exchange, it makes no `begin`
        self._sent = self.synchronizer.bytes_sent
        for index in self.tensors.attach(self.synchronizer):
            self.used[index] = True

    def _reorder(self, order: Sequence[int]) -> None:
        """Bind the strategy again, to the tensors in another order, with its state."""
        if list(order) == list(range(len(order))):
            return
        old, extra = self.synchronizer, self.synchronizer.extra.copy()
        self.used[:] = [self.used[i] for i in order]
        self._bind(self.layout.in_order(order), old)
        self.synchronizer.extra[len(order) :] = extra[len(order) :]
        old.close()
        self.on_new_order()

    def _learn_order(self) -> None:
        """Put the tensors in the order of backpropagation, if it becomes known now. Collective, unless it is."""
        order = self.backward_order.learn(self.comm, len(self.layout))
        if order is not None:
            self._reorder(order)

    def check_change(self) -> None:
        """Raise on all ranks unless the strategy can be bound to other tensors now. Collective."""
        with failing_together(self.comm):
            self.synchronizer.check_change()

    # ---- backward passes -----------------------------------------------------------------------------------------

    def begin_pass(self) -> None:
        """Begin a backward pass."""
        self.hold = self._no_sync or self._passes + 1 < self.accumulation_steps
        self.update = None
        self.must_zero = self._is_lost = False
        if self.survival is not None and self._passes == 0:
            self.survival.check_takes_part()
            self.survival.begin()
        try:
            self._begin()
        except RecoverableError:  # `synchronize` gets the error, too
            if self.survival is None:
                raise

    def _begin(self) -> None:
        if self._begun:
            return
        self._update_masters()
        try:
            self.synchronizer.begin(self._iteration())
        except BaseException:
            self._must_abandon = True  # the others may have begun
            raise
        self._begun = True

    def _iteration(self) -> Iteration:
        scale = self.loss_scale
        return Iteration(self.settings, 1.0 if scale is None else scale.value, scale is not None)

    def ready(self, index: int, elsewhere: int | None = None) -> None:
        """Pass on a gradient that is final after its backward pass; `elsewhere` is as in `Synchronizer.ready`."""
        try:
            if elsewhere is None:
                self.synchronizer.ready(index, self.tensors.stream)
            else:
                self.synchronizer.ready(index, self.tensors.stream, elsewhere)
        except ArgumentError as error:
            if type(error) is ArgumentError and index in self.order:
                name = self.layout.names[index]
                raise ArgumentError(
                    f"the gradient of {name} became final twice before it was averaged: call zero_grad() after a "
                    "backward pass that failed, and run a pass that reaches a parameter repeatedly under no_sync()"
                ) from None
            self.order.append(index)
            raise
        except BaseException as error:
            self.order.append(index)  # the iteration is under way, and has to be given up
            if self.survival is None or not isinstance(error, RecoverableError):
                raise
            return  # `synchronize` gets the error, too
        self.order.append(index)

    def end_pass(self) -> bool:
        """End a backward pass. Return whether its gradients have been handed to the synchronizer."""
        self._passes += 1
        if not self.hold:
            self.flush()
        return not self.hold

    def flush(self) -> None:
        """Hand all gradients to the synchronizer, including those of earlier passes and those set by hand."""
        try:
            self._hand_over()
        except RecoverableError:  # `synchronize` gets the error, too
            if self.survival is None:
                raise
        self.flushed = True

    def _hand_over(self) -> None:
        self._begin()
        self.tensors.check(self.order)
        self.backward_order.note(self.order)
        if len(self.order) == len(self.layout) and self.batches.here:
            self.status.write(self.synchronizer.extra, None)
        else:
            final = set(self.order)
            for index in range(len(self.layout)):
                if index not in final:
                    self.used[index] = self.tensors.collect(index, self.used[index])
                    if self.used[index]:
                        self.synchronizer.ready(index, self.tensors.stream)
            self.status.write(self.synchronizer.extra, self.used, self.batches.here)
        self.synchronizer.flush(self.tensors.stream)

    # ---- exchanges -----------------------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Complete the exchange: afterwards gradients are those for the step. Collective."""
        if self.must_zero:
            raise ArgumentError("the iteration was dropped: call zero_grad(), and begin a new one with a backward pass")
        waited_from = time.monotonic()
        with self.comm.span("wait"):
            if not self.flushed:
                self.flush()
            self._wait()
        if self._overlap.is_wanted:
            self._overlap.note(waited_from, self.synchronizer.reports)
        if self.survival is not None:
            self.survival.allow_step()

    def _wait(self) -> None:
        with self._surviving(True):
            self._end_exchange()

    def _end_exchange(self) -> None:
        self.flushed = self._begun = False
        try:
            update = self.synchronizer.wait(self.tensors.stream)
        except NonFiniteError:  # on all ranks, which have ended the iteration
            self.overflowed = False  # the error is raised only once; a later step is not affected
            self._note_end(False)
            raise
        except BaseException:
            self._must_abandon = True
            raise
        finally:
            self.order.clear()
            self.tensors.exchanged()
        outcome = self._read_status()
        if outcome.given_up or update.kind == "skipped":
            self.overflowed = not outcome.given_up
        if outcome.is_dropped and update.kind != "skipped":
            self.synchronizer.discard(self.tensors.stream)
        self._note_end(update.kind != "skipped" and not outcome.is_dropped)
        previous = self.synchronizer
        if self.survival is None or outcome.is_dropped:
            self._learn_order()
        if self.synchronizer is not previous and update.kind == "apply" and not outcome.is_dropped:
            update = self.synchronizer.update()
        self.must_zero = outcome.is_dropped
        if outcome.is_dropped:
            self._passes = 0
        self.status.raise_if_dropped(outcome, self.batches.here)
        self.batches.exchanged += self.batches.here
        self.update = update

    def _note_end(self, applied: bool) -> None:
        """Note that the exchange has ended on this rank, as on all that are not lost."""
        if self.survival is not None:
            self.survival.ended(applied, self.synchronizer.in_step)

    def _read_status(self) -> Outcome:
        """Read the status of all ranks, and set which tensors have a gradient."""
        outcome = self.status.read(self.synchronizer.extra, self.used)
        self.batches.anywhere = outcome.any_has_batches
        for index, present in enumerate(outcome.present or ()):
            self.tensors.set_present(index, present or self.synchronizer.has_gradient(index))
        return outcome

    def abandon(self) -> None:
        """Give up an iteration whose backward pass has begun but not ended; the other ranks are told."""
        if not self.order and not self._must_abandon:
            return
        failed, self._exchange_failed = self._exchange_failed, False
        self._must_abandon = False
        self.backward_order.note(self.order)
        with self._surviving(True):
            self.status.write(self.synchronizer.extra, self.used, self.batches.here, gives_up=True)
            self.synchronizer.abandon(self.tensors.stream, failed)
            self._note_end(False)
            self._learn_order()
        self.order.clear()
        self._begun = False
        self._passes = 0

    def _abandon_unfinished(self) -> None:
        """Give up an iteration that has failed in a backward pass, at the end of its step."""
        if not self.flushed:
            self.abandon()

    def zero(self, set_to_none: bool) -> None:
        """Give up an iteration under way, and zero all gradients; with `set_to_none`, no tensor has one afterwards."""
        self.abandon()
        self._passes = 0
        self.flushed = self.overflowed = self.unscaled = self.must_zero = False
        self.update = None
        self.tensors.zero(set_to_none)
        if set_to_none:
            self.used[:] = [False] * len(self.used)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients of the passes in a ``with`` block add up without an exchange."""
        before, self._no_sync = self._no_sync, True
        try:
            yield
        finally:
            self._no_sync = before

    # ---- ranks that are lost -------------------------------------------------------------------------------------

    @contextmanager
    def _surviving(self, has_gradients: bool) -> Iterator[None]:
        """Go on with the ranks that are left if some are lost in a ``with`` block, and this was asked for."""
        try:
            yield
        except RecoverableError:
            if self.survival is None:
                raise
            self._go_on(self.survival, self.survival.recover, has_gradients)

    def meet(self) -> None:
        """Let newcomers in, between two steps. Collective, if an exchange has ended since the ranks have last met.

        Where some were lost, or have come, the ranks have met. Where ranks train on weights of their own, newcomers
        take part from the step on that ends with an exchange, and get what they need before.
        """
        survival = self.survival
        assert survival is not None
        self._abandon_unfinished()
        if self._passes > 0:  # gradients add up
            return
        if survival.is_apart:
            self._go_on(survival, survival.come, False)
        elif lets_in_when_recovering(self.synchronizer):
            if survival.someone_waits():
                self._go_on(survival, survival.recover, False)  # so that the others come, too
        elif self.synchronizer.meets_in == "steps" and not survival.have_met(self.synchronizer):
            try:
                if survival.admit(self.synchronizer):
                    self._go_on(survival, lambda _: None, False)
            except RecoverableError:
                if survival.comm.closed:  # too few are left
                    raise
                self._go_on(survival, survival.recover, False)
            survival.meet(self.synchronizer)
            self.comm = survival.comm
        if survival.wider is not None and self.synchronizer.exchanges_weights():
            self._go_on(survival, lambda _: survival.widen(), False)
        self.update, self._is_lost = None, False

    def _go_on(self, survival: Survival, change: Callable[[Synchronizer], object], has_gradients: bool) -> None:
        """Bind the strategy to other ranks, after `change`. Gradients of an iteration that none has ended are lost."""
        previous, is_behind, begins = self.synchronizer, False, survival.is_apart
        previous.close(orderly=False)  # the other ranks may wait for this one
        while True:
            change(previous)
            self.comm = survival.comm
            bound: Synchronizer | None = None
            try:
                with survival.catching_up(previous):
                    self.status.use(self.comm)
                    bound = self._bound(self.layout.in_order(self.backward_order.common(self.comm, self.layout.names)))
                is_behind |= survival.is_behind
                self._use(bound, previous)
            except RecoverableError:  # another one
                if bound is not None:
                    bound.close(orderly=False)
                change = survival.recover
                continue
            break
        self.flushed = self.overflowed = self.unscaled = self.must_zero = False
        self._begun = self._must_abandon = self._exchange_failed = False
        self._passes = 0
        self.order.clear()
        self.tensors.zero(set_to_none=False)
        self.used[:] = [False] * len(self.used)
        self.on_new_order()
        self._round_masters()
        self.update, self._is_lost = Update("skipped"), True
        survival.meet(self.synchronizer)
        if begins or self.synchronizer.in_step:
            survival.go_back(dropped=has_gradients and not is_behind)

    # ---- steps ---------------------------------------------------------------------------------------------------

    def stepped(self) -> None:
        """Note that the step was made or skipped: update the loss scale, and let the strategy write weights."""
        was_lost, self._is_lost = self._is_lost, False
        if self.loss_scale is not None and not was_lost:
            self.loss_scale.update(self.overflowed)
        if not was_lost:
            self._after_step()
        self._is_lost = False
        self.update = None
        self.unscaled = self.overflowed = False
        self._passes = 0
        before, self._sent = self._sent, self.synchronizer.bytes_sent
        self._sent_for_step = None if before is None or self._sent is None else self._sent - before
        self._raise_pending()

    def _after_step(self) -> None:
        """Let the strategy go on after the step; where weights are the rank's own, until it has ended that."""
        while True:
            with self._surviving(False):
                self._let_write(self.synchronizer.after_step)
                if self.survival is not None:
                    self._learn_order()
                return
            if self.synchronizer.in_step:  # the step is that of others
                return

    @property
    def bytes_sent(self) -> int | None:
        """Bytes this rank sent to others in messages for the last step; None where that is not known."""
        sent = [report.bytes_sent for report in self.synchronizer.reports]
        if not sent:
            return self._sent_for_step
        return None if None in sent else sum(each for each in sent if each is not None)

    def _raise_pending(self) -> None:
        """Raise the strategy's pending `NonFiniteError`, now that no rank waits for this one."""
        error = self.synchronizer.take_pending_error()
        if error is not None:
            raise error

    def finish(self, also: Callable[[], object] = lambda: None) -> None:
        """End training: complete communication under way, and leave the same weights on all ranks. Collective.

        Then `also` is called; more than once, if ranks are lost meanwhile.
        """
        if self.survival is not None:
            self.survival.check_takes_part()
        self.take_weights()
        if self.survival is None:
            self._let_write(self.synchronizer.finish)
            also()
        else:
            self._finish_with(self.survival, also)
        self.update = None if self._is_lost else self.update
        self._is_lost = False
        self._raise_pending()

    def _finish_with(self, survival: Survival, also: Callable[[], object]) -> None:
        """End training on all ranks, for one that is behind needs another. None waits for those that are past this.

        What all have done is not done again: the result would differ from that of ranks that are past this.
        """
        self._abandon_unfinished()
        if survival.wider is not None:
            self._go_on(survival, lambda _: survival.widen(), False)
        end, is_done, are_servers = _all_exchanges(survival) + 1, False, self.synchronizer.meets_in == "servers"
        while _all_exchanges(survival) < end:
            with self._surviving(False):
                if are_servers:  # which take no notice of a rank that finishes again
                    self._let_write(self.synchronizer.finish)
                if not self.comm.allgather(np.array([is_done])).all():
                    is_done = False
                    if not are_servers:
                        self._let_write(self.synchronizer.finish)
                    also()
                    is_done = True
                self.comm.barrier()
                survival.finished()

    @contextmanager
    def common_weights(self) -> Iterator[None]:
        """Put the weights common to all ranks in place for a ``with`` block, if each rank trains on its own."""
        self.take_weights()
        common = self.synchronizer.common_weights()
        with self.tensors.default_stream():
            common.__enter__()
        try:
            self._round_masters()
            yield
        finally:
            with self.tensors.default_stream():
                common.__exit__(None, None, None)
        self._round_masters()

    def take_weights(self) -> None:
        """Take the weights for those to go on from, between two iterations: the user may have changed them."""
        if not self._begun and self.update is None:
            self._update_masters()

    @property
    def has_begun(self) -> bool:
        """Whether there was a backward pass, or an exchange, since the last step."""
        return self._passes > 0 or self._begun or self.update is not None

    @property
    def writes_weights(self) -> bool:
        """Whether the strategy writes weights itself, outside of an optimizer's step."""
        return self.strategy.gradients != "mean"

    def _let_write(self, moment: Callable[[], object]) -> None:
        """Let the strategy write weights, then round master weights. On failure, note that other ranks must be told."""
        writes = self.tensors.default_stream() if self.writes_weights else nullcontext()
        try:
            with writes:
                moment()
        except BaseException:
            self._must_abandon = self._exchange_failed = True
            raise
        self._round_masters()

    def use_masters(
        self,
        masters: Mapping[int, Any],
        round_masters: Callable[[], object],
        update_masters: Callable[[], object],
    ) -> None:
        """Let the strategy write these float32 master weights, which are then rounded to the weights of 16 bits."""
        if self.writes_weights:
            self._masters = {self.layout.names[index]: master for index, master in masters.items()}
            self._round_masters, self._update_masters = round_masters, update_masters
            self._give_masters(self.synchronizer)

    def _give_masters(self, synchronizer: Synchronizer) -> None:
        for index, name in enumerate(synchronizer.layout.names):
            if name in self._masters:
                synchronizer.weights[index] = self._masters[name]

    # ---- state ---------------------------------------------------------------------------------------------------

    def load(self, state: Mapping[str, Any] | None, order_is_known: bool) -> None:
        """Load a state of the synchronizer, and its order of tensors; without one, reset. Collective."""
        self.abandon()
        self._begun = False
        if self.survival is not None:
            self.survival.note_that_state_was_loaded()
        if state and "names" in state:
            self._reorder([self.layout.names.index(name) for name in state["names"]])
            self.backward_order.is_known |= order_is_known
        with self.tensors.default_stream():
            self._update_masters()  # the user may just have loaded the model
            self.synchronizer.load_state_dict(state)
        self._round_masters()
        self.tensors.exchanged()
        self.flushed = self.overflowed = self.unscaled = False
        self.update = None


def _all_exchanges(survival: Survival) -> int:
    return survival.exchanges + survival.undone


__all__ = ["Loop"]
