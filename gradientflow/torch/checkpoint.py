"""The state dict of a DistributedOptimizer: that of its optimizer, with the states of strategy and core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError
from gradientflow.memory import numpy_dtype
from gradientflow.training import consolidated
from gradientflow.training.state import TrainingState

from .bound_model import BoundModel
from .fused_step import FusedStep
from .plain_tensors import from_plain, to_plain

_BUFFERS = ("momentum_buffer", "exp_avg", "exp_avg_sq")  # of float32, in the state of a parameter
_KEY = "gradientflow"  # in a state dict; optimizers of PyTorch ignore it
_NO_STATE: dict[str, Any] = {"momentum": {}, "master_weights": {}}  # of the core


class Checkpoint:
    """Returns and loads the state of a bound model, of its optimizer, and of the core, if this makes the step."""

    def __init__(self, bound: BoundModel, optimizer: Any, fused_step: FusedStep | None) -> None:
        self._bound = bound
        self._loop = bound.loop
        self._optimizer = optimizer
        self._fused_step = fused_step
        strategy = bound.loop.strategy
        rate = "inside" if strategy.step == "core_rate_in_momentum" else "outside"
        kind = f"{strategy.name} with {type(optimizer).__name__}, the learning rate {rate} of momentum"
        self._training = TrainingState(bound.loop, kind)

    def own(self) -> dict[str, Any]:
        """Return this rank's state dict. Does not communicate."""
        return self._with(self._of_optimizer(), self._of_core(), self._training.own())

    def common(self) -> dict[str, Any]:
        """Return the part of the state dict that is the same on all ranks. Does not communicate."""
        return self._with(self._of_optimizer(), self._of_core(), self._training.common())

    def consolidated(self) -> dict[str, Any]:
        """Return a state dict that any number of ranks can load, the same on all ranks. Collective."""
        state, of_core = self._of_optimizer(), self._of_core()
        own = self._training.consolidated()
        if self._loop.writes_weights:
            state, of_core = _consolidated(self._loop.comm, state, of_core)
        return self._with(state, of_core, own)

    def load(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict. Collective if the strategy has a state."""
        own = _own(state_dict)

        def check() -> None:
            self._check(state_dict, own)
            self._bound.check_weights()

        if self._loop.synchronizer.has_state:
            self._training.load(own, check)
            self._bound.weights_are_written()
        else:
            self._check(state_dict, own)
        self._load(state_dict, own)

    def check_common(self, state_dict: dict[str, Any]) -> None:
        """Raise unless `load_common` can load a state dict, and change nothing."""
        _check_groups(self._optimizer, state_dict)
        self._check(state_dict, _own(state_dict))

    def load_common(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict, except for the state of the strategy. Does not communicate."""
        own = _own(state_dict)
        self._check(state_dict, own)
        self._load(state_dict, own)

    def _of_optimizer(self) -> dict[str, Any]:
        if self._fused_step is not None:
            self._fused_step.check_whole()
        state: dict[str, Any] = self._optimizer.state_dict()
        return state

    def _of_core(self) -> dict[str, Any]:
        return _NO_STATE if self._fused_step is None else self._fused_step.state()

    def _with(self, state: dict[str, Any], of_core: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
        """Return the state of the optimizer, with those of core and strategy, if there are any."""
        if self._fused_step is None and not own["synchronizer"]:
            return state
        return {**state, _KEY: {**with_tensors(own), **of_core}}

    def _check(self, state_dict: dict[str, Any], own: dict[str, Any] | None) -> None:
        """Raise unless a state dict can be loaded."""
        if self._fused_step is not None:
            _check_groups(self._optimizer, state_dict)
        if own is not None:
            self._training.check(own)

    def _load(self, state_dict: dict[str, Any], own: dict[str, Any] | None) -> None:
        """Load a checked state dict, except for the state of the strategy."""
        load_alone(self._optimizer, state_dict)
        self._training.load_loss_scale(own)
        if self._fused_step is not None:
            for parameter, name, buffer in _buffers(self._optimizer, state_dict):
                self._optimizer.state[parameter][name] = buffer.to(parameter.device, torch.float32, copy=True)
            self._fused_step.load(_NO_STATE if own is None else own)


def load_alone(optimizer: Any, state_dict: dict[str, Any]) -> None:
    """Load a state dict into an optimizer, without the states of strategy and core."""
    optimizer.load_state_dict({key: value for key, value in state_dict.items() if key != _KEY})


def _own(state_dict: dict[str, Any]) -> dict[str, Any] | None:
    """Return the states of strategy and core in a state dict, with arrays in that of the strategy."""
    own: dict[str, Any] | None = state_dict.get(_KEY)
    return own if own is None else {**own, "synchronizer": with_arrays(own.get("synchronizer"))}


def with_tensors(state: Any) -> Any:
    """Return the state with tensors in place of arrays."""
    if isinstance(state, np.ndarray):
        if state.dtype.name == "bfloat16":
            return torch.from_numpy(state.view(np.int16).copy()).view(torch.bfloat16)
        return torch.from_numpy(np.array(state))
    if isinstance(state, Mapping):
        return {key: with_tensors(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [with_tensors(value) for value in state]
    return state


def with_arrays(state: Any) -> Any:
    """Return the state with arrays, on the host, in place of tensors."""
    if isinstance(state, torch.Tensor):
        on_host = state.detach().cpu()
        if on_host.dtype is torch.bfloat16:
            return on_host.view(torch.int16).numpy().view(numpy_dtype("bfloat16"))
        return on_host.numpy()
    if isinstance(state, Mapping):
        return {key: with_arrays(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [with_arrays(value) for value in state]
    return state


def _consolidated(comm: Communicator, state: dict[str, Any], of_core: dict[str, Any]) -> tuple[Any, Any]:
    """Return an optimizer's state, and the core's part of it, the same on all ranks. Collective.

    Floating-point tensors except "step", such as momentum, are means over the ranks; all else is that of rank 0.
    """
    mine = {**state, "state": _with_means(state["state"]), _KEY: _with_means(of_core)}
    those = from_plain(consolidated(comm, to_plain(mine), means=True))
    core = those.pop(_KEY)
    return {**those, "state": with_tensors(those["state"])}, with_tensors(core)


def _with_means(state: Any, key: object = None) -> Any:
    """Return the state with arrays in place of the tensors to average: floating-point ones except "step"."""
    if isinstance(state, Mapping):
        return {name: _with_means(value, name) for name, value in state.items()}
    if not isinstance(state, torch.Tensor):
        return state
    on_host = state.detach().cpu()
    if key == "step" or not on_host.is_floating_point():
        return on_host
    return (on_host if on_host.dtype is torch.float64 else on_host.float()).numpy()


def _check_groups(optimizer: Any, state_dict: Mapping[str, Any]) -> None:
    """Raise unless an optimizer of PyTorch can load this state dict."""
    saved = [group["params"] for group in state_dict["param_groups"]]
    wanted = [group["params"] for group in optimizer.param_groups]
    if [len(group) for group in saved] != [len(group) for group in wanted]:
        message = f"the state is of another model, with {sum(map(len, saved))} parameters in {len(saved)} groups"
        raise ArgumentError(message)
    for parameter, name, buffer in _buffers(optimizer, state_dict):
        if buffer.shape != parameter.shape:
            shapes = f"{tuple(buffer.shape)}, and the parameter {tuple(parameter.shape)}"
            message = f"the state is of another model: a {name} has shape {shapes}"
            raise ArgumentError(message)


def _buffers(optimizer: Any, state_dict: Mapping[str, Any]) -> list[tuple[torch.Tensor, str, torch.Tensor]]:
    """Return (parameter, name, tensor) of each momentum or moment of Adam in this state dict."""
    saved = [number for group in state_dict["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [
        (parameter, name, state_dict["state"][number][name])
        for parameter, number in zip(parameters, saved, strict=True)
        for name in _BUFFERS
        if state_dict["state"].get(number, {}).get(name) is not None
    ]
