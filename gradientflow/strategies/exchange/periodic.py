"""Strategies that exchange weights every few steps. In between, each rank trains by itself."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import numpy as np

from gradientflow.annotations import State, StateDict
from gradientflow.arguments import checked_float, checked_int
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError, GradientFlowError
from gradientflow.handle import Handle
from gradientflow.memory import array_over
from gradientflow.model.computation import Computation
from gradientflow.model.costs import Call, Costs
from gradientflow.model.pooled import counts_of
from gradientflow.model.traffic import EveryFewSteps, Traffic
from gradientflow.plain import Plain
from gradientflow.strategies.contract import Strategy
from gradientflow.strategies.layout import Layout
from gradientflow.strategies.update import Phase

from .nonfinite import first_nonfinite, is_finite, nonfinite_error
from .state import in_order
from .survivable import SurvivableArrays

Array = np.ndarray

_NOT_DUE = -1
_PASSES = 10 * 4  # bytes of memory for each weight


class PeriodicStrategy(Strategy):
    """A strategy whose ranks exchange changes of weights every `period` steps, and continue from common weights.

    Parameters
    ----------
    period : int
        Steps from one exchange to the next.

    Attributes
    ----------
    fragments : int
        Parts of the model. They take turns: each part is exchanged every `period` steps.
    delay : int
        Steps after which the result of an exchange is applied. The result travels meanwhile. Below `period`.
    mixing : float or None
        The share of a rank's own weights in their mix with common weights; by default 0, or 0.5 with a delay.
    wire : str or None
        Format to which values are rounded between nodes, as in `gradientflow.Communicator.allreduce`.
    """

    gradients = "local"
    effect = "local"
    fragments: int = 1
    delay: int = 0
    mixing: float | None = None
    wire: str | None = None
    outer_rate: float = 1.0
    outer_momentum: float = 0.0
    nesterov: bool = False
    not_taken = dict.fromkeys(
        ("density", "ratio"), "sparse_loco is the method that sends the largest changes of weights and keeps the rest"
    )

    def __init__(self, period: int, **options: object) -> None:
        super().__init__(**options)
        self.period = checked_int("period", period, 1)

    def _apply_later(self, delay: int, mixing: float | None) -> None:
        """Check and keep the delay of an exchange's result, and a rank's own share when it is applied."""
        self.delay = checked_int("delay", delay)
        self.mixing = mixing
        if self.delay >= self.period:
            raise ArgumentError(f"delay is below period, {self.period}, not {delay!r}")
        if mixing is not None and not 0 <= checked_float("mixing", mixing) < 1:
            raise ArgumentError(f"mixing is from 0 to below 1, not {mixing!r}")

    @classmethod
    def typical(cls, steps: int) -> Strategy:
        """Return the strategy with its usual period, or a quarter of the steps if that is less."""
        return cls(min(inspect.signature(cls).parameters["period"].default, max(1, steps // 4)))

    @property
    def own_share(self) -> float:
        """The share of a rank's own weights in their mix with common weights after an exchange."""
        return self.mixing if self.mixing is not None else 0.5 if self.delay else 0.0

    def bind(self, comm: Communicator, layout: Layout) -> PeriodicSynchronizer:
        """Make the synchronizer, which counts steps and exchanges weights. Collective."""
        return PeriodicSynchronizer(comm, layout, self)

    def traffic(self, computation: Computation, costs: Costs) -> Traffic:
        """Return the exchange of a fragment, an allreduce of the differences of its weights."""
        parameters = sum(counts_of(computation))
        part = -(-parameters // self.fragments)
        call = Call("allreduce", part, "float32", self.wire, in_node_memory=False)
        # Differences are taken, and the outer optimizer reads and writes weights, common weights and its momentum.
        return EveryFewSteps((call,), self.period, self.fragments, self.delay, _PASSES * part, 12.0 * parameters)


class PeriodicSynchronizer(SurvivableArrays):
    """Common weights, beside the weights with which each rank trains.

    Attributes
    ----------
    steps : int
        Steps so far.
    velocity : list of arrays
        The momentum of the outer optimizer.
    differences : list of arrays
        Common weights less this rank's weights, as last sent. Once the exchange is complete, they are means over the
        ranks.
    due : list of int
        The step after which differences are applied, for each fragment, or -1.
    """

    state_names: ClassVar[tuple[str, ...]] = ("steps", "common", "velocity", "differences", "due")
    strategy: PeriodicStrategy
    gradient_source = "none"

    def __init__(self, comm: Communicator, layout: Layout, strategy: PeriodicStrategy) -> None:
        super().__init__(comm, layout, strategy)
        self.steps = 0
        kind = np.float64 if "float64" in layout.dtypes else np.float32
        self._kind = kind
        self._common: list[Array] | None = None
        # Memory that is never touched costs nothing, and `_move_from` may replace it.
        self.velocity: list[Array] = [np.zeros(weight.shape, kind) for weight in layout.weights]
        self.differences: list[Array] = []
        self.due = [_NOT_DUE] * strategy.fragments
        self._parts = _fragments(layout.counts, strategy.fragments)
        self._buffers: list[Array] = []  # differences, then marks
        self._under_way: dict[int, Handle] = {}
        self._is_after_step = False  # `after_step` was called, and has not ended
        self._unsent: int | None = None  # fragment that `after_step` has yet to send
        for part in self._parts:
            buffer = comm.empty(sum(layout.counts[index] for index in part) + comm.size, np.dtype(kind).name)
            self._buffers.append(buffer)
            offset = 0
            for index in part:
                self.differences.append(array_over(buffer, offset, (layout.counts[index],), np.dtype(kind)))
                offset += layout.counts[index] * np.dtype(kind).itemsize

    # ---- the moments of an iteration -----------------------------------------------------------------------------

    def prepare(self) -> None:
        """Before the first step, set the common weights to the rank's: the user may have loaded these after `bind`."""
        if self.steps == 0:
            for common, weight in zip(self.common, self.weights, strict=True):
                common[...] = weight

    @property
    def common(self) -> list[Array]:
        """The weights that all ranks share, as of the last exchange; before the first exchange, the initial weights."""
        if self._common is None:
            self._common = [np.array(weight, self._kind) for weight in self.weights]
        return self._common

    @common.setter
    def common(self, arrays: list[Array]) -> None:
        self._common = arrays

    def exchanges_weights(self) -> bool:
        """Return True if a fragment is sent or applied after the next step."""
        step = self.steps + 1
        return step in self.due or self._sent_after(step) is not None

    def _sent_after(self, step: int) -> int | None:
        """Return the fragment that is sent after a step, if any."""
        period, number = self.strategy.period, self.strategy.fragments
        return next((each for each in range(number) if (step - each * period // number) % period == 0), None)

    def after_step(self) -> None:
        """Send and apply the fragments that are due."""
        if not self._is_after_step:
            self.steps += 1
            self._is_after_step, self._unsent = True, self._sent_after(self.steps)
        self._apply_due()
        if self._unsent is not None:
            fragment, self._unsent = self._unsent, None
            self.due[fragment] = self.steps + self.strategy.delay
            self._send(fragment)
            self._apply_due()
        self._is_after_step = False

    def _apply_due(self) -> None:
        for fragment in self._pending():
            if self.due[fragment] <= self.steps:
                self._apply(fragment)

    def _pending(self) -> list[int]:
        """Return the fragments whose exchange has not ended, in the order in which they were sent."""
        there = [fragment for fragment, due in enumerate(self.due) if due != _NOT_DUE]
        return sorted(there, key=lambda fragment: self.due[fragment])

    def finish(self) -> None:
        """Apply pending exchanges, and set weights to their mean over the ranks."""
        self._apply_all()
        for fragment, part in enumerate(self._parts):
            for index in part:
                self.differences[index][...] = self.weights[index]
            self._mark(fragment)
            self.comm.allreduce(self._buffers[fragment], "mean", label=f"weights at the end, after step {self.steps}")
        self.exchanges += 1
        if not self._is_finite(range(len(self._parts))):
            return
        for common, weight, mean in zip(self.common, self.weights, self.differences, strict=True):
            common[...] = mean
            weight[...] = mean

    def state_before(self) -> StateDict:
        """Return nothing: the state changes only after the step."""
        return {}

    def rollback(self, phase: Phase, stream: object = None) -> None:
        """Undo the iteration; after a failed exchange, give up pending exchanges, too."""
        if phase is Phase.STEP_FAILED:
            self._under_way.clear()
            self.due = [_NOT_DUE] * len(self.due)
            self._is_after_step = False
        super().rollback(phase, stream)

    @contextmanager
    def common_weights(self) -> Iterator[None]:
        """Put the common weights of the last applied exchange into the model in a ``with`` block."""
        own = [weight.copy() for weight in self.weights]
        for weight, common in zip(self.weights, self.common, strict=True):
            weight[...] = common
        try:
            yield
        finally:
            for weight, before in zip(self.weights, own, strict=True):
                weight[...] = before

    # ---- exchange ------------------------------------------------------------------------------------------------

    def begin_exchange(self, fragment: int, differences: Array) -> None:
        """Begin to exchange the differences of a fragment; after `end_exchange` they are means."""
        wire = {"wire": self.strategy.wire} if self.strategy.wire and differences.dtype == np.float32 else {}
        self._under_way[fragment] = self.comm.allreduce_async(
            differences, "mean", label=f"differences of fragment {fragment} after step {self.step_of(fragment)}", **wire
        )

    def step_of(self, fragment: int) -> int:
        """Return the step after which a fragment's exchange began. When it is repeated, ranks are in various steps."""
        return self.due[fragment] - self.strategy.delay

    def end_exchange(self, fragment: int) -> None:
        """Wait until the differences of a fragment are means."""
        handle = self._under_way.pop(fragment, None)
        if handle is not None:  # None: the exchange is complete
            handle.wait()

    def _send(self, fragment: int) -> None:
        for index in self._parts[fragment]:
            np.subtract(self.common[index], self.weights[index], out=self.differences[index])
        self._mark(fragment)
        self.begin_exchange(fragment, self._buffers[fragment])

    def marks(self, fragment: int) -> Array:
        """Return the marks sent after a fragment's differences: for each rank, 1 if its differences are not finite."""
        return self._buffers[fragment][-self.comm.size :]

    def _mark(self, fragment: int) -> None:
        self.marks(fragment)[...] = 0
        self.marks(fragment)[self.comm.rank] = not is_finite(self._buffers[fragment])

    def _is_finite(self, fragments: Sequence[int]) -> bool:
        """Return True if means are finite. Otherwise all ranks drop them, and go back to the common weights."""
        bad = next((each for each in fragments if not is_finite(self._buffers[each])), None)
        if bad is None:
            return True
        part, ranks = self._parts[bad], np.flatnonzero(self.marks(bad))
        found = first_nonfinite(self.differences[index] for index in part)
        assert found is not None  # the marks are finite
        for fragment in fragments:
            self._buffers[fragment][...] = 0
        for weight, common in zip(self.weights, self.common, strict=True):
            weight[...] = common
        what = f"the change of {self.layout.names[part[found]]}"
        outcome = "all ranks go back to the common weights, those of the last exchange"
        self._pending_error = nonfinite_error(what, int(ranks[0]) if len(ranks) else None, outcome)
        return False

    def _apply(self, fragment: int) -> None:
        """Make the step of the outer optimizer, and mix its weights into the rank's."""
        self.end_exchange(fragment)
        self.due[fragment] = _NOT_DUE
        self.exchanges += 1
        if not self._is_finite([fragment]):
            return
        rate, momentum = self.strategy.outer_rate, self.strategy.outer_momentum
        for index in self._parts[fragment]:
            direction, velocity, common = self.differences[index], self.velocity[index], self.common[index]
            if momentum:
                velocity *= momentum
                velocity += direction
                direction = direction + momentum * velocity if self.strategy.nesterov else velocity
            common -= rate * direction
        self._continue_from_common(fragment, self.strategy.own_share)

    def _continue_from_common(self, fragment: int, own: float) -> None:
        for index in self._parts[fragment]:
            weight, common = self.weights[index], self.common[index]
            weight[...] = own * weight + (1 - own) * common if own else common

    def close(self, orderly: bool = True) -> None:  # noqa: D102
        super().close(orderly)
        for handle in self._under_way.values():
            with suppress(GradientFlowError):  # no rank needs the exchange
                handle.wait()

    # ---- ranks that are lost -------------------------------------------------------------------------------------

    def shared_state(self, with_arrays: bool) -> object:
        """Return the results of the exchanges that have ended, and the values that a beginning rank lacks."""
        self.prepare()
        arrays = ("common", "velocity") if self.strategy.outer_momentum else ("common",)
        names = ("steps", "exchanges", "due", *(arrays if with_arrays else ()))
        return {"names": self.layout.names, **{name: getattr(self, name) for name in names}}

    def catch_up(self, state: Plain, begins: bool) -> None:
        """Take the common weights of a rank that is ahead, mixed with this rank's share of its own weights.

        This rank has missed the first of the pending exchanges. After all pending exchanges, it may also have missed
        the end of training.
        """
        arrays = [name for name in ("common", "velocity") if name in state]
        self._take({name: self._in_order(state[name], state["names"]) for name in arrays})
        pending, missed = self._pending(), state["exchanges"] - self.exchanges
        for fragment in pending[:missed]:
            self.due[fragment] = _NOT_DUE
            self._continue_from_common(fragment, self.strategy.own_share)
        if begins or missed > len(pending):
            for fragment in range(len(self._parts)):
                self._continue_from_common(fragment, 0)
        if begins:
            self.steps, self.due = state["steps"], list(state["due"])
        self.exchanges = state["exchanges"]

    # ---- state ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> StateDict:
        """Return the state, after pending exchanges."""
        self._wait_for_all()
        return super().state_dict()

    def consolidated_state_dict(self) -> StateDict:
        """Return a state for any number of ranks, with the mean of their weights. Collective."""
        self._wait_for_all()
        return super().consolidated_state_dict()

    def load_state_dict(self, state: State | None) -> None:
        """Load a state. Collective."""
        self._wait_for_all()
        super().load_state_dict(state)

    def take_over(self, other: Any) -> None:
        """Take the state of another synchronizer, after its pending exchanges.

        If the tensors differ, the fragments differ, too: the exchanges are then applied at once. If `other` is closed,
        the ranks have changed: exchanges that have not ended are repeated, with the weights as they are now.
        """
        is_closed = other.comm.closed
        if not is_closed:
            other._wait_for_all()
            if set(other.layout.names) != set(self.layout.names):
                other._apply_all()
        super().take_over(other)
        self.exchanges, self._pending_error = other.exchanges, other._pending_error
        self._is_after_step, self._unsent = other._is_after_step, other._unsent
        for fragment in self._pending() if is_closed else ():
            self._send(fragment)

    def _move_from(self, other: PeriodicSynchronizer) -> Sequence[str]:
        """Take the memory of `other`, so that nothing is allocated while peers wait. Sent data is sent again."""
        if other.layout.names == self.layout.names:
            self._memory, self._offsets, self._addresses = other._memory, other._offsets, other._addresses
            self.__dict__.pop("_places", None)  # places of the gradients
        self.common = in_order(other.common, other.layout.names, self.layout, self.common)
        self.velocity = in_order(other.velocity, other.layout.names, self.layout, self.velocity)
        return "common", "velocity", "differences"

    def _apply_all(self) -> None:
        for fragment in self._pending():
            self._apply(fragment)

    def _wait_for_all(self) -> None:
        for fragment in list(self._under_way):
            self.end_exchange(fragment)


def _fragments(counts: Sequence[int], number: int) -> list[list[int]]:
    """Cut tensors into fragments of nearly equal size, in their order; some may be empty."""
    ends = np.cumsum([0, *counts])
    middles = (ends[:-1] + ends[1:]) / 2
    places = np.minimum(middles * number // max(1, int(ends[-1])), number - 1).astype(int)
    return [np.flatnonzero(places == fragment).tolist() for fragment in range(number)]


__all__ = ["PeriodicStrategy", "PeriodicSynchronizer"]
