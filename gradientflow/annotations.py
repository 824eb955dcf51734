"""Aliases of types that annotations cannot express more exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

# A tensor of NumPy, PyTorch, CuPy or JAX, or another object with DLPack or the CUDA array interface.
TensorLike: TypeAlias = Any

# A CUDA stream: its number, a stream of CuPy or PyTorch, or None for the default stream.
Stream: TypeAlias = Any

# A state, as returned by `state_dict` and accepted by `load_state_dict`: plain values or tensors, by name.
StateDict: TypeAlias = dict[str, Any]
State: TypeAlias = Mapping[str, Any]

# A parameter group of an optimizer: its settings, and its parameters under "params".
ParameterGroup: TypeAlias = dict[str, Any]

# A JSON object, read or to be written, and any JSON value.
JsonObject: TypeAlias = dict[str, Any]
JsonValue: TypeAlias = Any

__all__ = ["JsonObject", "JsonValue", "ParameterGroup", "State", "StateDict", "Stream", "TensorLike"]
