"""The optimizer's part in a move to another strategy: momentum, weights, and the step with what was pending."""

from __future__ import annotations

import copy
import itertools
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from gradientflow.annotations import State, StateDict, TensorLike
from gradientflow.errors import ArgumentError
from gradientflow.strategies import Strategy
from gradientflow.strategies.exchange.pending import Arrays, Pending
from gradientflow.training.moving import Settled

from .gradients import dense_strides

_MOMENTUM, _BUFFER = "momentum", "momentum_buffer"  # in a parameter group; in the state of a parameter


@dataclass(frozen=True)
class Moved:
    """The state of another strategy's training, in the form that the new strategy loads.

    Attributes
    ----------
    state : dict
        The optimizer's state dict.
    own : dict
        The state of the core, and the loss scale.
    weights : dict of str to torch.Tensor
        Weights to be written into the model, by name; float32 for 16-bit parameters with master weights.
    momentum : dict of str to array
        The optimizer's momentum, for a strategy that makes the steps.
    """

    state: StateDict
    own: StateDict
    weights: dict[str, torch.Tensor]
    momentum: dict[str, TensorLike]

    def write(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Write the weights into the parameters."""
        with torch.no_grad():
            for name, weight in self.weights.items():
                parameters[name].copy_(weight)


def move(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, torch.Tensor],
    strategy: Strategy,
    state: State,
    own: State,
    found: Pending,
    settled: Settled,
    is_fused: bool,
) -> Moved:
    """Return the state of another strategy's training in the form that a strategy loads. Changes nothing.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        The optimizer that will load it.
    parameters : dict of str to torch.Tensor
        The trained parameters.
    strategy : gradientflow.strategies.Strategy
        The new strategy.
    state, own : dict
        The state dict, and the states of strategy and core in it.
    found, settled : Pending, Settled
        What is pending, and the decision on it.
    is_fused : bool
        True if the core makes the step, on master weights.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the momentum cannot be converted, or the optimizer cannot make the step.
    """
    numbers = _numbers_of(optimizer, parameters)
    state = with_momentum(optimizer, parameters, state, own, found, settled.momentum)
    masters = dict(own.get("master_weights") or {})
    weights = {name: as_parameter(each, parameters[name]) for name, each in settled.weights.items()}
    if settled.gradients:
        starts = {
            name: _start(each, weights.get(name), masters.get(name), is_fused) for name, each in parameters.items()
        }
        gradients = {name: as_parameter(each, parameters[name]) for name, each in settled.gradients.items()}
        state, stepped = _stepped(optimizer, state, starts, gradients, numbers)
        weights |= stepped
    if weights:
        masters |= {name: each.float() for name, each in weights.items()}
    momentum: dict[str, TensorLike] = {}
    if not (found.takes_momentum and strategy.profile().takes_momentum):
        mine = optimizer.param_groups
        groups = zip(state["param_groups"], mine, strict=True)
        state["param_groups"] = [
            {**each, _MOMENTUM: its[_MOMENTUM]} if _MOMENTUM in its else each for each, its in groups
        ]
        _take_buffers(state)
    elif strategy.gradients == "consumed":
        buffers = _take_buffers(state)
        moved = [(name, number) for name, number in numbers.items() if number in buffers]
        momentum = {name: _flat(buffers[number], parameters[name]) for name, number in moved}
    return Moved(dict(state), {**own, "momentum": {}, "master_weights": masters}, weights, momentum)


def _renumbered(state: State) -> StateDict:
    """Return a copy of a state dict whose parameters are numbered in their order; tensors are not copied."""
    places = itertools.count()
    number_of = {number: next(places) for group in state["param_groups"] for number in group["params"]}
    groups = [{**group, "params": [number_of[number] for number in group["params"]]} for group in state["param_groups"]]
    states = {number_of.get(number, number): dict(of_one) for number, of_one in state["state"].items()}
    return {**state, "state": states, "param_groups": groups}


def with_momentum(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, torch.Tensor],
    state: State,
    own: State,
    found: Pending,
    of_servers: Arrays | None = None,
) -> StateDict:
    """Return a state dict with the momentum that core or servers had, as PyTorch has it: without learning rates."""
    state, numbers = _renumbered(state), _numbers_of(optimizer, parameters)
    momentum = dict(own.get(_MOMENTUM) or {})
    has_rate = True
    if of_servers:
        has_rate = found.momentum_has_rate
        momentum = {name: as_parameter(each, parameters[name]) for name, each in of_servers.items()}
    rates = {number: float(group.get("lr", 0)) for group in state["param_groups"] for number in group["params"]}
    for name, each in momentum.items():
        number = numbers[name]
        if not bool(each.any()):
            continue
        if has_rate and rates[number] == 0:
            raise ArgumentError(
                f"the momentum of {name} in the state has the learning rate inside, and that is 0 in the state: save "
                "the state at a step whose learning rate is above 0"
            )
        state["state"].setdefault(number, {})[_BUFFER] = each / rates[number] if has_rate else each.clone()
    return state


def _take_buffers(state: StateDict) -> dict[int, torch.Tensor]:
    """Remove the momentum from the states of parameters, and return it."""
    found = {
        number: of_one.pop(_BUFFER) for number, of_one in state["state"].items() if of_one.get(_BUFFER) is not None
    }
    state["state"] = {number: of_one for number, of_one in state["state"].items() if of_one}
    return found


def _stepped(
    optimizer: torch.optim.Optimizer,
    state: StateDict,
    starts: Mapping[str, torch.Tensor],
    gradients: Mapping[str, torch.Tensor],
    numbers: Mapping[str, int],
) -> tuple[StateDict, dict[str, torch.Tensor]]:
    """Return the state after a step of an optimizer like this one, and the weights that the step has changed."""
    names = {number: name for name, number in numbers.items()}
    everything = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    copies = [
        torch.nn.Parameter(starts[names[number]].clone() if number in names else parameter.detach())
        for number, parameter in enumerate(everything)
    ]
    remaining = iter(copies)
    kind = type(optimizer)
    twin = kind.__new__(kind)
    groups = [{**each, "params": [next(remaining) for _ in each["params"]]} for each in optimizer.param_groups]
    kept = {name: value for name, value in vars(optimizer).items() if name != "step" and not name.endswith("_hooks")}
    twin.__setstate__({**kept, "state": defaultdict(dict), "param_groups": groups})
    twin.load_state_dict({"state": copy.deepcopy(state["state"]), "param_groups": state["param_groups"]})
    for name, gradient in gradients.items():
        place = copies[numbers[name]]
        place.grad = gradient.to(place.device, place.dtype).reshape(place.shape)
    try:
        twin.step()
    except Exception as error:
        raise ArgumentError(
            f"{kind.__name__} cannot make a step with what is pending: {error}: load the state with pending='drop'"
        ) from error
    after: StateDict = twin.state_dict()
    return {**state, **after}, {name: copies[numbers[name]].detach() for name in gradients}


def _start(
    parameter: torch.Tensor, weight: torch.Tensor | None, master: torch.Tensor | None, is_fused: bool
) -> torch.Tensor:
    """Return the weight from which the step begins: given, or a master weight that rounds to the parameter."""
    wide = torch.float32 if is_fused else parameter.dtype
    if weight is not None:
        return weight.to(parameter.device, wide)
    start = parameter.detach().to(wide)
    if master is None or not is_fused:
        return start
    master = master.to(parameter.device)
    return torch.where(master.to(parameter.dtype) == parameter, master, start)


def _numbers_of(optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Return the numbers of parameters in the order of the optimizer, by name."""
    everything = (parameter for group in optimizer.param_groups for parameter in group["params"])
    number_of = {id(parameter): number for number, parameter in enumerate(everything)}
    return {name: number_of[id(parameter)] for name, parameter in parameters.items()}


def as_parameter(values: np.ndarray, parameter: torch.Tensor) -> torch.Tensor:
    """Return an array of a strategy, which lies in memory as the parameter does, as a tensor of its shape."""
    array = np.ascontiguousarray(values).reshape(-1)
    if array.dtype.name == "bfloat16":
        tensor = torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(array.copy())
    return tensor.as_strided(parameter.shape, dense_strides(parameter))


def _flat(tensor: torch.Tensor, parameter: torch.Tensor) -> TensorLike:
    """Return a tensor as a flat array of float32 on the host: the reverse of `as_parameter`."""
    strides = dense_strides(parameter)
    dense = torch.empty_strided(parameter.shape, strides, dtype=torch.float32, device="cpu").copy_(tensor)
    return dense.as_strided((dense.numel(),), (1,)).numpy()


__all__ = ["Moved", "move"]
