"""Tensors as plain values, which ranks send each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gradientflow.errors import CommunicationError
from gradientflow.plain import Tagged

_TAG = "torch"


def to_plain(state: Any) -> Any:
    """Return a state in which each dense tensor is replaced by its memory, on the host."""
    if isinstance(state, torch.Tensor) and state.layout is torch.strided and not state.is_quantized:
        on_host = state.detach().cpu().resolve_conj().resolve_neg().contiguous()
        memory = on_host.view(-1).view(torch.uint8).numpy()
        return Tagged(_TAG, (str(state.dtype).removeprefix("torch."), tuple(state.shape), memory))
    if isinstance(state, Mapping):
        return {key: to_plain(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(map(to_plain, state))
    return state


def from_plain(state: object) -> Any:
    """Return a state of `to_plain` with tensors again, on the host."""
    if isinstance(state, Tagged):
        return _tensor(state)
    if isinstance(state, dict):
        return {key: from_plain(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(map(from_plain, state))
    return state


def _tensor(tagged: Tagged) -> torch.Tensor:
    try:
        name, shape, memory = tagged.value
        dtype = vars(torch).get(name)
        if tagged.tag != _TAG or not isinstance(dtype, torch.dtype):
            raise TypeError(f"this PyTorch has no dtype {name}")
        return torch.from_numpy(memory).view(dtype).view(shape)
    except (TypeError, ValueError, RuntimeError) as error:
        raise CommunicationError(f"another rank has sent what is no tensor: {error}") from error
