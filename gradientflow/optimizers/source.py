"""Sources of gradients for the core's optimizers: a pool, whose `wait` the caller calls, or a training loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from gradientflow.annotations import StateDict, TensorLike
from gradientflow.errors import ArgumentError
from gradientflow.pools.gradient import GradientPool
from gradientflow.pools.sparse import SparseGradientPool
from gradientflow.strategies import Settings
from gradientflow.strategies.update import Kind
from gradientflow.training import ArrayLoop, LossScale, consolidated

if TYPE_CHECKING:
    from gradientflow.training.array_loop import Optimizer

Groups = Sequence[tuple[str, Sequence[int]]]
SettingsOf = Callable[[int], Settings]


class PoolSource:
    """The gradients of a pool.

    Parameters
    ----------
    pool : GradientPool or SparseGradientPool
        The pool.
    correction : bool
        True to use momentum correction, if the pool has it.
    loss_scale : LossScale, float, "dynamic" or None
        The factor by which gradients have to be divided.
    """

    def __init__(
        self, pool: GradientPool | SparseGradientPool, correction: bool, loss_scale: LossScale | float | str | None
    ) -> None:
        self._pool = pool
        self._updates_every_weight = not (pool.corrects_momentum and correction)
        self.rate_in_momentum = pool.corrects_momentum and correction
        self.shapes: Sequence[tuple[int, ...]] = pool.shapes
        self.groups: Groups = [(pool.dtype, range(len(pool.shapes)))]
        self.device = pool.device
        self.loss_scale = LossScale.of(loss_scale)

    def start(self, optimizer: object, settings: SettingsOf) -> None:
        """Bind the loss scale to the optimizer, once the optimizer is constructed."""
        if self.loss_scale is None:
            return
        if not self._pool.skip_nonfinite:
            message = "with a loss scale the pool has to skip what is not finite: give it skip_nonfinite=True"
            raise ArgumentError(message)
        self.loss_scale.bind(optimizer)
        self.set_scale()

    def set_scale(self) -> None:
        """Pass the loss scale to the pool."""
        if self.loss_scale is not None:
            self._pool.loss_scale = self.loss_scale.value

    def has_gradient(self, index: int) -> bool:
        """Return True, because gradients that are not ready in a pool count as zeros."""
        return True

    def updates(self, stream: object) -> tuple[tuple[TensorLike, ...], Kind]:
        """Return the pool's update, and the decision to apply or skip the step."""
        update = self._pool.update(self._updates_every_weight)
        skipped = self.loss_scale is not None and self._pool.has_nonfinite(stream)
        return (update,), "skipped" if skipped else "apply"

    def consolidated(self, state: dict[str, object]) -> StateDict:
        """Return the optimizer's state unchanged: all ranks make the same steps."""
        return state

    def stepped(self, overflowed: bool) -> None:
        """Update the loss scale after a step that was made or skipped."""
        if self.loss_scale is not None:
            self.loss_scale.update(overflowed)
            self.set_scale()


class LoopSource:
    """The gradients of a training loop.

    Parameters
    ----------
    loop : ArrayLoop
        The loop.
    loss_scale : None
        None: the loop has its own loss scale.
    """

    def __init__(self, loop: ArrayLoop, loss_scale: LossScale | float | str | None) -> None:
        if loss_scale is not None:
            raise ArgumentError("a training loop has its loss scale: give it to ArrayLoop")
        self._loop = loop
        self.rate_in_momentum = loop.strategy.step == "core_rate_in_momentum"
        self.shapes: Sequence[tuple[int, ...]] = loop.layout.shapes
        self.groups: Groups = loop.layout.groups
        self.device = None
        self.loss_scale = loop.loss_scale

    def start(self, optimizer: Optimizer, settings: SettingsOf) -> None:
        """Bind the loop and its loss scale to the optimizer, once the optimizer is constructed."""
        if self.loss_scale is not None:
            self.loss_scale.bind(optimizer)
        self._loop.use_optimizer(optimizer, settings)

    def has_gradient(self, index: int) -> bool:
        """Tell if any rank had a gradient of a tensor in the last iteration."""
        return self._loop.has_gradient(index)

    def set_scale(self) -> None:
        """Do nothing: each iteration begins with the current loss scale."""

    def updates(self, stream: object) -> tuple[tuple[TensorLike, ...], Kind]:
        """Return the update of each dtype, and its kind: to apply, to skip, or already written by the strategy."""
        update = self._loop.update
        if update is None:
            raise ArgumentError("there are no gradients for a step: wait() first, once in each iteration")
        return update.gradients, "skipped" if self._loop.overflowed else update.kind

    def consolidated(self, state: dict[str, object]) -> StateDict:
        """Return a state of the optimizer that is equal on all ranks. Collective."""
        are_same = self._loop.strategy.gradients == "mean"
        return state if are_same else cast("StateDict", consolidated(self._loop.comm, state, means=True))

    def stepped(self, overflowed: bool) -> None:
        """Tell the loop that the step was made or skipped."""
        self._loop.stepped()


__all__ = ["LoopSource", "PoolSource"]
