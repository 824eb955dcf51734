"""What a state dict has beyond the optimizer's: what is held back, momentum, master weights and the loss scale."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from gradientflow.errors import ArgumentError
from gradientflow.sparse_pool import SparseGradientPool

from .gradients import PooledGradients

KEY = "gradientflow"  # in a state dict; optimizers of PyTorch ignore it
_NEEDED = {"of", "shapes", "momentum", "master_weights", "loss_scale", "pools"}


def shapes_of(parts: Sequence[PooledGradients]) -> dict[str, list[int]]:
    """Return the shapes of the parameters, by name."""
    return {name: list(p.shape) for part in parts for name, p in zip(part.names, part.parameters, strict=True)}


def pool_states(
    parts: Sequence[PooledGradients], state_of: Callable[[SparseGradientPool], Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the state of each sparse pool, by its dtype, with the names of its tensors. Of tensors and plain types."""
    states = {}
    for part in parts:
        if isinstance(part.pool, SparseGradientPool):
            state = dict(state_of(part.pool))
            state["important"] = torch.from_numpy(np.array(state["important"]))
            state["held"] = [torch.from_numpy(held) for held in state["held"]]
            states[part.pool.dtype] = {"names": list(part.names), **state}
    return states


def pool_state(part: PooledGradients, states: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a sparse pool of `states`, with what is held back in the order that the pool has now."""
    state = dict(states[part.pool.dtype])
    held = dict(zip(state.pop("names"), state["held"], strict=True))
    state["held"] = [held[name].cpu().numpy() for name in part.names]
    state["important"] = state["important"].cpu().numpy()
    return state


def check(state: Mapping[str, Any], kind: str, parts: Sequence[PooledGradients]) -> None:
    """Raise unless `state` is of this kind of optimizer, and of a model with these parameters."""
    missing = _NEEDED - set(state)
    if missing:
        message = f"the state has no {', '.join(sorted(missing))}: it was not made by a DistributedOptimizer"
        raise ArgumentError(message)
    if state["of"] != kind:
        message = f"the state is of {state['of']}, and this is {kind}"
        raise ArgumentError(message)
    shapes = shapes_of(parts)
    for name, shape in shapes.items():
        if name not in state["shapes"]:
            message = f"the state is of another model, which has no {name}"
            raise ArgumentError(message)
        if list(state["shapes"][name]) != shape:
            message = f"the state is of another model, whose {name} has shape {state['shapes'][name]}, not {shape}"
            raise ArgumentError(message)
    for name in state["shapes"]:
        if name not in shapes:
            message = f"the state is of another model, which has {name}"
            raise ArgumentError(message)
    for part in parts:
        if not isinstance(part.pool, SparseGradientPool) or state["pools"] is None:
            continue
        if set(state["pools"].get(part.pool.dtype, {"names": []})["names"]) != set(part.names):
            message = f"the state is of a model in which other parameters are {part.pool.dtype}"
            raise ArgumentError(message)
        part.pool.check_state_dict(pool_state(part, state["pools"]))


def check_groups(optimizer: Any, state_dict: Mapping[str, Any]) -> None:
    """Raise unless an optimizer of PyTorch can load this state dict."""
    saved = [group["params"] for group in state_dict["param_groups"]]
    wanted = [group["params"] for group in optimizer.param_groups]
    if [len(group) for group in saved] != [len(group) for group in wanted]:
        message = f"the state is of another model, with {sum(map(len, saved))} parameters in {len(saved)} groups"
        raise ArgumentError(message)
    for parameter, momentum in momentum_buffers(optimizer, state_dict):
        if momentum.shape != parameter.shape:
            shapes = f"{tuple(momentum.shape)}, and the parameter {tuple(parameter.shape)}"
            message = f"the state is of another model: a momentum buffer has shape {shapes}"
            raise ArgumentError(message)


def momentum_buffers(optimizer: Any, state_dict: Mapping[str, Any]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the parameters with a momentum in this state dict, and those."""
    saved = [number for group in state_dict["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    buffers = [state_dict["state"].get(number, {}).get("momentum_buffer") for number in saved]
    return [(p, buffer) for p, buffer in zip(parameters, buffers, strict=True) if buffer is not None]


def summary(state: Mapping[str, Any]) -> dict[str, str]:
    """Say what of a state has to be the same on all ranks."""
    entries = {"the kind of state": "a state of a strategy"}
    for dtype, pool in state["pools"].items():
        chosen = hashlib.sha256(pool["important"].cpu().numpy().tobytes()).hexdigest()[:8]
        entries[f"the iteration of {dtype} gradients"] = str(pool["iteration"])
        entries[f"the choice of {dtype} chunks"] = f"{pool['chunk_size']} elements each, {chosen}"
        entries[f"the order of {dtype} gradients"] = ", ".join(pool["names"])
    return entries
