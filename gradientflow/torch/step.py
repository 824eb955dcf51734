"""The step of a DistributedOptimizer: made by its optimizer, the core or the strategy, or skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gradientflow.errors import ArgumentError
from gradientflow.strategies.update import Phase

from .bound_model import BoundModel
from .fused_step import FusedStep


class Step:
    """Makes steps with the gradients of a bound model, by an optimizer, or by `fused_step` in its place. Collective."""

    def __init__(self, bound: BoundModel, optimizer: torch.optim.Optimizer, fused_step: FusedStep | None) -> None:
        self._bound = bound
        self._loop = bound.loop
        self._optimizer = optimizer
        self._fused_step = fused_step
        self._hooked_step = torch.optim.Optimizer.profile_hook_step(self._step_of_core)

    def __call__(self, closure: Callable[[], object] | None) -> Any:
        """Make a step, or skip it. Return the optimizer's result, or the mean loss of `closure`."""
        self._check(closure)
        if self._fused_step is not None:
            result = None
            if closure is None:
                self._bound.synchronize()
            else:
                with torch.enable_grad():
                    result = self._evaluate(closure)
            self._apply(lambda: self._hooked_step(self._optimizer))
        elif closure is None:
            self._bound.synchronize()
            result = self._apply(self._optimizer.step)
        else:
            result = self._optimizer.step(lambda: self._evaluate(closure))
        self._bound.check_weights()
        try:
            self._loop.stepped()  # the strategy may now write weights
        finally:
            self._bound.weights_are_written()
        return result

    @property
    def is_for_state(self) -> bool:
        """True if the step has nothing to train: PyTorch's `get_state_dict` makes such a step to initialize the state.

        PyTorch sets gradients of zeros and learning rates of 0 for it, before the first backward pass.
        """
        gradients, groups = self._bound.gradients, self._optimizer.param_groups
        return (
            gradients.are_zeros_set_by_hand
            and self._loop.progress.phase is Phase.IDLE
            and not self._loop.progress.passes
            and all(float(group.get("lr", 0)) == 0 for group in groups)
        )

    def _check(self, closure: Callable[[], object] | None) -> None:
        """Raise if gradients were changed after they were sent, or a closure would change them."""
        strategy, progress, problem = self._loop.strategy, self._loop.progress, ""
        if strategy.gradients == "consumed" and closure is not None:
            problem = "step(closure) does not go with it"
        elif strategy.gradients == "consumed" and progress.update is not None and self._bound.gradients.changed:
            problem = "gradients that are changed after backward(), as by clipping, do not go with it"
        if problem:
            raise ArgumentError(f"{strategy.name} has sent the gradients when backward() returns: {problem}")
        if closure is not None and self._loop.batches.are_uneven:
            raise ArgumentError("step(closure) does not work inside join(): other ranks may be out of batches")

    def _apply(self, step: Callable[[], object]) -> object:
        """Make the step, unless gradients are not finite or the strategy has made it."""
        update = self._loop.progress.update
        result = None
        if update is not None and update.kind == "apply" and not self._loop.progress.overflowed:
            with self._loop.comm.span("step"):
                result = step()
        vars(self._optimizer)["_opt_called"] = True  # read by learning-rate schedulers
        return result

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        """Call the user's closure, and return the mean loss over the ranks."""
        loss = closure()
        self._bound.synchronize()
        is_tensor = isinstance(loss, torch.Tensor)
        mean = float(self._loop.comm.allreduce(np.array(loss.item() if is_tensor else float(loss)), "mean"))
        return loss.detach().new_tensor(mean) if is_tensor else mean

    def _step_of_core(self, _: object) -> None:
        assert self._fused_step is not None
        assert self._loop.progress.update is not None
        loss_scale = self._loop.loss_scale
        scale = 1.0 if loss_scale is None or self._loop.progress.unscaled else loss_scale.value
        error = None
        if self._loop.synchronizer.shared is not None and self._bound.gradients.changed:
            error = ArgumentError(
                "with share='node' gradients are averaged by step(): what changes them after backward(), as clipping "
                "does, does not go with it"
            )
        self._fused_step.step(self._loop.progress.update, 1 / scale, self._loop.tensors.stream, error)
