"""State of a synchronizer as arrays of fixed shapes, for the state of a transformation and its checkpoints."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gradientflow.annotations import StateDict
from gradientflow.errors import ArgumentError

# Dtypes that JAX has without 64-bit support.
_KNOWN = ("float32", "float16", "bfloat16", "int32", "uint32", "int8", "uint8", "bool")
_TEXT_FOR_CHANGES = 1024  # spare bytes by which the text may grow, beside spare bytes for each tensor
_TEXT_FOR_TENSOR = 64

Array = np.ndarray


def pack(state: Mapping[str, object]) -> tuple[list[Array], bytes]:
    """Return the arrays in the lists of a state, such as residuals, and the rest as text.

    Names of tensors are left out, and so are arrays without elements, which some checkpoints reject. `unpack` takes
    both from its argument `like`.
    """
    arrays: list[Array] = []
    rest = _split({key: value for key, value in state.items() if key != "names"}, arrays)
    return [_as_stored(array) for array in arrays if array.size], json.dumps(rest, separators=(",", ":")).encode()


def unpack(arrays: Sequence[Array], text: bytes, like: Mapping[str, object]) -> StateDict:
    """Return the state that has been packed; `like` is a state of the same synchronizer."""
    known: list[Array] = []
    _split(like, known)
    stored = iter(arrays)
    state = _joined(json.loads(text), iter([_as_was(next(stored), mine) if mine.size else mine for mine in known]))
    return {"names": like["names"], **state} if "names" in like else state


def room_for(text: bytes, tensors: int) -> int:
    """Return the bytes to reserve for a text, with room to grow."""
    return 2 * len(text) + _TEXT_FOR_CHANGES + _TEXT_FOR_TENSOR * tensors


def padded(text: bytes, room: int) -> bytes:
    """Return a text padded with spaces, which have no meaning.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the text needs more room.
    """
    if len(text) > room:
        message = f"what the strategy keeps beside arrays has grown to {len(text)} bytes, and there is room for {room}"
        raise ArgumentError(message)
    return text.ljust(room)


def _split(value: object, arrays: list[Array]) -> object:
    if isinstance(value, Mapping):
        return {key: _split(each, arrays) for key, each in value.items()}
    if isinstance(value, list | tuple):
        if value and all(isinstance(each, np.ndarray) for each in value):
            arrays.extend(value)
            return {"arrays": len(value)}
        return [_split(each, arrays) for each in value]
    if isinstance(value, np.ndarray):  # its size may change
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"dtype": value.dtype.name, "shape": value.shape, "data": data}
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    message = f"a state of a strategy has a {type(value).__name__}: what is known are arrays, numbers, text and lists"
    raise ArgumentError(message)


def _joined(value: object, arrays: Iterator[Array]) -> Any:
    if isinstance(value, list):
        return [_joined(each, arrays) for each in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"arrays"}:
        return [next(arrays) for _ in range(value["arrays"])]
    if set(value) == {"dtype", "shape", "data"}:
        flat = np.frombuffer(base64.b64decode(value["data"]), value["dtype"])
        return flat.reshape(value["shape"]).copy()
    return {key: _joined(each, arrays) for key, each in value.items()}


def _as_stored(array: Array) -> Array:
    contiguous = np.ascontiguousarray(array)
    return contiguous if array.dtype.name in _KNOWN else contiguous.reshape(-1).view(np.uint8)


def _as_was(stored: Array, like: Array) -> Array:
    """Return an array as it was before `_as_stored`."""
    return stored if stored.dtype == like.dtype else stored.view(like.dtype).reshape(like.shape)


__all__ = ["pack", "padded", "room_for", "unpack"]
