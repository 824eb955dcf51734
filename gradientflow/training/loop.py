"""The training loop of all frameworks: backward passes, exchanges, steps, and state.

`iteration.py` has the phases of an iteration; `ranks.py` and `survival.py` handle ranks that are lost or join.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from gradientflow.agreement import failing_together
from gradientflow.annotations import State
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError, NonFiniteError
from gradientflow.metrics.registry import Values
from gradientflow.strategies import Layout, Strategy, Synchronizer
from gradientflow.strategies.update import Iteration, Phase, SettingsOf

from .batches import Batches
from .binding import bind_together
from .figures import figures, norm
from .iteration import Progress
from .loss_scale import LossScale
from .meter import Meter
from .order import BackwardOrder
from .overlap import Overlap
from .ranks import FixedRanks
from .status import ExchangeStatus, Status
from .tensors import Tensors

_HANDED_OVER = Phase.HANDED_OVER  # read in each step: faster than the enum's attribute


class Loop:
    """Driver of a synchronizer through training iterations: accumulation, missing gradients, errors, steps.

    Parameters
    ----------
    ranks : FixedRanks
        The ranks that take part; a `Survival` if training survives the loss of some.
    strategy : Strategy
        The strategy that synchronizes the ranks.
    layout : Layout
        The layout of the tensors.
    tensors : Tensors
        The framework's adapter for them.
    accumulation_steps : int
        Backward passes for each exchange; their gradients add up.
    loss_scale : LossScale or None
        The factor by which gradients have to be divided.
    previous : Synchronizer or None
        A previous synchronizer of the same strategy and some of the tensors, whose state is taken over.
    meter : Meter or None
        The meter of the training; by default a new one.
    """

    def __init__(
        self,
        ranks: FixedRanks,
        strategy: Strategy,
        layout: Layout,
        tensors: Tensors,
        *,
        accumulation_steps: int = 1,
        loss_scale: LossScale | None = None,
        previous: Synchronizer | None = None,
        meter: Meter | None = None,
    ) -> None:
        self.ranks = ranks
        self.strategy = strategy
        self.tensors = tensors
        self.accumulation_steps: float = accumulation_steps
        self.loss_scale = loss_scale
        self.synchronizer: Synchronizer  # current synchronizer
        self.layout = layout  # tensors, in the order of the synchronizer
        self.progress = Progress()
        self.used: list[bool] = [False] * len(layout)  # flags of tensors that got a gradient since all were zeroed
        self.status = Status(self.comm, len(layout), is_sent=strategy.gradients == "mean")
        self.batches = Batches()
        self.meter = Meter() if meter is None else meter
        self._has_means = False  # gradients are those of the last step
        self._overlap = Overlap(self.comm if layout.device == "cpu" else None)
        self.on_new_order: Callable[[], object] = lambda: None
        self.settings: SettingsOf = tensors.settings
        self._masters: dict[str, object] = {}  # master weights, by tensor name
        self._round_masters: Callable[[], object] = lambda: None
        self._update_masters: Callable[[], object] = lambda: None  # takes over 16-bit weights that the user has changed
        self._sent: int | None = None  # bytes that the synchronizer had sent by the last step
        self._sent_for_step: int | None = None
        self._scale_of_means = 1.0  # the factor that the gradients of the last step contain
        self.use(self._bound(layout), previous)
        try:
            ranks.check(self.synchronizer)
        except ArgumentError:
            self.synchronizer.close()
            raise
        self.backward_order = BackwardOrder(is_known=not self.synchronizer.uses_backward_order)

    @property
    def comm(self) -> Communicator:
        """The communicator of the ranks that take part now."""
        return self.ranks.here

    # ---- binding -------------------------------------------------------------------------------------------------

    def _bound(self, layout: Layout) -> Synchronizer:
        return bind_together(self.strategy, self.comm, replace(layout, extra=self.status.count), self.tensors)

    def bound_to_other_ranks(self) -> Synchronizer:
        """Return a synchronizer for the ranks that take part now, for `use`. Collective."""
        self.status.use(self.comm)
        return self._bound(self.layout.in_order(self.backward_order.common(self.comm, self.layout.names)))

    def use(self, synchronizer: Synchronizer, previous: Synchronizer | None) -> None:
        """Use a synchronizer, which takes over the state of the previous one."""
        if previous is not None:
            try:
                with self.tensors.default_stream():
                    self._give_masters(synchronizer)
                    synchronizer.take_over(previous)
            except BaseException:
                synchronizer.close(orderly=False)
                raise
        self.synchronizer, self.layout = synchronizer, synchronizer.layout
        self.synchronizer.set_iteration(self._iteration())  # if bound after an exchange, it gets no `begin`
        self._sent = self.synchronizer.bytes_sent
        for index in self.tensors.attach(self.synchronizer):
            self.used[index] = True

    def _reorder(self, order: Sequence[int]) -> None:
        """Bind the strategy again, with its state, to the tensors in another order."""
        if list(order) == list(range(len(order))):
            return
        old, extra = self.synchronizer, self.synchronizer.extra.copy()
        self.used[:] = [self.used[i] for i in order]
        self.use(self._bound(self.layout.in_order(order)), old)
        self.synchronizer.extra[len(order) :] = extra[len(order) :]
        old.close()
        self.on_new_order()

    def learn_order(self) -> None:
        """Put the tensors into backpropagation order if it becomes known now. Collective, unless known before."""
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
        self.ranks.begin_pass(self.progress.passes)
        has_begun = self.progress.has_begun
        self.progress.begin_pass(only_adds=self.progress.passes + 1 < self.accumulation_steps)
        if not has_begun:
            self._begin()

    def _begin(self) -> None:
        self._has_means = False
        try:
            self._update_masters()
            self.synchronizer.begin(self._iteration())
        except BaseException as error:
            if not self.ranks.defers(error):
                self.progress.fail()  # other ranks may have begun
                raise

    def _iteration(self) -> Iteration:
        scale = self.loss_scale
        return Iteration(self.settings, 1.0 if scale is None else scale.value, scale is not None)

    def ready(self, index: int, elsewhere: int | None = None) -> None:
        """Pass on a gradient that is final; `elsewhere` is as in `Synchronizer.ready`."""
        order = self.progress.order
        try:
            if elsewhere is None:
                self.synchronizer.ready(index, self.tensors.stream)
            else:
                self.synchronizer.ready(index, self.tensors.stream, elsewhere)
        except BaseException as error:
            if type(error) is ArgumentError and index in order:
                name = self.layout.names[index]
                raise ArgumentError(
                    f"the gradient of {name} became final twice before it was averaged: call zero_grad() after a "
                    "backward pass that failed, and run a pass that reaches a parameter repeatedly under no_sync()"
                ) from None
            if not self.ranks.defers(error):
                order.append(index)  # the iteration is under way, and has to be given up
                raise
        order.append(index)

    def end_pass(self) -> bool:
        """End a backward pass. Return whether its gradients have been handed to the synchronizer."""
        self.progress.passes += 1
        if self.progress.phase is Phase.ACCUMULATING:
            return False
        self.flush()
        return True

    def flush(self) -> None:
        """Hand all gradients to the synchronizer, including gradients of earlier passes and gradients set by hand."""
        if not self.progress.has_begun:
            self.progress.begin_pass(only_adds=False)
            self._begin()
        try:
            self._hand_over()
        except BaseException as error:
            if not self.ranks.defers(error):
                raise
        self.progress.hand_over()

    def _hand_over(self) -> None:
        order = self.progress.order
        self.tensors.check(order)
        self.backward_order.note(order)
        if len(order) == len(self.layout) and self.batches.here:
            self.status.write(self.synchronizer.extra, None, busy=self.meter.busy())
        else:
            final = set(order)
            for index in range(len(self.layout)):
                if index not in final:
                    self.used[index] = self.tensors.collect(index, self.used[index])
                    if self.used[index]:
                        self.synchronizer.ready(index, self.tensors.stream)
            self.status.write(self.synchronizer.extra, self.used, self.batches.here, busy=self.meter.busy())
        self.synchronizer.flush(self.tensors.stream)

    # ---- exchanges -----------------------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Complete the exchange, which leaves the gradients for the step. Collective."""
        if self.progress.phase is Phase.DROPPED:
            raise ArgumentError("the iteration was dropped: call zero_grad(), and begin a new one with a backward pass")
        waited_from = time.monotonic()
        with self.comm.span("wait"):
            if self.progress.phase is not _HANDED_OVER:
                self.flush()
            with self.ranks.surviving(self, has_gradients=True):
                self._end_exchange()
        self.meter.exchanged(waited_from, self.status.busy)
        if self._overlap.is_wanted:
            self._overlap.note(waited_from, self.synchronizer.reports)
        self.ranks.allow_step()

    def _end_exchange(self) -> None:
        try:
            update = self.synchronizer.wait(self.tensors.stream)
        except NonFiniteError:  # raised on all ranks, and only once: they have ended the iteration
            self.progress.end_without_update()
            self.meter.dropped += 1
            self.ranks.ended(self, Phase.DROPPED)
            raise
        except BaseException:
            self.progress.fail()
            raise
        finally:
            self.progress.order.clear()
            self.tensors.exchanged()
        outcome = self._read_status()
        if outcome.is_dropped and update.kind != "skipped":
            self.synchronizer.rollback(Phase.AVERAGED, self.tensors.stream)
        is_applied = self._has_means = update.kind != "skipped" and not outcome.is_dropped
        self.meter.dropped += not is_applied
        self.ranks.ended(self, Phase.AVERAGED if is_applied else Phase.DROPPED)
        if outcome.is_dropped:
            self.progress.drop()
        else:
            self.progress.average(update)
        previous = self.synchronizer
        if outcome.is_dropped or not self.ranks.may_change:  # otherwise the order is learned after the step
            self.learn_order()
        self.status.raise_if_dropped(outcome, self.batches.here)
        if self.synchronizer is not previous and update.kind == "apply":
            self.progress.update = self.synchronizer.update()
        self.batches.exchanged += self.batches.here

    def _read_status(self) -> ExchangeStatus:
        """Read the status of all ranks, and mark the tensors that have a gradient."""
        outcome = self.status.read(self.synchronizer.extra, self.used)
        self.batches.anywhere = outcome.any_has_batches
        for index, present in enumerate(outcome.present or ()):
            self.tensors.set_present(index, present or self.synchronizer.has_gradient(index))
        return outcome

    def abandon(self) -> None:
        """Give up the iteration, and tell the ranks that wait for this rank's part; do nothing if none waits."""
        progress = self.progress
        if not progress.is_untold:
            return
        self.backward_order.note(progress.order)
        phase = progress.give_up()
        self.meter.dropped += 1
        with self.ranks.surviving(self, has_gradients=True):
            self.status.write(self.synchronizer.extra, self.used, self.batches.here, gives_up=True)
            self.synchronizer.rollback(phase, self.tensors.stream)
            self.ranks.ended(self, Phase.DROPPED)
            self.learn_order()
            progress.reset()

    def abandon_unfinished(self) -> None:
        """Give up an iteration that has failed in a backward pass. Called between two steps."""
        if self.progress.phase is not Phase.HANDED_OVER:
            self.abandon()

    def zero(self, set_to_none: bool) -> None:
        """Give up an iteration under way, and zero all gradients; with `set_to_none`, no tensor has one afterwards."""
        self.abandon()
        self.progress.reset()
        self._has_means = False
        self.tensors.zero(set_to_none)
        if set_to_none:
            self.used[:] = [False] * len(self.used)

    def restart(self) -> None:
        """Drop the iteration under way after a change of ranks: zero its gradients, and skip its step."""
        self.progress.lose()
        self._has_means = False
        self.tensors.zero(set_to_none=False)
        self.used[:] = [False] * len(self.used)
        self.on_new_order()
        self._round_masters()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients of the passes in a ``with`` block add up without an exchange."""
        before, self.accumulation_steps = self.accumulation_steps, float("inf")
        try:
            yield
        finally:
            self.accumulation_steps = before

    # ---- steps ---------------------------------------------------------------------------------------------------

    def stepped(self) -> None:
        """Note that the step was made or skipped: update the loss scale, and let the strategy write weights."""
        unscaled = 1.0 if self.loss_scale is None or self.progress.unscaled else self.loss_scale.value
        if self.progress.phase is Phase.LOST:
            self.meter.dropped += 1
        else:
            if self.loss_scale is not None:
                self.loss_scale.update(self.progress.overflowed)
            began = time.monotonic()
            self.ranks.after_step(self)
            self.meter.waited += time.monotonic() - began
        self.progress.step()
        before, self._sent = self._sent, self.synchronizer.bytes_sent
        self._sent_for_step = None if before is None or self._sent is None else self._sent - before
        self._scale_of_means = unscaled
        self.meter.stepped(self.comm.bytes_sent)
        if self.meter.wants_details:
            self._note_details()
        self._raise_pending()

    @property
    def bytes_sent(self) -> int | None:
        """Bytes this rank sent to other ranks in messages for the last step; None if unknown."""
        sent = [report.bytes_sent for report in self.synchronizer.reports]
        if not sent:
            return self._sent_for_step
        return None if None in sent else sum(each for each in sent if each is not None)

    def metrics(self) -> Values:
        """Return metrics of the last step and the last 100, by name. Does not communicate; takes a pass over memory."""
        self._note_details()
        return self.meter.values()

    def _note_details(self) -> None:
        meter = self.meter
        meter.wants_details = False
        mean_sent = meter.values().get("gradientflow_mean_step_sent_bytes")
        found = figures(self.synchronizer, self.comm, meter.waited_from, mean_sent)
        if self._has_means and self.strategy.gradients == "mean" and self.synchronizer.shared is None:
            found["gradientflow_gradient_norm"] = norm(self.synchronizer.gradients) / self._scale_of_means
        meter.details = found

    def _raise_pending(self) -> None:
        """Raise the strategy's pending `NonFiniteError`, now that no rank waits for this one."""
        error = self.synchronizer.take_pending_error()
        if error is not None:
            raise error

    def finish(self, also: Callable[[], object] = lambda: None) -> None:
        """End training: complete communication under way, and leave the same weights on all ranks. Collective.

        Then `also` is called, and called again if ranks are lost meanwhile.
        """
        self.ranks.finish(self, also)
        self._raise_pending()

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
        """Take over weights that the user may have changed between two iterations."""
        if not self.progress.has_begun and self.progress.update is None:
            self._update_masters()

    @property
    def writes_weights(self) -> bool:
        """True if the strategy writes weights itself, outside of an optimizer's step."""
        return self.strategy.gradients != "mean"

    def let_write(self, moment: Callable[[], object]) -> None:
        """Let the strategy write weights, then round master weights. On failure, note that other ranks must be told."""
        writes = self.tensors.default_stream() if self.writes_weights else nullcontext()
        try:
            with writes:
                moment()
        except BaseException:
            self.progress.fail(after_step=True)
            raise
        self._round_masters()

    def use_masters(
        self,
        masters: Mapping[int, object],
        round_masters: Callable[[], object],
        update_masters: Callable[[], object],
    ) -> None:
        """Let the strategy write these float32 master weights, which are then rounded to the 16-bit weights."""
        if self.writes_weights:
            self._masters = {self.layout.names[index]: master for index, master in masters.items()}
            self._round_masters, self._update_masters = round_masters, update_masters
            self._give_masters(self.synchronizer)

    def _give_masters(self, synchronizer: Synchronizer) -> None:
        for index, name in enumerate(synchronizer.layout.names):
            if name in self._masters:
                synchronizer.weights[index] = self._masters[name]

    # ---- state ---------------------------------------------------------------------------------------------------

    def load(self, state: State | None, order_is_known: bool) -> None:
        """Load a state of the synchronizer, with its order of tensors; without a state, reset. Collective."""
        self.abandon()
        self.progress.reset()
        self.ranks.note_that_state_was_loaded()
        if state and "names" in state:
            self._reorder([self.layout.names.index(name) for name in state["names"]])
            self.backward_order.is_known |= order_is_known
        with self.tensors.default_stream():
            self._update_masters()  # the user may just have loaded the model
            self.synchronizer.load_state_dict(state)
        self._round_masters()
        self.tensors.exchanged()


__all__ = ["Loop"]
