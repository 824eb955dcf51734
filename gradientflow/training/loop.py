"""The training loop of all frameworks: which backward passes are exchanged, and the status sent with gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, cast

import numpy as np

from gradientflow.agreement import raise_together, require_same
from gradientflow.communicator import Communicator
from gradientflow.errors import (
    AbandonedError,
    ArgumentError,
    CommunicationError,
    GradientFlowError,
    MismatchError,
    NonFiniteError,
)
from gradientflow.strategies import Layout, Strategy, Synchronizer, Update
from gradientflow.strategies.exchange.staged import bind
from gradientflow.strategies.update import Iteration, SettingsOf

from .consolidation import consolidated
from .loss_scale import LossScale
from .rates import Rates
from .tensors import Tensors

_NEEDED = {"of", "shapes", "loss_scale", "order_is_known", "synchronizer"}


class Loop:
    """Drives a synchronizer through the iterations of training: accumulation, `join`, loss scale, checkpoints, order.

    A status is averaged together with the gradients, as `Synchronizer.extra`: for each tensor, 1 if it has a gradient
    on this rank; 1 if any tensor has none; 1 unless this rank is out of batches; for each rank, 1 if it gives up the
    iteration; the learning rates, as `Rates` encodes them. A mean is nonzero if the number is nonzero on any rank, so
    no further communication is needed.

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

    Attributes
    ----------
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
    rates : Rates
        The learning rates, which are compared if all ranks make the same step.
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
    ) -> None:
        self.comm = comm
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
        self.rates = Rates()
        self.on_new_order: Callable[[], object] = lambda: None
        self._round_masters: Callable[[], object] = lambda: None
        self._update_masters: Callable[[], object] = lambda: None  # to weights of 16 bits that the user has changed
        self.settings: SettingsOf = tensors.settings
        self._passes = 0  # backward passes since the last step
        self._begun = False  # whether the synchronizer has begun the iteration
        self._no_sync = False
        self._overflowed = False  # in an exchange since the last step
        self._must_abandon = False  # a call of the synchronizer failed: the other ranks have to be told
        self._exchange_failed = False  # and it was `after_step` or `finish`
        self._must_zero = False  # the iteration was dropped, and `zero` has to come first
        self._seen: list[int] = []  # the order on this rank, until one is known
        self._joining = False
        self._has_batches = True
        self._any_has_batches = True  # on any rank, at the last exchange
        self._rounds = 0  # exchanges for which this rank had batches
        self._sent: int | None = None  # bytes, by the synchronizer up to the last step
        self._sent_for_step: int | None = None
        self.layout = layout
        self.synchronizer = self._bind(layout, previous)
        self._order_known = not self.synchronizer.uses_backward_order

    def _bind(self, layout: Layout, previous: Synchronizer | None) -> Synchronizer:
        """Bind the strategy; pass the settings and the state of the previous synchronizer."""
        is_mean = self.strategy.gradients == "mean"
        extra = len(layout) + 2 + self.comm.size + Rates.numbers if is_mean else 0
        synchronizer = self._bound(replace(layout, extra=extra))
        self.layout, self.synchronizer = synchronizer.layout, synchronizer
        self._sent = synchronizer.bytes_sent
        self._full_status = (
            np.array([1.0] * len(layout) + [0.0, 1.0] + [0.0] * self.comm.size) if is_mean else np.zeros(0)
        )
        if previous is not None:
            with self.tensors.default_stream():
                synchronizer.take_over(previous)
        for index in self.tensors.attach(synchronizer):
            self.used[index] = True
        return synchronizer

    def _bound(self, layout: Layout) -> Synchronizer:
        """Return the result of `Strategy.bind`. Raises on all ranks if it fails on one."""
        synchronizer: Any = None
        error: Exception | None = None
        try:
            with self.tensors.default_stream():
                synchronizer = bind(self.strategy, self.comm, layout)
            if not isinstance(synchronizer, Synchronizer):
                message = f"bind of {self.strategy.name} returned a {type(synchronizer).__name__}, not a Synchronizer"
                raise ArgumentError(message)
            if not hasattr(synchronizer, "layout"):
                message = f"{type(synchronizer).__name__} of {self.strategy.name} does not call super().__init__()"
                raise ArgumentError(message)
            synchronizer.check_complete()
        except CommunicationError:
            raise
        except Exception as caught:
            error = caught
        try:
            raise_together(self.comm, error)
        except BaseException:
            if error is None:
                synchronizer.close(orderly=False)
            raise
        return cast("Synchronizer", synchronizer)

    # ---- backward passes -----------------------------------------------------------------------------------------

    def begin_pass(self) -> None:
        """Begin a backward pass."""
        self.hold = self._no_sync or self._passes + 1 < self.accumulation_steps
        self.update = None
        self._must_zero = False
        self._begin()

    def _begin(self) -> None:
        if self._begun:
            return
        self._update_masters()
        scale = self.loss_scale
        iteration = Iteration(self.settings, 1.0 if scale is None else scale.value, scale is not None)
        try:
            self.synchronizer.begin(iteration)
        except BaseException:
            self._must_abandon = True  # the others may have begun
            raise
        self._begun = True

    def ready(self, index: int, elsewhere: int | None = None) -> None:
        """Pass on a gradient that is final after its backward pass; `elsewhere` is as in `Synchronizer.ready`."""
        try:
            if elsewhere is None:
                self.synchronizer.ready(index, self.tensors.stream)
            else:
                self.synchronizer.ready(index, self.tensors.stream, elsewhere)
        except ArgumentError as error:
            if type(error) is ArgumentError and index in self.order:
                raise self._twice(index) from None
            self.order.append(index)
            raise
        except BaseException:
            self.order.append(index)  # the iteration is under way, and has to be given up
            raise
        self.order.append(index)

    def _twice(self, index: int) -> ArgumentError:
        return ArgumentError(
            f"the gradient of {self.layout.names[index]} became final twice before it was averaged: call zero_grad() "
            "after a backward pass that failed, and run a pass that reaches a parameter repeatedly under no_sync()"
        )

    def end_pass(self) -> bool:
        """End a backward pass. Return whether its gradients have been handed to the synchronizer."""
        self._passes += 1
        if not self.hold:
            self.flush()
        return not self.hold

    def flush(self) -> None:
        """Hand all gradients to the synchronizer, including those of earlier passes and those set by hand."""
        self._begin()
        self.tensors.check(self.order)
        if not self._order_known:
            self._seen = list(self.order)
        status = self.synchronizer.extra
        if len(self.order) == len(self.layout) and self._has_batches:
            status[: len(self._full_status)] = self._full_status
            self._write_rates(has_step=True)
        else:
            final = set(self.order)
            for index in range(len(self.layout)):
                if index not in final:
                    self.used[index] = self.tensors.collect(index, self.used[index])
                    if self.used[index]:
                        self.synchronizer.ready(index, self.tensors.stream)
            self._write_status()
        self.synchronizer.flush(self.tensors.stream)
        self.flushed = True

    def _write_status(self, gives_up: bool = False) -> None:
        if self.strategy.gradients == "mean":
            ranks = [float(gives_up and rank == self.comm.rank) for rank in range(self.comm.size)]
            self.synchronizer.extra[: len(self._full_status)] = [*self.used, 1.0, self._has_batches, *ranks]
            self._write_rates(has_step=self._has_batches and not gives_up)

    def _write_rates(self, has_step: bool) -> None:
        if self.strategy.gradients == "mean":
            self.rates.write(self.synchronizer.extra[len(self._full_status) :], has_step)

    # ---- exchanges -----------------------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Complete the exchange: afterwards gradients are those for the step. Collective."""
        if self._must_zero:
            message = "the iteration was dropped: call zero_grad(), and begin a new one with a backward pass"
            raise ArgumentError(message)
        with self.comm.span("wait"):
            if not self.flushed:
                self.flush()
            self._wait()

    def _wait(self) -> None:
        self.flushed = self._begun = False
        try:
            update = self.synchronizer.wait(self.tensors.stream)
        except NonFiniteError:  # on all ranks, which have ended the iteration
            self._overflowed = False  # the error is raised only once; a later step is not affected
            raise
        except BaseException:
            self._must_abandon = True
            raise
        finally:
            self.order.clear()
            self.tensors.exchanged()
        given_up = self._read_status()
        rates_differ = Rates.differ(self.synchronizer.extra[len(self._full_status) :])
        is_dropped = bool(given_up) or rates_differ
        if given_up or update.kind == "skipped":
            self._overflowed = not given_up
        if is_dropped and update.kind != "skipped":
            self.synchronizer.discard(self.tensors.stream)
        previous = self.synchronizer
        if not self._order_known:
            self._learn_order()
        if self.synchronizer is not previous and update.kind == "apply" and not is_dropped:
            update = self.synchronizer.update()
        self._must_zero = is_dropped
        if given_up:
            ranks = "rank " + given_up[0] if len(given_up) == 1 else f"ranks {', '.join(given_up)}"
            message = (
                f"{ranks} gave up the iteration, after an error there: all ranks drop it, and no weight was changed; "
                "call zero_grad() and go on with the next one"
            )
            raise AbandonedError(message)
        if rates_differ:
            message = (
                f"{self.rates.difference(self.comm, self._has_batches)}: all ranks drop the iteration; give all the "
                "same, call zero_grad() and go on with the next one"
            )
            raise MismatchError(message)
        self._rounds += self._has_batches
        self.update = update

    def _read_status(self) -> list[str]:
        """Read the mean status of all ranks. Return the ranks that gave up the iteration."""
        status, count = self.synchronizer.extra, len(self.layout)
        if not len(status):
            for index, used in enumerate(self.used):
                self.tensors.set_present(index, used)
            return []
        if status[count]:
            for index in range(count):
                self.tensors.set_present(index, bool(status[index]) or self.synchronizer.has_gradient(index))
        self._any_has_batches = bool(status[count + 1])
        return [str(rank) for rank in np.flatnonzero(status[count + 2 : len(self._full_status)])]

    def abandon(self) -> None:
        """Give up an iteration whose backward pass has begun but not ended; the other ranks are told."""
        if not self.order and not self._must_abandon:
            return
        failed, self._exchange_failed = self._exchange_failed, False
        self._must_abandon = False
        self._seen = list(self.order)
        self._write_status(gives_up=True)
        self.synchronizer.abandon(self.tensors.stream, failed)
        self.order.clear()
        self._begun = False
        if not self._order_known:
            self._learn_order()

    def zero(self, set_to_none: bool) -> None:
        """Give up an iteration under way, and zero all gradients; with `set_to_none`, no tensor has one afterwards."""
        self.abandon()
        self._passes = 0
        self.flushed = self._overflowed = self.unscaled = self._must_zero = False
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

    # ---- steps ---------------------------------------------------------------------------------------------------

    @property
    def overflowed(self) -> bool:
        """Whether gradients were not finite in an exchange since the last step; the next step is skipped then."""
        return self._overflowed

    def stepped(self) -> None:
        """Note that the step was made or skipped: update the loss scale, and let the strategy write weights."""
        if self.loss_scale is not None:
            self.loss_scale.update(self._overflowed)
        self.update = None
        self.unscaled = self._overflowed = False
        self._passes = 0
        self._let_write(self.synchronizer.after_step)
        before, self._sent = self._sent, self.synchronizer.bytes_sent
        self._sent_for_step = None if before is None or self._sent is None else self._sent - before
        self._raise_pending()

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

    def finish(self) -> None:
        """End training: complete communication under way, and leave the same weights on all ranks. Collective."""
        if not self._begun and self.update is None:
            self._update_masters()
        self._let_write(self.synchronizer.finish)
        self._raise_pending()

    @contextmanager
    def common_weights(self) -> Iterator[None]:
        """Put the weights common to all ranks in place for a ``with`` block, if each rank trains on its own."""
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
        for index, master in masters.items():
            self.synchronizer.weights[index] = master
        if self.writes_weights:
            self._round_masters, self._update_masters = round_masters, update_masters

    # ---- uneven batches ------------------------------------------------------------------------------------------

    @property
    def is_joining(self) -> bool:
        """Whether a `join` is under way, so that ranks may be out of batches."""
        return self._joining

    @contextmanager
    def join(self) -> Iterator[None]:
        """Allow the ranks different numbers of iterations in a ``with`` block."""
        if self._joining:
            message = "join() is already under way"
            raise ArgumentError(message)
        if self.strategy.gradients != "mean":
            message = (
                f"join() does not go with {self.strategy.name}: it needs gradients that are averaged in every step"
            )
            raise ArgumentError(message)
        self._joining, self._rounds = True, 0
        try:
            yield
        finally:
            self._joining, self._has_batches = False, True

    def take_part_until_all_have_left(self) -> int | None:
        """Contribute zeros until no rank has batches. Return a rank that had the most; None if all had equally many."""
        self._has_batches = False
        while True:
            self.zero(set_to_none=True)
            try:
                self.synchronize()
            except (AbandonedError, MismatchError, NonFiniteError) as error:
                is_dropped = self._must_zero or isinstance(error, NonFiniteError)
                if is_dropped and self.synchronizer.extra[len(self.layout) + 1]:
                    continue  # raised on all ranks; those with batches may go on
                raise
            if not self._any_has_batches:
                break
            self.stepped()
        self.synchronizer.discard(self.tensors.stream)
        self.zero(set_to_none=True)
        rounds = self.comm.allgather(np.array([self._rounds])).ravel()
        return int(rounds.argmax()) if rounds.min() < rounds.max() else None

    def check_change(self) -> None:
        """Raise on all ranks unless the strategy can be bound to other tensors now. Collective."""
        error = None
        try:
            self.synchronizer.check_change()
        except ArgumentError as caught:
            error = caught
        raise_together(self.comm, error)

    # ---- order ---------------------------------------------------------------------------------------------------

    def fix_order(self) -> None:
        """Keep the tensors in their current order."""
        self._order_known = True

    def _learn_order(self) -> None:
        """Put the tensors in the order in which rank 0's gradients became final, once this is known."""
        count = len(self.layout)
        seen = [*self._seen, *(index for index in range(count) if index not in set(self._seen))]
        everything = np.array([bool(self._seen), *seen], np.int64)
        self.comm.broadcast(everything)
        if everything[0]:
            self._order_known = True
            self._reorder(everything[1:].tolist())

    def _reorder(self, order: Sequence[int]) -> None:
        """Bind the strategy again, to the tensors in another order, with its state."""
        if list(order) == list(range(len(order))):
            return
        old, status = self.synchronizer, self.synchronizer.extra.copy()
        self.used[:] = [self.used[i] for i in order]
        self._bind(self.layout.in_order(order), old)
        self.synchronizer.extra[len(order) :] = status[len(order) :]
        old.close()
        self.on_new_order()

    # ---- state ---------------------------------------------------------------------------------------------------

    def state(self, kind: str, of_synchronizer: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the state of training; `of_synchronizer` is the synchronizer's part, or None."""
        return {
            "of": kind,
            "shapes": self._shapes,
            "loss_scale": None if self.loss_scale is None else self.loss_scale.state_dict(),
            "order_is_known": self._order_known,
            "synchronizer": of_synchronizer,
        }

    def consolidated_state(self, kind: str) -> dict[str, Any]:
        """Return a state of training that any number of ranks can load, the same on all. Collective."""
        state = self.state(kind, self.synchronizer.consolidated_state_dict())
        return cast("dict[str, Any]", consolidated(self.comm, state, means=False))

    @property
    def _shapes(self) -> dict[str, list[int]]:
        return {name: list(shape) for name, shape in zip(self.layout.names, self.layout.shapes, strict=True)}

    def check_state(self, state: Mapping[str, Any], kind: str) -> None:
        """Raise unless `state` is of this kind and of a model with these tensors."""
        missing = _NEEDED - set(state)
        if missing:
            message = f"the state has no {', '.join(sorted(missing))}: it was not made by a DistributedOptimizer"
            raise ArgumentError(message)
        if state["of"] != kind:
            message = f"the state is of {state['of']}, and this is {kind}"
            raise ArgumentError(message)
        for name, shape in self._shapes.items():
            if name not in state["shapes"]:
                message = f"the state is of another model, which has no {name}"
                raise ArgumentError(message)
            if list(state["shapes"][name]) != shape:
                message = f"the state is of another model, whose {name} has shape {state['shapes'][name]}, not {shape}"
                raise ArgumentError(message)
        for name in state["shapes"]:
            if name not in self._shapes:
                message = f"the state is of another model, which has {name}"
                raise ArgumentError(message)
        if state["synchronizer"] is not None:
            self.synchronizer.check_state_dict(state["synchronizer"])

    def agree_on_state(self, state: Mapping[str, Any] | None, error: GradientFlowError | None) -> None:
        """Raise on all ranks if one has an error, or if their states do not belong together. Collective."""
        raise_together(self.comm, error)
        if state is None or state["synchronizer"] is None:
            entries = {"the kind of state": "a state of an optimizer alone"}
        else:
            entries = {"the kind of state": "a state of a strategy"}
            entries |= self.synchronizer.summary(state["synchronizer"])
        require_same(self.comm, "states", entries)

    def load_synchronizer(self, state: Mapping[str, Any] | None) -> None:
        """Load the synchronizer's part of a state, and its order of tensors; without one, reset. Collective."""
        self.abandon()
        self._begun = False
        own = None if state is None else state["synchronizer"]
        if state is not None and own and "names" in own:
            self._reorder([self.layout.names.index(name) for name in own["names"]])
            self._order_known = self._order_known or bool(state["order_is_known"])
        with self.tensors.default_stream():
            self._update_masters()  # the user may just have loaded the model
            self.synchronizer.load_state_dict(own)
        self._round_masters()
        self.tensors.exchanged()
        self.flushed = self._overflowed = self.unscaled = False
        self.update = None

    def load_loss_scale(self, state: Mapping[str, Any] | None) -> None:
        """Load the loss scale of a state."""
        if state is not None and state["loss_scale"] is not None and self.loss_scale is not None:
            self.loss_scale.load_state_dict(state["loss_scale"])


__all__ = ["Loop"]
