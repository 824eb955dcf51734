"""State dicts for PyTorch: with tensors in place of the library's arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from gradientflow import training
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError
from gradientflow.memory import numpy_dtype

BUFFERS = ("momentum_buffer", "exp_avg", "exp_avg_sq")  # of float32, in the state of a parameter
KEY = "gradientflow"  # in a state dict; optimizers of PyTorch ignore it


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


def consolidated(comm: Communicator, state: dict[str, Any], of_core: dict[str, Any]) -> tuple[Any, Any]:
    """Return an optimizer's state, and the core's part of it, the same on all ranks. Collective.

    Floating-point tensors except "step", such as momentum, are means over the ranks; all else is that of rank 0.
    """
    mine = {**state, "state": _with_means(state["state"]), KEY: _with_means(of_core)}
    those = training.consolidated(comm, mine, means=True)
    core = those.pop(KEY)
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


def check_groups(optimizer: Any, state_dict: Mapping[str, Any]) -> None:
    """Raise unless an optimizer of PyTorch can load this state dict."""
    saved = [group["params"] for group in state_dict["param_groups"]]
    wanted = [group["params"] for group in optimizer.param_groups]
    if [len(group) for group in saved] != [len(group) for group in wanted]:
        message = f"the state is of another model, with {sum(map(len, saved))} parameters in {len(saved)} groups"
        raise ArgumentError(message)
    for parameter, name, buffer in buffers(optimizer, state_dict):
        if buffer.shape != parameter.shape:
            shapes = f"{tuple(buffer.shape)}, and the parameter {tuple(parameter.shape)}"
            message = f"the state is of another model: a {name} has shape {shapes}"
            raise ArgumentError(message)


def buffers(optimizer: Any, state_dict: Mapping[str, Any]) -> list[tuple[torch.Tensor, str, torch.Tensor]]:
    """Return (parameter, name, tensor) of each momentum or moment of Adam in this state dict."""
    saved = [number for group in state_dict["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [
        (parameter, name, state_dict["state"][number][name])
        for parameter, number in zip(parameters, saved, strict=True)
        for name in BUFFERS
        if state_dict["state"].get(number, {}).get(name) is not None
    ]
