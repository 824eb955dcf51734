"""A Trainer of Transformers whose gradients are averaged by a strategy."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from transformers import Trainer
from transformers.trainer import SCHEDULER_NAME

from gradientflow.strategies import Strategy
from gradientflow.torch.optimizer import DistributedOptimizer

from . import saved_state
from .wrapping import close, is_current, wrap

_FOLDER = "gradientflow"  # inside a checkpoint


class GradientFlowTrainer(Trainer):  # type: ignore[misc]
    """A `transformers.Trainer` with a `gradientflow.torch.DistributedOptimizer` in place of DistributedDataParallel.

    It wraps the optimizer that the Trainer makes or is given. Ranks are those of the Trainer, whose process group may
    have any backend. Accumulation, clipping, evaluation, checkpoints and resuming work as in a Trainer. To use another
    Trainer, inherit from both: ``class MyTrainer(GradientFlowTrainer, SFTTrainer)``.

    Each checkpoint has a folder "gradientflow" with the state of all ranks: the same number of ranks resumes bit for
    bit. A checkpoint of a plain Trainer is loaded as well; the strategy begins then. Hosts share the folder of
    checkpoints.

    Parameters
    ----------
    *args, **kwargs
        As of `transformers.Trainer`.
    strategy : gradientflow.strategies.Strategy or str
        The gradients to send, and when, such as ``"lags(ratio=100)"``; not all take AdamW.
    fused : bool, optional
        As of `gradientflow.torch.DistributedOptimizer`.

    Examples
    --------
    >>> from gradientflow.torch.integrations.transformers import GradientFlowTrainer
    >>> trainer = GradientFlowTrainer(model, arguments, train_dataset=data, strategy="lags(ratio=100)")
    >>> trainer.train()
    """

    accelerator: Any

    def __init__(self, *args: Any, strategy: Strategy | str, fused: bool | None = None, **kwargs: Any) -> None:
        self._strategy = strategy
        self._fused = fused
        self._distributed: DistributedOptimizer | None = None
        self._has_common_weights = True  # False while ranks may have weights of their own
        super().__init__(*args, **kwargs)

    def create_optimizer(self, model: torch.nn.Module | None = None) -> Any:
        """Create the optimizer, wrap it, and have the model prepared without DistributedDataParallel. Collective."""
        optimizer = super().create_optimizer(model)
        self._has_common_weights = False
        former = self._distributed
        if former is not None:
            is_wrapped = getattr(optimizer, "optimizer", None) is former
            if is_wrapped and is_current(former, self.model):
                return optimizer
            if is_wrapped:  # another trainer has trained this model since
                self.optimizer = optimizer = former._inner
            else:  # model_init has made another model
                close(former)
        # The Trainer prepares both next. Accelerate returns what is prepared already: this model, which has no DDP.
        self.model_wrapped = self.accelerator.prepare_model(self.model, evaluation_mode=True)
        self._distributed = wrapped = wrap(optimizer, self.model, self._strategy, self._fused)
        self.optimizer = self.accelerator.prepare(wrapped, device_placement=[False])
        self.accelerator.no_sync = lambda model: wrapped.no_sync()
        return self.optimizer

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate the weights that are common to all ranks."""
        with self._common_weights():
            return super().evaluation_loop(*args, **kwargs)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log the metrics of the last step beside the loss, in the Trainer's own loggers."""
        if self._distributed is not None and "loss" in logs:
            logs = {**logs, **self._distributed.metrics()}
        super().log(logs, *args, **kwargs)

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """Save the weights that are common to all ranks."""
        with self._common_weights():
            super().save_model(*args, **kwargs)

    def _common_weights(self) -> AbstractContextManager[None]:
        if self._distributed is None or self._has_common_weights:
            return nullcontext()
        return self._distributed.common_weights()

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        assert self._distributed is not None
        self._distributed.finish()
        self._has_common_weights = True  # from here on the model's own, which may be the best checkpoint's
        return super()._finalize_training(*args, **kwargs)

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        """Compute the norm without writing: strategies that have sent the gradients refuse gradients that changed."""
        if grad_norm is None:
            gradients = [each.grad for each in model.parameters() if each.grad is not None]
            grad_norm = torch.nn.utils.get_total_norm(gradients)
        return grad_norm

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        assert self._distributed is not None
        super()._save_optimizer_and_scheduler(output_dir)
        saved_state.save(self.model, self._distributed, os.path.join(output_dir, _FOLDER))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        assert self._distributed is not None
        folder = os.path.join(checkpoint or "", _FOLDER)
        if checkpoint is None or not os.path.isdir(folder):
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        saved_state.load(self.model, self._distributed, folder)
        self.lr_scheduler.load_state_dict(torch.load(os.path.join(checkpoint, SCHEDULER_NAME), weights_only=True))


__all__ = ["GradientFlowTrainer"]
