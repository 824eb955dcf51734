"""The step of momentum SGD, LARS, Adam or AdamW, made by kernels of the core on gradients in pools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from gradientflow._location import core
from gradientflow.annotations import ParameterGroup
from gradientflow.errors import ArgumentError, ArgumentTypeError
from gradientflow.optimizers.optimizer import state_array
from gradientflow.pools.base import stream_number
from gradientflow.strategies import Layout, NodeWeights, Settings, Strategy, Update
from gradientflow.strategies.update import AdamSettings
from gradientflow.training import LossScale

from . import devices
from .gradients import ParameterGradients, dense_strides, pool_device
from .lars import LARS
from .shared_model import SharedModel

_NEVER = -1
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_ADAMS = (torch.optim.Adam, torch.optim.AdamW)
_STEP = "step"  # key of a parameter's number of updates in the optimizer's state

# Keys of an optimizer's ``state[parameter]`` -> names of the core's arrays.
_OF_MOMENTUM = {"momentum_buffer": "momentum"}
_OF_ADAM = {"exp_avg": "momentum", "exp_avg_sq": "mean_square"}


@dataclass
class _Weights:
    """A parameter and its arrays in the core."""

    name: str
    parameter: torch.Tensor
    strides: tuple[int, ...]
    native: core.Optimizer
    index: int
    address: int = 0
    version: int = _NEVER  # version of the parameter after the last step
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)  # optimizer state of the parameter, by key
    master: torch.Tensor | None = None  # float32 weights of a 16-bit parameter

    def numbers(self, what: str) -> torch.Tensor:
        """Return the core's "momentum", "mean_square" or "master" array, with the shape of the parameter."""
        array = state_array(self.native, what, self.index)
        return devices.tensor_over(array, torch.float32).as_strided(self.parameter.shape, self.strides)


class FusedStep:
    """The core's step, made in place of the optimizer's, in one pass over memory for each parameter.

    Learning rate, momentum, weight decay and so on are read from the parameter groups at every step. Momentum and the
    moments of Adam are in the optimizer's ``state[parameter]``, as usual, in float32. If the strategy has the learning
    rate of SGD inside the momentum, momentum is kept here instead.

    16-bit parameters have float32 master weights, copied from the parameters at the first step. If other code has
    changed a parameter since the last step, each master weight that does not round to its parameter is set to the
    parameter.

    Parameters
    ----------
    optimizer : torch.optim.SGD, Adam or AdamW, or LARS
        The optimizer whose step this class makes.
    strategy : gradientflow.strategies.Strategy
        Its `Strategy.step` determines if the learning rate of SGD is inside the momentum, as in the GradientFlow paper,
        or outside, as in PyTorch. LARS always has it inside.
    model : torch.nn.Module
        The model that has the parameters.

    Attributes
    ----------
    shared_model : SharedModel or None
        The checks on shared weights; None if the ranks of a node do not share them.
    momentum_in_state : bool
        True if the optimizer's state has the momentum, False if it is kept here.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, strategy: Strategy, model: torch.nn.Module) -> None:
        self._optimizer = optimizer
        is_lars = type(optimizer) is LARS
        self._model = model
        self.shared_model: SharedModel | None = None
        self._shared: NodeWeights | None = None
        self._shares_buffers = False
        in_momentum = strategy.step == "core_rate_in_momentum"
        self._rate_inside = in_momentum or is_lars
        self.momentum_in_state = is_lars or not in_momentum
        self._arrays = _OF_ADAM if type(optimizer) in _ADAMS else _OF_MOMENTUM  # names of arrays, by keys of the state
        self._natives: list[core.Optimizer] = []
        self._weights: list[list[_Weights]] = []  # parameters by dtype, as in the layout

    def lay_out(self, gradients: ParameterGradients, layout: Layout, shared: NodeWeights | None) -> None:
        """Use gradients at new locations from now on. Momentum and master weights are kept.

        Collective if the ranks of a node share weights.
        """
        before = {id(weights.parameter): weights for weights in self._all()}
        self._natives, self._weights = [], []
        self._shared = shared
        device = pool_device(gradients.device)
        for group, (_, indices) in enumerate(layout.groups):
            counts = [layout.counts[index] for index in indices]
            native = core.Optimizer(counts, self._rate_inside, device if isinstance(device, int) else None)
            all_weights = []
            for place, index in enumerate(indices):
                parameter, view = gradients.parameters[index], gradients.views[index]
                all_weights.append(_Weights(gradients.names[index], parameter, view.stride(), native, place))
            if shared is not None:
                self._share(shared, group, all_weights)
            for weights in all_weights:
                old = before.get(id(weights.parameter))
                if old is not None:
                    self._carry_over(old, weights)
            self._natives.append(native)
            self._weights.append(all_weights)

    def masters(self, layout: Layout) -> dict[int, torch.Tensor]:
        """Return the master weights of all 16-bit parameters, by their indices in the layout."""
        found = {}
        for (_, indices), all_weights in zip(layout.groups, self._weights, strict=True):
            for index, weights in zip(indices, all_weights, strict=True):
                if weights.parameter.dtype is not torch.float32:
                    self._take_weights(weights)
                    found[index] = state_array(weights.native, "master", weights.index)
        return found

    def round_masters(self) -> None:
        """Set the 16-bit parameters to their rounded master weights."""
        with torch.no_grad():
            for weights in self._all():
                if weights.master is not None:
                    weights.parameter.copy_(weights.master)
                    weights.version = weights.parameter._version

    def update_masters(self) -> None:
        """Update the master weights of 16-bit parameters that other code has changed."""
        for weights in self._all():
            if weights.master is not None and weights.parameter._version != weights.version:
                self._take_weights(weights)
                weights.version = weights.parameter._version

    def step(self, update: Update, gradient_scale: float, stream: int | None, error: Exception | None = None) -> None:
        """Make a step with the gradients times `gradient_scale`. Leave parameters without a gradient alone.

        If the ranks of a node share weights, `error` is the reason why this rank cannot make the step: then no rank of
        the node makes it.
        """
        if self._shared is None:
            self._step(self._prepared(), update, gradient_scale, stream)
            return
        assert self.shared_model is not None
        settings: list[list[Settings | None]] = []
        try:
            self.shared_model.check()
            settings = self._prepared()
        except Exception as caught:
            error = caught
        with self._shared.step(error):
            self._step(settings, update, gradient_scale, stream)
        self.shared_model.accept()

    def _prepared(self) -> list[list[Settings | None]]:
        """Give the core buffers and weights for the step. Return the settings of each parameter."""
        for each_group in self._optimizer.param_groups:
            _check_group(each_group)
        group_of = {id(parameter): group for group in self._optimizer.param_groups for parameter in group["params"]}
        settings: list[list[Settings | None]] = []
        for each in self._weights:
            settings.append([])
            for weights in each:
                group = group_of.get(id(weights.parameter)) if weights.parameter.grad is not None else None
                found = None
                if group is not None:
                    found = settings_of_group(group)._replace(maximize=bool(group.get("maximize")))
                    self._take_buffers(weights, found)
                    self._take_weights(weights)
                    if self._arrays is _OF_ADAM:
                        found = found._replace(adam=self._adam_settings(weights.parameter, group))
                settings[-1].append(found)
        return settings

    def _step(
        self, settings: list[list[Settings | None]], update: Update, gradient_scale: float, stream: int | None
    ) -> None:
        for native, gradients, all_weights, of_group in zip(
            self._natives, update.gradients, self._weights, settings, strict=True
        ):
            native.step(gradients, of_group, gradient_scale, stream=stream_number(stream))
            stepped = [weights for weights, each in zip(all_weights, of_group, strict=True) if each is not None]
            torch.autograd.graph.increment_version([weights.parameter for weights in stepped])
            for weights in stepped:
                weights.version = weights.parameter._version
                if self._arrays is _OF_ADAM:
                    self._optimizer.state[weights.parameter][_STEP] += 1

    def check_whole(self) -> None:
        """Raise if the ranks of a node share weights, and a step on them was left incomplete."""
        if self.shared_model is not None:
            self.shared_model.check_whole()

    def close(self) -> None:
        """Leave the optimizer a state with which it can train by itself."""
        for weights in self._all():
            of_parameter = self._optimizer.state.get(weights.parameter, {})
            for name, buffer in weights.buffers.items():
                if of_parameter.get(name) is buffer:
                    of_parameter[name] = buffer.to(weights.parameter.dtype, copy=self._shared is not None)
        self._natives, self._weights = [], []
        if self.shared_model is not None:
            self.shared_model.close()

    # ---- state ---------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return momentum and master weights that the optimizer's state lacks, by name of the parameter."""
        momentum = {} if self.momentum_in_state else {w.name: each for w in self._all() for each in w.buffers.values()}
        masters = {w.name: w.master for w in self._all() if w.master is not None}
        return {"momentum": momentum, "master_weights": masters}

    def load(self, state: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Load the result of `state`; momentum missing there becomes zero."""
        for weights in self._all():
            momentum = state["momentum"].get(weights.name)
            for name in self._arrays:
                if momentum is not None:
                    self._buffer(weights, name).copy_(momentum)
                elif name in weights.buffers:
                    weights.buffers[name].zero_()
            of_parameter = self._optimizer.state.get(weights.parameter, {})
            if isinstance(of_parameter.get(_STEP), torch.Tensor):
                of_parameter[_STEP] = of_parameter[_STEP].clone()  # it may belong to the caller's state dict
            master = state["master_weights"].get(weights.name)
            weights.version = _NEVER
            if master is not None:
                self._set_master(weights, master)

    def prepare(self) -> None:
        """Create momentum, moments and master weights of all parameters, with their initial values."""
        group_of = {id(parameter): group for group in self._optimizer.param_groups for parameter in group["params"]}
        for weights in self._all():
            group = group_of[id(weights.parameter)]
            self._take_buffers(weights, settings_of_group(group))
            self._take_weights(weights)
            if self._arrays is _OF_ADAM:
                self._adam_settings(weights.parameter, group)

    # ---- momentum, and moments of Adam ---------------------------------------------------------------------------

    def _take_buffers(self, weights: _Weights, settings: Settings) -> None:
        """Put the core's arrays into the optimizer's state, with the values of the buffers that they replace."""
        state = self._optimizer.state
        of_parameter = state.get(weights.parameter, {})
        for name in self._arrays:
            found = of_parameter.get(name)
            if not self.momentum_in_state:
                if found is not None:  # from a plain optimizer, so with the learning rate outside
                    self._buffer(weights, name).copy_(found).mul_(settings.rate)
                    del of_parameter[name]
                    if not of_parameter:
                        del state[weights.parameter]
                if settings.momentum != 0:
                    self._buffer(weights, name)
                continue
            if found is not weights.buffers.get(name):
                if found is not None:
                    self._buffer(weights, name).copy_(found)
                else:
                    weights.buffers[name].zero_()
            if settings.momentum != 0 or self._arrays is _OF_ADAM:
                state[weights.parameter][name] = self._buffer(weights, name)

    def _buffer(self, weights: _Weights, name: str) -> torch.Tensor:
        if name not in weights.buffers:
            if self._shared is not None and not self._shares_buffers:
                raise ArgumentError(
                    "with share='node' memory for momentum is shared when DistributedOptimizer is made: the optimizer "
                    "must have one then"
                )
            weights.buffers[name] = weights.numbers(self._arrays[name])
        return weights.buffers[name]

    def _adam_settings(self, parameter: torch.Tensor, group: ParameterGroup) -> AdamSettings:
        """Return Adam's settings for a parameter's next update, whose number is in the optimizer's state."""
        of_parameter = self._optimizer.state[parameter]
        if _STEP not in of_parameter:
            is_wide = torch.get_default_dtype() is torch.float64
            of_parameter[_STEP] = torch.zeros((), dtype=torch.float64 if is_wide else torch.float32)
        beta_1, beta_2 = map(float, group["betas"])
        decoupled = bool(group.get("decoupled_weight_decay"))
        return AdamSettings(beta_1, beta_2, float(group["eps"]), decoupled, int(of_parameter[_STEP]) + 1)

    # ---- weights -------------------------------------------------------------------------------------------------

    def _take_weights(self, weights: _Weights) -> None:
        """Give the core the parameter's address, and make its master weights round to the parameter."""
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

    def _share(self, shared: NodeWeights, group: int, all_weights: list[_Weights]) -> None:
        """Move weights, momentum, moments and master weights to node memory. Collective."""
        if self.shared_model is None:
            self.shared_model = SharedModel(self._model)
        parameters = [weights.parameter for weights in all_weights]
        self.shared_model.share(
            shared, group, [weights.name for weights in all_weights], parameters, [each.strides for each in all_weights]
        )
        has_momentum = any(settings_of_group(each).momentum for each in self._optimizer.param_groups)
        self._shares_buffers = has_momentum or self._arrays is _OF_ADAM
        kinds = [*self._arrays.values()] if self._shares_buffers else []
        if parameters[0].dtype is not torch.float32:
            kinds.append("master")
        for kind in kinds:
            numbers = shared.numbers(group)
            for weights, offset in zip(all_weights, shared.offsets[group], strict=True):
                weights.native.place(kind, weights.index, numbers[offset : offset + weights.parameter.numel()])

    # ---- helpers -------------------------------------------------------------------------------------------------

    def _all(self) -> Iterator[_Weights]:
        for each in self._weights:
            yield from each

    def _carry_over(self, old: _Weights, new: _Weights) -> None:
        of_parameter = self._optimizer.state.get(new.parameter, {})
        for name, before in old.buffers.items():
            buffer = self._buffer(new, name).copy_(before)
            if of_parameter.get(name) is before:
                of_parameter[name] = buffer
        if old.master is not None:
            self._set_master(new, old.master)


def why_fused(
    optimizer: torch.optim.Optimizer, strategy: Strategy, loss_scale: LossScale | None, fused: bool | None
) -> str | None:
    """Return the reason why the core makes the step, or None if the optimizer makes it."""
    if strategy.step != "any" or loss_scale is not None:
        reason = str(strategy) if strategy.step != "any" else "loss_scale"
        if fused is False:
            raise ArgumentError(f"{reason} does not go with fused=False: the core has to make the step")
        return reason
    if fused:
        return "fused"
    return "LARS" if fused is None and type(optimizer) is LARS else None


def check_can_step(
    optimizer: torch.optim.Optimizer, strategy: Strategy, parameters: Mapping[str, torch.Tensor], reason: str
) -> None:
    """Raise unless `FusedStep` can make this optimizer's step for these parameters."""
    possible: dict[object, str] = {torch.optim.SGD: "torch.optim.SGD", LARS: "gradientflow.torch.LARS"}
    if strategy.step != "core_rate_in_momentum" and strategy.gradients != "consumed":
        possible |= {torch.optim.Adam: "torch.optim.Adam", torch.optim.AdamW: "torch.optim.AdamW"}
    if type(optimizer) not in possible:
        *names, last = possible.values()
        raise ArgumentError(
            f"{reason}: the core makes the step, which it can for {', '.join(names)} and {last}, not for "
            f"{type(optimizer).__name__}"
        )
    for name, parameter in parameters.items():
        if parameter.dtype not in _DTYPES:
            raise ArgumentTypeError(f"{reason}: {name} is {parameter.dtype}: only float16, bfloat16 and float32 can go")
        if not _lies_as(parameter, dense_strides(parameter)):
            raise ArgumentError(
                f"{reason}: {name} is not dense in memory, with shape {tuple(parameter.shape)} and strides "
                f"{tuple(parameter.stride())}: make it of parameter.contiguous()"
            )
    for group in optimizer.param_groups:
        _check_group(group)
        if group.get("maximize") and strategy.gradients == "consumed":
            raise ArgumentError(f"{reason}: {strategy.name} does not have maximize: train on the negative loss")


def _lies_as(parameter: torch.Tensor, strides: Sequence[int]) -> bool:
    """Tell if a parameter's elements have these strides in memory."""
    places = zip(parameter.shape, parameter.stride(), strides, strict=True)
    return parameter.numel() == 0 or all(size == 1 or stride == wanted for size, stride, wanted in places)


def settings_of_parameter(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> Settings:
    """Return the optimizer's settings for a parameter in the next step."""
    for group in optimizer.param_groups:
        if any(parameter is each for each in group["params"]):
            return settings_of_group(group)
    raise ArgumentError("a parameter is no longer in the optimizer")


def settings_of_group(group: ParameterGroup) -> Settings:
    """Return the settings of a parameter group; a missing setting is 0."""
    rate, momentum, decay, trust = (float(group.get(name, 0)) for name in ("lr", "momentum", "weight_decay", "trust"))
    return Settings(rate, momentum, decay, trust)


def _check_group(group: ParameterGroup) -> None:
    """Raise if a parameter group asks for a feature that the core lacks."""
    for name in ("nesterov", "dampening", "amsgrad", "differentiable"):
        if group.get(name):
            raise ArgumentError(f"the step is made by the core, which does not have {name} of PyTorch's optimizers")
