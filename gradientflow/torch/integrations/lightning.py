"""A Strategy of Lightning whose gradients are averaged by a strategy of GradientFlow."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn

from gradientflow.errors import ArgumentError
from gradientflow.strategies import Strategy
from gradientflow.torch.optimizer import DistributedOptimizer

from . import saved_state
from .wrapping import wrap


class GradientFlowStrategy(DDPStrategy):  # type: ignore[misc]
    """A `DDPStrategy` with a `gradientflow.torch.DistributedOptimizer` in place of DistributedDataParallel.

    The module has one optimizer, which trains all of its parameters that require gradients. Accumulation, clipping,
    validation, checkpoints and resuming work as with `DDPStrategy`.

    Beside each checkpoint ``NAME.ckpt`` lies a folder ``NAME.ckpt.gradientflow`` with the state of all ranks: the same
    number of ranks resumes bit for bit. A checkpoint of `DDPStrategy` is loaded as well; the strategy begins then. One
    of this strategy needs its folder: copy both. Hosts share the folder of the checkpoints.

    Parameters
    ----------
    strategy : gradientflow.strategies.Strategy or str
        The gradients to send, and when, such as ``"csc(density=0.1)"``.
    fused : bool, optional
        As of `gradientflow.torch.DistributedOptimizer`.
    **options
        As of `DDPStrategy`. By default the process group has the backend "gradientflow".

    Examples
    --------
    >>> from gradientflow.torch.integrations.lightning import GradientFlowStrategy
    >>> trainer = lightning.Trainer(strategy=GradientFlowStrategy("csc(density=0.1)"), accelerator="cpu", devices=2)
    """

    optimizers: list[Any]

    def __init__(self, strategy: Strategy | str, *, fused: bool | None = None, **options: Any) -> None:
        super().__init__(**{"process_group_backend": "gradientflow", **options})
        self._strategy = strategy
        self._fused = fused
        self._loaded: str | None = None  # path of the checkpoint

    def configure_ddp(self) -> None:
        """Leave the model without DistributedDataParallel."""

    def setup_optimizers(self, trainer: Any) -> None:
        """Create the optimizer of the module, and wrap it. Collective."""
        super().setup_optimizers(trainer)
        if len(self.optimizers) != 1:
            raise ArgumentError(
                f"a module under GradientFlowStrategy has one optimizer, not {len(self.optimizers)}: with several, use "
                "DDPStrategy(process_group_backend='gradientflow')"
            )
        self.optimizers = [wrap(self.optimizers[0], self.lightning_module, self._strategy, self._fused, _Optimizer)]

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the last step of a fit.

        In a module: ``self.log_dict(self.trainer.strategy.metrics())``.
        """
        return self._distributed.metrics() if self._is_fitting else {}

    def block_backward_sync(self) -> AbstractContextManager[None]:
        """Return a block in which gradients accumulate without being averaged."""
        return self._distributed.no_sync()

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Validate the weights that are common to all ranks."""
        with self._common_weights():
            return super().validation_step(*args, **kwargs)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the weights that are common to all ranks, for a checkpoint."""
        with self._common_weights():
            state: dict[str, Any] = super().lightning_module_state_dict()
            if self.optimizers and self._distributed.strategy.gradients != "mean":  # ranks have weights of their own
                state = copy.deepcopy(state)
            return state

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Save a checkpoint, and the state of all ranks beside it. Collective."""
        super().save_checkpoint(checkpoint, filepath, storage_options)
        if "optimizer_states" in checkpoint:
            saved_state.save(self.lightning_module, self._distributed, _folder(filepath))

    def remove_checkpoint(self, filepath: str | os.PathLike[str]) -> None:
        """Remove a checkpoint, and what lies beside it."""
        super().remove_checkpoint(filepath)
        if self.is_global_zero:
            self.checkpoint_io.remove_checkpoint(_folder(filepath))

    def load_checkpoint(self, checkpoint_path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Load a checkpoint."""
        self._loaded = _folder(checkpoint_path)
        loaded: dict[str, Any] = super().load_checkpoint(checkpoint_path, *args, **kwargs)
        return loaded

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load the state of this rank from beside the checkpoint, or else a plain optimizer's from it. Collective."""
        if self._loaded is not None and os.path.isdir(self._loaded):
            saved_state.load(self.lightning_module, self._distributed, self._loaded)
        else:
            super().load_optimizer_state_dict(checkpoint)

    def teardown(self) -> None:
        """Leave the same weights on all ranks, unless there was an exception. Collective."""
        if self._is_fitting and not self.lightning_module.trainer.interrupted:
            self._distributed.finish()
        super().teardown()

    @property
    def _distributed(self) -> DistributedOptimizer:
        return cast("DistributedOptimizer", self.optimizers[0])

    def _common_weights(self) -> AbstractContextManager[None]:
        return self._distributed.common_weights() if self._is_fitting else nullcontext()

    @property
    def _is_fitting(self) -> bool:
        trainer = self.lightning_module and self.lightning_module._trainer
        return bool(self.optimizers and trainer and trainer.state.fn == TrainerFn.FITTING)


class _Optimizer(DistributedOptimizer):
    """A DistributedOptimizer whose closure, in which Lightning computes the gradients, runs once before the step."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Run the closure, and make a step."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        super().step()
        return loss


def _folder(checkpoint: str | os.PathLike[str]) -> str:
    path = os.fspath(checkpoint)
    return f"{os.path.realpath(path) if os.path.islink(path) else path}.gradientflow"


__all__ = ["GradientFlowStrategy"]
