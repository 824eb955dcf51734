"""Arrays over node memory, the memory that the ranks of a node share."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ._location import core
from .errors import ArgumentError, ArgumentTypeError

NodeArray = np.ndarray

_LARGEST = 1 << 40  # bytes
_ALIGNMENT = 64


def numpy_dtype(dtype: npt.DTypeLike | str) -> np.dtype:
    """Return a NumPy dtype by name; bfloat16 comes from the package ml_dtypes.

    Raises
    ------
    gradientflow.errors.ArgumentTypeError
        If there is no such dtype.
    """
    if isinstance(dtype, str) and dtype == "bfloat16":
        try:
            import ml_dtypes
        except ImportError as error:
            message = "NumPy arrays of bfloat16 need the package ml_dtypes (`pip install ml_dtypes`)"
            raise ArgumentTypeError(message) from error
        bfloat16: np.dtype = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    try:
        return np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError) as error:  # SyntaxError: NumPy took a text for a list of fields
        raise ArgumentTypeError(f"there is no dtype {dtype!r}") from error


def itemsize(dtype: str) -> int:
    """Return the bytes per element of a dtype of the core; bfloat16 needs no package here."""
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def checked_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    """Return a shape as a tuple of non-negative integers.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If `shape` is neither such an integer nor a sequence of such integers.
    """
    try:
        if isinstance(shape, Sequence) and not isinstance(shape, str | bytes | bytearray):
            sizes = tuple(map(operator.index, shape))
        else:
            sizes = (operator.index(shape),)  # type: ignore[arg-type]
    except TypeError as error:
        raise ArgumentError(f"a shape is an integer or a sequence of integers, not {shape!r}") from error
    if any(size < 0 for size in sizes):
        raise ArgumentError(f"shape {sizes} has a negative size")
    return sizes


def checked_bytes(sizes: tuple[int, ...], dtype: np.dtype) -> int:
    """Return the number of bytes of an array in node memory.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the array exceeds 1 TiB, the largest segment of node memory.
    gradientflow.errors.ArgumentTypeError
        If the elements are Python objects, or have no bytes.
    """
    if dtype.hasobject:
        raise ArgumentTypeError(f"dtype {dtype} cannot lie in node memory: its elements are Python objects")
    if dtype.itemsize == 0:
        raise ArgumentTypeError(f"dtype {dtype} cannot lie in node memory: its elements have no bytes")
    if any(size > _LARGEST for size in sizes):  # even if another size is 0
        raise ArgumentError(f"an array of shape {sizes} is too large: at most 1 TiB is possible")
    total = math.prod(sizes) * dtype.itemsize
    if total > _LARGEST:
        message = f"an array of shape {sizes} and dtype {dtype} takes {total} bytes: at most 1 TiB is possible"
        raise ArgumentError(message)
    return total


def array_over(segment: core.Segment | NodeArray, offset: int, shape: tuple[int, ...], dtype: np.dtype) -> NodeArray:
    """Return this rank's part of a segment, from byte `offset` on, as an array, which keeps the segment alive."""
    count = math.prod(shape)
    found: NodeArray = np.frombuffer(segment, dtype, count, offset)  # type: ignore[arg-type]
    return found.reshape(shape)


def aligned_offsets(sizes: Sequence[int]) -> list[int]:
    """Return the aligned offsets of parts with these sizes in bytes, and the aligned end of the last part."""
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
    return offsets
