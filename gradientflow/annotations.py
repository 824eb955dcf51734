"""Aliases of types that annotations cannot express more exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

# A tensor of NumPy, PyTorch, CuPy or JAX, or another object with DLPack or the CUDA array interface.
TensorLike: TypeAlias = Any

# A state, as returned by `state_dict` and accepted by `load_state_dict`: plain values or tensors, by name.
StateDict: TypeAlias = dict[str, Any]
State: TypeAlias = Mapping[str, Any]

# A parameter group of an optimizer: its settings, and its parameters under "params".
ParameterGroup: TypeAlias = dict[str, Any]

# A JSON object, read or to be written.
JsonObject: TypeAlias = dict[str, Any]

__all__ = ["JsonObject", "ParameterGroup", "State", "StateDict", "TensorLike"]
