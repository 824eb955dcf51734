"""New arrays of the user's kind, for results of calls without `out`."""

from __future__ import annotations

import math
import sys

import numpy as np

from ._location import core
from .annotations import TensorLike
from .device import DeviceArray
from .device import empty as device_empty
from .errors import ArgumentError, ArgumentTypeError, NodeMemoryError


def shape_of(x: TensorLike) -> tuple[int, ...]:
    """Return the shape of an array of any framework.

    Raises
    ------
    gradientflow.errors.ArgumentTypeError
        If its shape cannot be read.
    """
    if isinstance(x, np.ndarray | DeviceArray):
        return x.shape
    if _is_on_device(x):
        return tuple(map(int, x.shape))
    return _as_numpy(x).shape


def size_of(x: TensorLike) -> int:
    """Return the number of elements of an array of any framework."""
    return math.prod(shape_of(x))


def new_like(x: TensorLike, shape: tuple[int, ...]) -> TensorLike:
    """Return a new array of `shape` with the dtype of `x`, in memory of the host or on the same device as `x`.

    In host memory, the new array is a NumPy array. On a device, it is a CuPy array or PyTorch tensor if `x` is one,
    else a `DeviceArray`.
    """
    if not _is_on_device(x):
        return _empty(shape, _as_numpy(x).dtype)
    module = type(x).__module__.partition(".")[0]
    if module == "torch":
        return x.new_empty(shape)
    if module == "cupy":
        with x.device:
            return sys.modules["cupy"].empty(shape, x.dtype)
    return device_empty(shape, _dtype_name(x), _device_of(x))


def _empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    try:
        return np.empty(shape, dtype)
    except ValueError as error:
        raise ArgumentError(f"a result of shape {shape} is larger than an array can be") from error
    except MemoryError as error:
        raise NodeMemoryError(f"there is not enough memory for a result of shape {shape} and dtype {dtype}") from error


def _is_on_device(x: TensorLike) -> bool:
    if isinstance(x, np.ndarray):
        return False
    if isinstance(x, DeviceArray):
        return True
    if hasattr(x, "__dlpack_device__"):
        return int(x.__dlpack_device__()[0]) in (2, 13)
    return hasattr(x, "__cuda_array_interface__")


def _device_of(x: TensorLike) -> int | str:
    if isinstance(x, DeviceArray):
        return x.device
    if hasattr(x, "__dlpack_device__"):
        return int(x.__dlpack_device__()[1])
    address = int(x.__cuda_array_interface__["data"][0])
    return int(core.device.of(address)) if address else "cuda"


def _dtype_name(x: TensorLike) -> str:
    return x.dtype if isinstance(x.dtype, str) else str(np.dtype(x.dtype).name)


def _as_numpy(x: TensorLike) -> np.ndarray:
    """Return `x` as a NumPy array, for its shape and dtype."""
    if isinstance(x, np.ndarray):
        return x
    try:
        return np.from_dlpack(x) if hasattr(x, "__dlpack__") else np.asarray(memoryview(x))
    except Exception as error:  # an object's own protocol may raise anything
        raise ArgumentTypeError(f"cannot make a result like a {type(x).__name__} ({error}); give out=") from error
