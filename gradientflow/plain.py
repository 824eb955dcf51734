"""Serialization of plain values: numbers, text, arrays, and containers of these. Reading them runs no foreign code.

Ranks exchange state in this form. Values arrive equal to the bit: a JSON text describes them, and the memory of the
arrays follows it. Large arrays are not copied.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from .errors import ArgumentTypeError, CommunicationError
from .memory import numpy_dtype

Bytes = npt.NDArray[np.uint8]
Plain: TypeAlias = Any  # a plain value

_SMALL = 1 << 16  # largest array, in bytes, that is sent together with other arrays
_ALIGNMENT = 64
_KINDS = "biufc"  # kinds of NumPy dtypes that are numbers
_WORDS = "None, bool, int, float, str, bytes, lists, tuples, mappings, and NumPy numbers and arrays of numbers"


@dataclass(frozen=True, eq=False)
class Tagged:
    """A plain value that represents another object, with a tag that names the kind of object."""

    tag: str
    value: Plain


def pack(value: object, what: str = "the value") -> list[Bytes]:
    """Return the parts of a plain value: its description, small arrays, and the memory of each large one.

    Parameters
    ----------
    value : plain value
        None, numbers, text, bytes, lists, tuples, mappings (which arrive as dicts), arrays, and `Tagged` values.
    what : str
        Name of the value in messages.

    Raises
    ------
    gradientflow.errors.ArgumentTypeError
        If the value contains anything else; the message names the place and the type.
    """
    return _Writer(_SMALL).parts(value, what)


def unpack(parts: Sequence[Bytes]) -> Plain:
    """Return the value packed in `parts`, which come from `pack`; its arrays are views of the parts.

    Raises
    ------
    gradientflow.errors.CommunicationError
        If the parts are no plain value.
    """
    try:
        return _read(json.loads(bytes(parts[0])), parts[1:])
    except (ValueError, TypeError, LookupError, struct.error, RecursionError) as error:
        raise CommunicationError(f"another rank has sent what is no plain value: {error}") from error


def dump(value: object, what: str = "the value") -> bytes:
    """Return a plain value as one bytes object; see `pack`."""
    text, arrays = _Writer(math.inf).parts(value, what)
    return b"".join((text.size.to_bytes(8, "little"), text.data, arrays.data))


def load(data: bytes) -> Plain:
    """Return the value of bytes from `dump`; see `unpack`."""
    end = 8 + int.from_bytes(data[:8], "little")
    return unpack([np.frombuffer(data[8:end], np.uint8), np.frombuffer(bytearray(data[end:]), np.uint8)])


class _Writer:
    def __init__(self, small: float) -> None:
        self._small = small
        self._together = bytearray()
        self._large: list[Bytes] = []

    def parts(self, value: object, what: str) -> list[Bytes]:
        try:
            text = json.dumps(self._described(value, what), separators=(",", ":"))
        except RecursionError:
            raise ArgumentTypeError(f"{what} contains itself, or is nested too deeply: it cannot be sent") from None
        first = (np.frombuffer(bytearray(each), np.uint8) for each in (text.encode(), self._together))
        return [*first, *self._large]

    def _described(self, value: Plain, path: str) -> Plain:
        """Return a description for JSON: None, bool, str and usual numbers unchanged, else a list led by the kind."""
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return value if -(2**63) <= value < 2**63 else ["int", hex(value)]
        if kind is float:
            return value if math.isfinite(value) else ["float", struct.pack("<d", value).hex()]
        if kind is bytes:
            return ["bytes", value.hex()]
        if kind is list or kind is tuple:
            return [kind.__name__, *(self._described(each, f"{path}[{index}]") for index, each in enumerate(value))]
        if isinstance(value, Mapping):
            keys = ((self._described(key, f"a key of {path}"), key) for key in value)
            return ["dict", *([key, self._described(value[own], f"{path}[{own!r}]")] for key, own in keys)]
        if kind is Tagged:
            return ["tagged", value.tag, self._described(value.value, path)]
        if isinstance(value, np.generic) and _is_number(value.dtype):
            return ["number", _name_of(value.dtype), value.tobytes().hex()]
        if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray) and _is_number(value.dtype):
            return self._array(value)
        of = f" of {value.dtype}" if isinstance(value, np.ndarray) else ""
        raise ArgumentTypeError(f"{path} is a {kind.__module__}.{kind.__qualname__}{of}: ranks send {_WORDS}")

    def _array(self, array: np.ndarray) -> list[object]:
        is_turned = array.flags.f_contiguous and not array.flags.c_contiguous
        memory = np.ascontiguousarray(array.T if is_turned else array).reshape(-1).view(np.uint8)
        if memory.size <= self._small:
            self._together += bytes(-len(self._together) % _ALIGNMENT)
            place = [0, len(self._together)]
            self._together += memory.data
        else:
            self._large.append(memory if memory.flags.writeable else memory.copy())
            place = [len(self._large), 0]
        return ["turned" if is_turned else "array", _name_of(array.dtype), list(array.shape), *place]


def _read(described: object, arrays: Sequence[Bytes]) -> object:
    if not isinstance(described, list):
        return described
    word, *rest = described
    return _READERS[word](rest, arrays)


def _read_dict(items: list[Plain], arrays: Sequence[Bytes]) -> dict[object, object]:
    return {_read(key, arrays): _read(value, arrays) for key, value in items}


def _read_array(about: list[Plain], arrays: Sequence[Bytes]) -> np.ndarray:
    name, shape, part, offset = about
    dtype = _dtype_of(name)
    size = math.prod(shape) * dtype.itemsize
    if min(size, part, offset, *shape) < 0 or offset + size > arrays[part].size:
        raise ValueError(f"an array of {name} {shape} is not in {arrays[part].size} bytes")
    return cast("np.ndarray", arrays[part][offset : offset + size].view(dtype).reshape(shape))


def _read_turned(about: list[Plain], arrays: Sequence[Bytes]) -> np.ndarray:
    name, shape, *place = about
    return cast("np.ndarray", _read_array([name, shape[::-1], *place], arrays).T)


def _read_tagged(pair: list[object], arrays: Sequence[Bytes]) -> Tagged:
    tag, value = pair
    return Tagged(str(tag), _read(value, arrays))


_READERS: Mapping[str, Callable[[list[Plain], Sequence[Bytes]], object]] = {
    "int": lambda rest, _: int(rest[0], 16),
    "float": lambda rest, _: struct.unpack("<d", bytes.fromhex(rest[0]))[0],
    "bytes": lambda rest, _: bytes.fromhex(rest[0]),
    "list": lambda rest, arrays: [_read(each, arrays) for each in rest],
    "tuple": lambda rest, arrays: tuple(_read(each, arrays) for each in rest),
    "dict": _read_dict,
    "tagged": _read_tagged,
    "number": lambda rest, _: np.frombuffer(bytes.fromhex(rest[1]), _dtype_of(rest[0]))[0],
    "array": _read_array,
    "turned": _read_turned,
}


def _is_number(dtype: np.dtype) -> bool:
    return (dtype.kind in _KINDS and dtype.isbuiltin != 2) or dtype.name == "bfloat16"  # 2: registered by a library


def _name_of(dtype: np.dtype) -> str:
    return "bfloat16" if dtype.name == "bfloat16" else dtype.str


def _dtype_of(name: str) -> np.dtype:
    dtype = numpy_dtype(str(name))
    if not _is_number(dtype):
        raise ValueError(f"{name} is no dtype of numbers")
    return dtype


__all__ = ["Bytes", "Tagged", "dump", "load", "pack", "unpack"]
