"""The step of momentum SGD or LARS, made by kernels of the core on gradients that lie in pools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gradientflow._location import load_core
from gradientflow.errors import ArgumentError, ArgumentTypeError
from gradientflow.optimizers.optimizer import state_array
from gradientflow.strategies import Layout, Settings, Strategy, Update
from gradientflow.training import LossScale

from . import devices
from .gradients import ParameterGradients, dense_strides, pool_device
from .lars import LARS

_NEVER = -1
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_BUFFER = "momentum_buffer"


@dataclass
class _Weights:
    """A parameter, and what the core has of it."""

    name: str
    parameter: torch.Tensor
    strides: tuple[int, ...]
    native: Any
    index: int
    address: int = 0
    version: int = _NEVER  # of the parameter, after the last step
    momentum: torch.Tensor | None = None
    master: torch.Tensor | None = None  # float32, of a parameter of 16 bits

    def numbers(self, what: str) -> torch.Tensor:
        """Return the core's "momentum" or "master" weights in the form of the parameter."""
        array = state_array(self.native, what, self.index)
        return devices.tensor_over(array, torch.float32).as_strided(self.parameter.shape, self.strides)


class FusedStep:
    """Makes the step in place of the optimizer, one pass over memory for each parameter.

    Learning rate, momentum, weight decay (and trust) are read from the parameter groups at every step. Momentum is
    where the optimizer itself would have it, in ``state[parameter]["momentum_buffer"]``, in float32; but where the
    learning rate is in the momentum and the optimizer's own has it outside, only here.

    Parameters of 16 bits have float32 master weights, taken from them at the first step. Where a parameter is found
    changed since the last step, by another than this, the master weights follow: where they round to something else.

    Parameters
    ----------
    optimizer : torch.optim.SGD or LARS
        Whose step it is.
    strategy : gradientflow.strategies.Strategy
        Whose `Strategy.rate_in_momentum` says whether the learning rate of SGD is in the momentum, as the GradientFlow
        paper has it, or outside, as PyTorch has it. That of LARS is always in the momentum.
    """

    def __init__(self, optimizer: Any, strategy: Strategy) -> None:
        self._optimizer = optimizer
        is_lars = type(optimizer) is LARS
        self._rate_inside = strategy.rate_in_momentum or is_lars
        self._momentum_in_state = is_lars or not strategy.rate_in_momentum
        self._natives: list[Any] = []
        self._weights: list[list[_Weights]] = []  # by dtype, as in the layout

    def lay_out(self, gradients: ParameterGradients, layout: Layout) -> None:
        """Take the gradients from these places from now on. What there is of their parameters is kept."""
        before = {id(weights.parameter): weights for weights in self._all()}
        self._natives, self._weights = [], []
        device = pool_device(gradients.device)
        for _, indices in layout.groups:
            counts = [layout.counts[index] for index in indices]
            native = load_core().Optimizer(counts, self._rate_inside, None if device == "cpu" else device)
            all_weights = []
            for place, index in enumerate(indices):
                parameter, view = gradients.parameters[index], gradients.views[index]
                weights = _Weights(gradients.names[index], parameter, view.stride(), native, place)
                old = before.get(id(parameter))
                if old is not None:
                    self._carry_over(old, weights)
                all_weights.append(weights)
            self._natives.append(native)
            self._weights.append(all_weights)

    def masters(self, layout: Layout) -> dict[int, Any]:
        """Return the master weights of all parameters of 16 bits, by their indices in the layout."""
        found = {}
        for (_, indices), all_weights in zip(layout.groups, self._weights, strict=True):
            for index, weights in zip(indices, all_weights, strict=True):
                if weights.parameter.dtype is not torch.float32:
                    self._take_weights(weights)
                    found[index] = state_array(weights.native, "master", weights.index)
        return found

    def round_masters(self) -> None:
        """Make the parameters of 16 bits what their master weights round to."""
        with torch.no_grad():
            for weights in self._all():
                if weights.master is not None:
                    weights.parameter.copy_(weights.master)
                    weights.version = weights.parameter._version

    def follow_weights(self) -> None:
        """Make master weights follow parameters of 16 bits that others have changed."""
        for weights in self._all():
            if weights.master is not None and weights.parameter._version != weights.version:
                self._take_weights(weights)
                weights.version = weights.parameter._version

    def step(self, update: Update, gradient_scale: float, stream: int) -> None:
        """Make a step with the gradients times `gradient_scale`. Parameters without a gradient are left alone."""
        for group in self._optimizer.param_groups:
            _check_group(group)
        settings_of = {
            id(parameter): settings_of_group(group)
            for group in self._optimizer.param_groups
            for parameter in group["params"]
        }
        settings: list[list[Settings | None]] = []
        for each in self._weights:
            settings.append([])
            for weights in each:
                found = settings_of.get(id(weights.parameter)) if weights.parameter.grad is not None else None
                settings[-1].append(found)
                if found is not None:
                    self._take_momentum(weights, found)
                    self._take_weights(weights)
        for native, gradients, all_weights, of_group in zip(
            self._natives, update.gradients, self._weights, settings, strict=True
        ):
            native.step(gradients, of_group, gradient_scale, stream=stream)
            stepped = [weights for weights, each in zip(all_weights, of_group, strict=True) if each is not None]
            torch.autograd.graph.increment_version([weights.parameter for weights in stepped])
            for weights in stepped:
                weights.version = weights.parameter._version

    def close(self) -> None:
        """Leave the optimizer a momentum that it can go on with by itself."""
        for weights in self._all():
            of_parameter = self._optimizer.state.get(weights.parameter, {})
            if weights.momentum is not None and of_parameter.get(_BUFFER) is weights.momentum:
                of_parameter[_BUFFER] = weights.momentum.to(weights.parameter.dtype)
        self._natives, self._weights = [], []

    # ---- state ---------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return what is not in the state of the optimizer, by name."""
        momentum = (
            {} if self._momentum_in_state else {w.name: w.momentum for w in self._all() if w.momentum is not None}
        )
        masters = {w.name: w.master for w in self._all() if w.master is not None}
        return {"momentum": momentum, "master_weights": masters}

    def load(self, state: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Take what `state` gave; what it does not have is forgotten."""
        for weights in self._all():
            momentum = state["momentum"].get(weights.name)
            if momentum is not None:
                self._momentum_of(weights).copy_(momentum)
            elif weights.momentum is not None:
                weights.momentum.zero_()
            master = state["master_weights"].get(weights.name)
            weights.version = _NEVER
            if master is not None:
                self._set_master(weights, master)

    # ---- momentum ------------------------------------------------------------------------------------------------

    def _take_momentum(self, weights: _Weights, settings: Settings) -> None:
        """See to it that the core's momentum is the optimizer's, also where someone has put another one there."""
        state = self._optimizer.state
        of_parameter = state.get(weights.parameter, {})
        found = of_parameter.get(_BUFFER)
        if not self._momentum_in_state:
            if found is not None:  # of a plain optimizer, so with the learning rate outside
                self._momentum_of(weights).copy_(found).mul_(settings.rate)
                del of_parameter[_BUFFER]
                if not of_parameter:
                    del state[weights.parameter]
            if settings.momentum != 0:
                self._momentum_of(weights)
            return
        if found is not weights.momentum:
            if found is not None:
                self._momentum_of(weights).copy_(found)
            elif weights.momentum is not None:
                weights.momentum.zero_()
        if settings.momentum != 0:
            state[weights.parameter][_BUFFER] = self._momentum_of(weights)

    def _momentum_of(self, weights: _Weights) -> torch.Tensor:
        if weights.momentum is None:
            weights.momentum = weights.numbers("momentum")
        return weights.momentum

    # ---- weights -------------------------------------------------------------------------------------------------

    def _take_weights(self, weights: _Weights) -> None:
        """See to it that the core has the parameter where it is, and master weights that round to it."""
        parameter = weights.parameter
        if parameter.data_ptr() != weights.address:
            self._set_parameter(weights)
        if weights.master is not None and parameter._version != weights.version:
            with torch.no_grad():
                same = weights.master.to(parameter.dtype) == parameter
                weights.master.copy_(torch.where(same, weights.master, parameter.float()))

    def _set_parameter(self, weights: _Weights) -> None:
        parameter = weights.parameter.detach()
        if not _lies_as(parameter, weights.strides):
            message = f"{weights.name} is not dense in memory, or not as it was: the core cannot make its step"
            raise ArgumentError(message)
        flat = parameter.as_strided((parameter.numel(),), (1,))
        with devices.within(devices.current_stream(devices.device_of(parameter))):
            weights.native.set_parameter(weights.index, devices.shared(flat), keep_master=True)
        weights.address = parameter.data_ptr()
        if parameter.dtype is not torch.float32 and weights.master is None:
            weights.master = weights.numbers("master")

    def _set_master(self, weights: _Weights, master: torch.Tensor) -> None:
        self._set_parameter(weights)
        if weights.master is not None:
            weights.master.copy_(master)

    # ---- helpers -------------------------------------------------------------------------------------------------

    def _all(self) -> Iterator[_Weights]:
        for each in self._weights:
            yield from each

    def _carry_over(self, old: _Weights, new: _Weights) -> None:
        if old.momentum is not None:
            buffer = self._momentum_of(new).copy_(old.momentum)
            of_parameter = self._optimizer.state.get(new.parameter, {})
            if of_parameter.get(_BUFFER) is old.momentum:
                of_parameter[_BUFFER] = buffer
        if old.master is not None:
            self._set_master(new, old.master)


def why_fused(optimizer: Any, strategy: Strategy, loss_scale: LossScale | None, fused: bool | None) -> str | None:
    """Return why the core makes the step, or None if the optimizer does."""
    if strategy.step == "core" or loss_scale is not None:
        reason = strategy.name if strategy.step == "core" else "loss_scale"
        if fused is False:
            message = f"{reason} does not go with fused=False: the core has to make the step"
            raise ArgumentError(message)
        return reason
    if fused:
        return "fused"
    return "LARS" if fused is None and type(optimizer) is LARS else None


def check_can_step(optimizer: Any, parameters: Mapping[str, torch.Tensor], reason: str) -> None:
    """Raise unless `FusedStep` can make the step of this optimizer for these parameters."""
    if type(optimizer) not in (torch.optim.SGD, LARS):
        message = (
            f"{reason}: the core makes the step, which it can for torch.optim.SGD and gradientflow.torch.LARS, not for "
            f"{type(optimizer).__name__}"
        )
        raise ArgumentError(message)
    for name, parameter in parameters.items():
        if parameter.dtype not in _DTYPES:
            message = f"{reason}: {name} is {parameter.dtype}: only float16, bfloat16 and float32 can go"
            raise ArgumentTypeError(message)
        if not _lies_as(parameter, dense_strides(parameter)):
            message = (
                f"{reason}: {name} is not dense in memory, with shape {tuple(parameter.shape)} and strides "
                f"{tuple(parameter.stride())}: make it of parameter.contiguous()"
            )
            raise ArgumentError(message)
    for group in optimizer.param_groups:
        _check_group(group)


def _lies_as(parameter: torch.Tensor, strides: Sequence[int]) -> bool:
    """Tell whether the elements lie in memory as with these strides."""
    places = zip(parameter.shape, parameter.stride(), strides, strict=True)
    return parameter.numel() == 0 or all(size == 1 or stride == wanted for size, stride, wanted in places)


def settings_of_group(group: Mapping[str, Any]) -> Settings:
    """Return the settings of a parameter group; 0 for those that its optimizer does not have."""
    rate, momentum, decay, trust = (float(group.get(name, 0)) for name in ("lr", "momentum", "weight_decay", "trust"))
    return Settings(rate, momentum, decay, trust)


def _check_group(group: Mapping[str, Any]) -> None:
    """Raise if a parameter group asks for something that the core does not do."""
    for name in ("nesterov", "dampening", "maximize", "differentiable"):
        if group.get(name):
            message = f"the step is made by the core, which does not have {name} of torch.optim.SGD"
            raise ArgumentError(message)
