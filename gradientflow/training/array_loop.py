"""The training loop for NumPy arrays, and for other arrays whose gradients are written in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Protocol

from gradientflow.agreement import require_same_kinds
from gradientflow.annotations import StateDict, TensorLike
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError
from gradientflow.metrics.across import across_ranks as over_ranks
from gradientflow.metrics.registry import Values
from gradientflow.metrics.watch import watch
from gradientflow.plain import Plain
from gradientflow.strategies import (
    Comparison,
    Explanation,
    Layout,
    Settings,
    Strategy,
    Synchronizer,
    Update,
    as_strategy,
    compare,
    default_strategy,
)
from gradientflow.strategies.comparison import CANDIDATES
from gradientflow.strategies.exchange.pending import Pending

from .changing_ranks import Replica
from .consolidation import consolidated
from .loop import Loop
from .loss_scale import LossScale
from .meter import Meter
from .moving import Settled
from .ranks import OverRanks
from .state import TrainingState
from .survival import ranks_of
from .uneven import join


class Optimizer(Protocol):
    """The interface of the loop's optimizers, such as `gradientflow.optimizers.SGD`.

    Attributes
    ----------
    hyperparameters : mapping of str to value
        Numbers that can be changed during training, such as the learning rate.
    """

    hyperparameters: Mapping[str, object]

    @property
    def masters(self) -> Mapping[int, TensorLike]:
        """Float32 master weights, by the index of their 16-bit tensor."""

    def round_masters(self) -> None:
        """Set 16-bit weights to their rounded master weights."""

    def update_masters(self) -> None:
        """Set master weights to their 16-bit weights wherever these were changed."""

    def live_state(self) -> StateDict:
        """Return the state, whose arrays may change with the next step."""

    def state_dict(self) -> StateDict:
        """Return this rank's state."""

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Load a state."""

    def broadcast_state(self, comm: Communicator, root: int) -> None:
        """Broadcast the state of the root's optimizer. Collective."""

    def velocities(self) -> Mapping[int, TensorLike]:
        """Return the momentum of SGD without the learning rate, or of LARS, by the index of the tensor."""

    def check_velocities(self, has_rate: bool) -> None:
        """Raise if `set_velocities` cannot take the learning rate out of the momentum."""

    def set_velocities(self, velocities: Mapping[int, TensorLike], has_rate: bool) -> None:
        """Set the momentum; `has_rate`: the learning rate of SGD is inside of `velocities`."""

    def step_with(self, gradients: Mapping[int, TensorLike], has_momentum: bool) -> None:
        """Make a step with these gradients, by the index of the tensor; all other tensors stay as they are."""


class ArrayLoop(OverRanks):
    """A training loop for arrays, synchronized by a strategy. Gradients are written into the arrays `gradients`.

    Collective: all ranks construct it with the same arguments. Weights are broadcast from rank 0.

    Parameters
    ----------
    comm : Communicator
        Ranks that take part.
    weights : sequence of arrays
        Contiguous arrays of float16, bfloat16, float32 or float64, in the order of backpropagation: the last layer
        first. Gradients have the same shapes and dtypes.
    strategy : Strategy or str, optional
        A strategy, or its text, such as ``"csc(density=0.1)"``; by default the strategy of the settings file, or dense
        communication if the file names none.
    loss_scale : float, "dynamic" or LossScale, optional
        The factor by which the loss is multiplied. If given, iterations with infinite or NaN gradients are skipped.
    on_failure : {"raise", "continue"}
        Reaction to a rank that dies or does not answer: raise the error, or continue with the survivors, see `steps`.
        After a survived loss, `wait` returns an update of kind "skipped".
    min_ranks : int, optional
        Least number of survivors, as in `gradientflow.Communicator.recover`.

    Attributes
    ----------
    strategy : Strategy
        The strategy.
    weights : list of arrays
        As given.
    loss_scale : LossScale or None
        The loss scale: multiply the loss by its `value`.

    Examples
    --------
    >>> training = gf.training.ArrayLoop(comm, [w2, w1], "csc(density=0.2)")
    >>> optimizer = gf.optimizers.SGD(training, training.weights, lr=0.1, momentum=0.9)
    >>> for step in range(100):
    ...     for index, gradient in enumerate(training.gradients):
    ...         gradient[...] = backward(index)
    ...         training.ready(index)
    ...     training.wait()
    ...     optimizer.step()
    """

    def __init__(
        self,
        comm: Communicator,
        weights: Sequence[TensorLike],
        strategy: Strategy | str | None = None,
        *,
        loss_scale: LossScale | float | str | None = None,
        on_failure: str = "raise",
        min_ranks: int | None = None,
    ) -> None:
        self.strategy = default_strategy() if strategy is None else as_strategy(strategy)
        self.weights = list(weights)
        self.loss_scale = LossScale.of(loss_scale)
        layout = Layout.of(self.weights)
        if not self.weights:
            raise ArgumentError("there are no weights to train")
        tensors = {
            name: f"{dtype} {shape}"
            for name, shape, dtype in zip(layout.names, layout.shapes, layout.dtypes, strict=True)
        }
        settings = {
            "loss_scale": repr(self.loss_scale),
            "on_failure": on_failure,
            "min_ranks": str(min_ranks),
        }
        self._meter = Meter()
        self._ranks = ranks_of(comm, on_failure, min_ranks, Replica(self._replica, self._load_replica))
        name = f"ArrayLoop with {self.strategy.name}"
        self._watched = watch("training", name, comm, self._meter.live, self._ranks.here)
        chosen = {"strategy": repr(self.strategy)}
        self._ranks.entries = {"weights": tensors, "strategies": chosen, "settings": settings}
        self._tensors = _Arrays()
        self._optimizer: Optimizer | None = None

        def make(comm: Communicator) -> Loop:
            require_same_kinds(comm, self._ranks.entries)
            for weight in layout.weights:
                comm.broadcast(weight)
            scale, meter = self.loss_scale, self._meter
            return Loop(self._ranks, self.strategy, layout, self._tensors, loss_scale=scale, meter=meter)

        self._loop = self._ranks.make(make)
        self._loop.backward_order.is_known = True  # the order of `weights`
        self._state = TrainingState(self._loop)
        if self.synchronizer.shared is not None:
            self.close()
            message = f"{self.strategy!r}: arrays stay where they are, and only gradientflow.torch shares weights"
            raise ArgumentError(message)

    def _loop_now(self) -> Loop:
        return self._loop

    @property
    def synchronizer(self) -> Synchronizer:
        """The synchronizer that `Strategy.bind` has returned."""
        return self._loop.synchronizer

    @property
    def layout(self) -> Layout:
        """The layout of the tensors."""
        return self._loop.layout

    @property
    def gradients(self) -> tuple[TensorLike, ...]:
        """The arrays for the gradients, one per tensor; after `wait` they hold the gradients for the step."""
        return self._loop.synchronizer.gradients

    @property
    def bytes_sent(self) -> int | None:
        """Bytes this rank sent to other ranks in messages for the last step; None if unknown."""
        return self._loop.bytes_sent

    def metrics(self, across_ranks: bool = False) -> Values:
        """Return metrics of the last step, and means of the last 100 steps, by name; see `gradientflow.metrics`."""
        found = self._loop.metrics()
        return over_ranks(self.comm, found) if across_ranks else found

    def ready(self, index: int) -> None:
        """Mark gradient `index` as final for this iteration. May be called from any thread.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If there is no such gradient, or it is already final in this iteration.
        """
        count = len(self._loop.layout)
        if not -count <= index < count:
            raise ArgumentError(f"gradient {index} is not there: there are {count}")
        if not self._loop.progress.order:
            self._loop.begin_pass()
        index %= count
        self._loop.used[index] = True
        self._loop.ready(index)

    def wait(self) -> Update:
        """End the iteration: wait until `gradients`, or the weights, are ready for the step. Collective.

        Gradients that are not ready count as zeros on this rank. A tensor that is ready on no rank has no gradient: the
        step does not change it.

        Raises
        ------
        gradientflow.errors.AbandonedError
            If a rank gave up the iteration: all ranks drop it, and can continue with the next iteration.
        gradientflow.errors.NonFiniteError
            On every rank, if a gradient is infinite or NaN and the strategy checks for this.
        """
        if not self._loop.progress.order:
            self._loop.begin_pass()
        self._loop.end_pass()
        self._loop.synchronize()
        assert self._loop.progress.update is not None
        return self._loop.progress.update

    def has_gradient(self, index: int) -> bool:
        """Tell whether tensor `index` has a gradient for the step after `wait`: from any rank, or from residuals."""
        return self._tensors.present[index]

    def stepped(self) -> None:
        """Note that the step was made or skipped; the optimizers of `gradientflow.optimizers` call it themselves."""
        self._loop.stepped()

    @property
    def update(self) -> Update | None:
        """The update of the last iteration; None once its step is done."""
        return self._loop.progress.update

    def abandon(self) -> None:
        """Give up the iteration, for example after an exception; all other ranks get `AbandonedError`."""
        self._loop.zero(set_to_none=True)

    @contextmanager
    def join(self) -> Iterator[None]:
        """Allow the ranks different numbers of iterations in a ``with`` block. Collective.

        A rank that leaves the block contributes zeros until all ranks have left it. Then all ranks get the weights and
        the optimizer state of a rank that had the most iterations.
        """
        with join(self._loop, self._broadcast):
            yield

    def _replica(self, with_weights: bool) -> object:
        """Return weights, the optimizer's state and numbers, and the loss scale."""
        scale = self._loop.loss_scale
        return (
            list(self._loop.layout.weights) if with_weights else None,
            None if self._optimizer is None else (self._optimizer.live_state(), self._optimizer.hyperparameters),
            None if scale is None else scale.state_dict(),
        )

    def _load_replica(self, replica: Plain, is_new: bool) -> None:
        """Load a replica. Hyperparameters only on a new rank: the giver may have set them for its next step."""
        weights, optimizer, scale = replica
        for mine, theirs in zip(self._loop.layout.weights, weights or (), strict=weights is not None):
            mine[...] = theirs
        if self._optimizer is not None:
            state, numbers = optimizer
            self._optimizer.load_state_dict(state)
            if is_new:
                self._optimizer.hyperparameters = numbers
        if self._loop.loss_scale is not None:
            self._loop.loss_scale.load_state_dict(scale)

    def _broadcast(self, root: int) -> None:
        """Broadcast the root's weights and optimizer state. Collective."""
        for weight in self._loop.layout.weights:
            self.comm.broadcast(weight, root)
        if self._optimizer is not None:
            self._optimizer.broadcast_state(self.comm, root)

    def finish(self) -> None:
        """End training: complete communication under way, and leave the same weights on all ranks. Collective."""
        self._loop.finish()

    def explain(self, **times: float) -> Explanation:
        """Measure the link; explain what the strategy sends for these weights, and the expected gain. Collective.

        Parameters
        ----------
        **times
            ``compute_seconds`` and ``backward_seconds``, as in `gradientflow.strategies.Strategy.explain`.
        """
        return self._loop.synchronizer.explain(**times)

    def tune(
        self,
        strategies: str = CANDIDATES,
        *,
        lossless: bool = False,
        compute_seconds: float,
        backward_seconds: float | None = None,
    ) -> Comparison:
        """Measure the link; compare the predicted steps of strategies for these weights. Collective; changes nothing.

        Parameters
        ----------
        strategies, lossless, compute_seconds, backward_seconds
            As in `gradientflow.strategies.compare`.

        Returns
        -------
        gradientflow.strategies.Comparison
            The steps, and advice which strategy to take; its `str` is a table.
        """
        return compare(
            self.comm,
            self._loop.layout,
            self._loop.strategy,
            strategies,
            lossless=lossless,
            compute_seconds=compute_seconds,
            backward_seconds=backward_seconds,
        )

    def common_weights(self) -> AbstractContextManager[None]:
        """Put the weights common to all ranks in place for a ``with`` block, to evaluate or save them in mid-run.

        If the strategy lets each rank train on weights of its own, the common weights date from the last exchange that
        this rank has applied. Not collective.
        """
        return self._loop.common_weights()

    def close(self) -> None:
        """Free memory and communicators. The weights stay as they are."""
        self._close(orderly=True)

    def _close(self, orderly: bool) -> None:
        self._watched.end(self._loop.metrics if orderly else None)
        self._loop.synchronizer.close(orderly)
        self._ranks.close(orderly)

    def __enter__(self) -> ArrayLoop:
        """Return the loop itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the loop; after an exception without waiting for communication under way."""
        self._close(orderly=kind is None)

    def state_dict(self) -> StateDict:
        """Return this rank's checkpoint of strategy and loss scale. Does not communicate."""
        return self._state.own()

    def consolidated_state_dict(self) -> StateDict:
        """Return a state that any number of ranks can load, the same on all. Collective."""
        return self._state.consolidated()

    def load_state_dict(self, state: Mapping[str, object], pending: str | None = None) -> None:
        """Load a state of any strategy. Collective.

        Before the state of another strategy, load the weights, make the optimizer, and load its state.

        Parameters
        ----------
        state : dict
            The state.
        pending : {"apply", "drop"}, optional
            Use of the gradients and steps that a state of another strategy has kept back, and this one cannot take.
            "apply": the optimizer makes one step with the mean of the residuals, and weights that differ between ranks
            become their mean. "drop": they are lost, and ranks go back to their last common weights. By default they
            are an error; if there are none, the state is loaded.

        Raises
        ------
        gradientflow.errors.ArgumentError
            On every rank, if the state belongs to other tensors, or something is pending in it and cannot be used as
            told. Nothing is changed then.
        """

        def check() -> None:
            self._state.check(state)
            if pending == "apply" and self._optimizer is None and self._state.moves(state):
                raise ArgumentError(
                    "the optimizer makes the step with what is pending: make it, and load its state, before this state"
                )
            if self._optimizer is not None and self._state.moves(state):
                self._optimizer.check_velocities(self._state.pending_in(state).momentum_has_rate)

        settled = self._state.load(state, check, pending)
        if settled is not None:
            self._move(self._state.pending_in(state), settled)
        self._state.load_loss_scale(state)
        if self._optimizer is not None:
            self._optimizer.update_masters()

    def _move(self, found: Pending, settled: Settled) -> None:
        """Continue from the state of another strategy. Collective."""
        optimizer, layout = self._optimizer, self._loop.layout
        if optimizer is not None and found.weights is not None:  # each rank has made steps of its own
            optimizer.load_state_dict(consolidated(self.comm, optimizer.state_dict(), means=True))
        for name, weight in zip(layout.names, layout.weights, strict=True):
            if name in settled.weights:
                weight[...] = settled.weights[name]
        if optimizer is not None:
            optimizer.update_masters()
            if settled.momentum:
                optimizer.set_velocities(_by_index(settled.momentum), has_rate=found.momentum_has_rate)
            if settled.gradients:
                optimizer.step_with(_by_index(settled.gradients), has_momentum=not found.has_momentum)
        self._state.begin(settled)
        if optimizer is not None:
            self.synchronizer.take_momentum({str(index): each for index, each in optimizer.velocities().items()})

    def use_optimizer(self, optimizer: Optimizer, settings: Callable[[int], Settings]) -> None:
        """Use the settings of an optimizer, such as learning rates, and its master weights."""
        self._loop.synchronizer.check_settings(settings)
        self._loop.settings = settings
        self._loop.status.rates.now = lambda: (settings(0).rate,)
        self._optimizer = optimizer
        self._loop.on_new_order = self._use_masters
        self._use_masters()

    def _use_masters(self) -> None:
        assert self._optimizer is not None
        masters = self._optimizer.masters
        self._loop.use_masters(masters, self._optimizer.round_masters, self._optimizer.update_masters)

    @property
    def overflowed(self) -> bool:
        """True if gradients of the last iteration were not finite; its step is skipped then."""
        return self._loop.progress.overflowed


def _by_index(arrays: Mapping[str, TensorLike]) -> dict[int, TensorLike]:
    """Return arrays by the index of the tensor, which is its name."""
    return {int(name): array for name, array in arrays.items()}


class _Arrays:
    """The `Tensors` of an `ArrayLoop`: gradients that are always in their places."""

    stream = None

    def __init__(self) -> None:
        self._gradients: Sequence[TensorLike] = ()
        self.present: list[bool] = []  # flags of tensors that have a gradient since the last exchange

    def attach(self, synchronizer: Synchronizer) -> list[int]:
        self._gradients = synchronizer.gradients
        self.present = [True] * len(self._gradients)
        return []

    def default_stream(self) -> AbstractContextManager[object]:
        return nullcontext()

    def check(self, final: list[int]) -> None:
        pass

    def collect(self, index: int, used: bool) -> bool:
        self._gradients[index][...] = 0
        return False

    def set_present(self, index: int, present: bool) -> None:
        self.present[index] = present

    def zero(self, set_to_none: bool) -> None:
        for gradient in self._gradients:
            gradient[...] = 0

    def exchanged(self) -> None:
        self.present = [True] * len(self._gradients)

    def settings(self, index: int) -> Settings:
        message = f"no optimizer has told the settings of tensor {index}: make one of gradientflow.optimizers first"
        raise ArgumentError(message)


__all__ = ["ArrayLoop"]
