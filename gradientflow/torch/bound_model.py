"""A model bound to a strategy: its training loop, the places of its gradients, and hooks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from gradientflow.errors import ArgumentError, NonFiniteError
from gradientflow.strategies import Synchronizer
from gradientflow.training import Loop
from gradientflow.training.uneven import join

from . import devices
from .direct_layer import restore_layers, write_directly
from .embedding import DirectEmbedding
from .fused_step import FusedStep
from .gradients import ParameterGradients
from .hooks import BackwardHooks
from .linear import DirectLinear
from .parameters import broadcast_optimizer_state, broadcast_parameters

_DIRECT_LAYERS = (DirectLinear, DirectEmbedding)


class BoundModel:
    """A model, the training loop of its parameters, and their optimizer. `fused_step` may make the optimizer's step."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loop: Loop,
        gradients: ParameterGradients,
        fused_step: FusedStep | None,
    ) -> None:
        self.loop = loop
        self.gradients = gradients
        self._model = model
        self._optimizer = optimizer
        self._fused_step = fused_step
        self._trained = {id(parameter) for parameter in gradients.parameters}
        self._known_parameters = self._model_parameters()
        self._hooks: BackwardHooks | None = None

    def start(self, number: int) -> None:
        """Begin to train; `number` orders `BackwardHooks` that share a pass."""
        self.loop.status.rates.now = self._rates
        self.loop.synchronizer.check_settings(self.gradients.settings)
        self._hooks = BackwardHooks(self.loop, self.gradients, number, self.check)
        self._hooks.register()
        self.loop.on_new_order = self._use_places
        self._use_places()

    def _use_places(self) -> None:
        """Use new gradient locations: in layers that write gradients directly, and in the core's step."""
        if self.gradients.takes_any_content:
            write_directly(self._model, self.gradients, _DIRECT_LAYERS)
        step, loop = self._fused_step, self.loop
        if step is not None:
            step.lay_out(self.gradients, loop.layout, loop.synchronizer.shared)
            if loop.writes_weights:
                loop.use_masters(step.masters(loop.layout), step.round_masters, step.update_masters)

    def detach(self) -> Synchronizer:
        """Detach from the model and its gradients. Return the synchronizer, which the caller closes."""
        if self._hooks is not None:
            self._hooks.remove()
        restore_layers(self._model)
        self.gradients.detach_unused(self.loop.used)
        return self.loop.synchronizer

    def _rates(self) -> list[float]:
        """Return the learning rates of the parameter groups; 0 for a rate on a device, to avoid a wait of the host."""
        rates = (group.get("lr") for group in self._optimizer.param_groups)
        return [0.0 if rate is None or getattr(rate, "is_cuda", False) else float(rate) for rate in rates]

    # ---- checks --------------------------------------------------------------------------------------------------

    def _model_parameters(self) -> list[int]:
        return [id(parameter) for module in self._model.modules() for parameter in module._parameters.values()]

    def check(self) -> None:
        """Raise if the model's parameters have changed, or another parameter of the optimizer requires gradients."""
        if self._fused_step is not None and self._fused_step.shared_model is not None:
            self._fused_step.shared_model.check()
        if self._model_parameters() != self._known_parameters:
            raise ArgumentError(
                "the model has other parameters now: a model must not change after DistributedOptimizer has been made; "
                "change it first, or close the optimizer and make a new one"
            )
        optimized = (parameter for group in self._optimizer.param_groups for parameter in group["params"])
        if any(parameter.requires_grad and id(parameter) not in self._trained for parameter in optimized):
            raise ArgumentError(
                "the optimizer has a parameter that requires gradients now and did not when DistributedOptimizer was "
                "made: close it and make a new one, or leave such parameters out of the optimizer until add_param_group"
            )

    def check_weights(self) -> None:
        """Raise if the strategy writes weights, and a weight has moved in memory."""
        if self.loop.writes_weights and self.gradients.weights_have_moved:
            raise ArgumentError(
                "parameters have memory of their own now: a model must not change after DistributedOptimizer has been "
                "made; change it first, or close the optimizer and make a new one"
            )

    # ---- exchanges -----------------------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Replace all gradients by their means, if a backward pass has not yet done so. Collective."""
        if self.loop.progress.update is None or self.gradients.replaced:
            self.check()
            self.loop.synchronize()

    def unscale(self) -> None:
        """Divide the mean gradients by the loss scale, once."""
        if self.loop.loss_scale is not None and not self.loop.progress.unscaled:
            self.gradients.scale(1 / self.loop.loss_scale.value)
        self.loop.progress.unscaled = True

    def weights_are_written(self) -> None:
        """Tell PyTorch that parameters have changed, if the strategy writes them."""
        if self.loop.writes_weights:
            torch.autograd.graph.increment_version(self.gradients.parameters)

    def finish(self) -> None:
        """End training; where weights may differ between ranks, average buffers. Collective."""
        self.check_weights()
        means: list[tuple[torch.Tensor, torch.Tensor]] = []  # (buffer, mean), written once all ranks have the means

        def average() -> None:
            means.clear()
            for buffer in self._model.buffers() if self.loop.writes_weights else ():
                if buffer.is_floating_point() and buffer.is_contiguous():
                    means.append((buffer, buffer.detach().clone()))
                    self.loop.comm.allreduce(devices.shared(means[-1][1]), "mean")

        pending: NonFiniteError | None = None
        try:
            self.loop.finish(average)
        except NonFiniteError as error:  # other ranks may not have seen this error
            pending = error
        self.weights_are_written()
        with torch.no_grad():
            for buffer, mean in means:
                buffer.copy_(mean)
        if pending is not None:
            raise pending

    @contextmanager
    def common_weights(self) -> Iterator[None]:
        """Put the weights common to all ranks in the model for a ``with`` block."""
        with self.loop.common_weights():
            torch.autograd.graph.increment_version(self.gradients.parameters)
            yield
        torch.autograd.graph.increment_version(self.gradients.parameters)

    def join(self, optimizer: torch.optim.Optimizer) -> AbstractContextManager[None]:
        """Allow the ranks different numbers of iterations of this DistributedOptimizer in a ``with`` block."""
        if self.loop.synchronizer.shared is not None:
            raise ArgumentError("join() does not go with share='node': every rank makes a part of every step")

        def broadcast(root: int) -> None:
            broadcast_parameters(dict(self._model.named_parameters()), root, comm=self.loop.comm)
            broadcast_optimizer_state(optimizer, root, comm=self.loop.comm)

        return join(self.loop, broadcast)
