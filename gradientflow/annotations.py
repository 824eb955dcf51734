"""Names of types that Python cannot say more exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

# A tensor of NumPy, PyTorch, CuPy or JAX, or another object with DLPack or the CUDA array interface.
TensorLike: TypeAlias = Any

# A state as `state_dict` returns it, and as `load_state_dict` takes it: names, and plain values or tensors.
StateDict: TypeAlias = dict[str, Any]
State: TypeAlias = Mapping[str, Any]

# An object of JSON, read or to be written.
JsonObject: TypeAlias = dict[str, Any]

__all__ = ["JsonObject", "State", "StateDict", "TensorLike"]
