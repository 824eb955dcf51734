"""What the tests of the compute kernels share: guarded memory, awkward values, and the 16-bit floats in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from native import compute
from numpy.typing import NDArray

Array = NDArray[Any]

LEVELS: list[str] = compute.levels()
FLOATS = ["float16", "bfloat16", "float32", "float64"]
CASTABLE = ["float16", "bfloat16", "float32"]

# How NumPy stores each element type; bfloat16, which it does not know, as its bits.
STORAGE: dict[str, Any] = {
    "float16": np.float16,
    "bfloat16": np.uint16,
    "float32": np.float32,
    "float64": np.float64,
    "int8": np.int8,
    "uint8": np.uint8,
    "int32": np.int32,
    "int64": np.int64,
    "bool": np.bool_,
}

LINE = 64  # bytes; kernels care about alignment up to here
GUARD = 0xA5
PRIME = 10007


class Guarded:
    """Elements at a chosen distance from a cache line boundary, with guard bytes before and after them."""

    def __init__(self, values: Array, offset: int = 0) -> None:
        """Copies values to memory that starts `offset` bytes after a cache line boundary."""
        raw = np.full(values.nbytes + 4 * LINE, GUARD, np.uint8)
        start = -raw.__array_interface__["data"][0] % LINE + LINE + offset
        self._before = raw[:start]
        self._after = raw[start + values.nbytes :]
        self.bytes: Array = raw[start : start + values.nbytes]
        self.bytes[:] = values.view(np.uint8)
        self.values: Array = self.bytes.view(values.dtype)
        self.address: int = raw.__array_interface__["data"][0] + start

    def check_guards(self) -> None:
        """Fails if a byte outside of the elements was written."""
        assert (self._before == GUARD).all(), "wrote before the destination"
        assert (self._after == GUARD).all(), "wrote past the destination"


def sample(dtype: str, count: int, rng: np.random.Generator) -> Array:
    """Ordinary values with, for floats, a few zeros, infinities, NaN and subnormal numbers among them."""
    if dtype == "bool":
        return rng.integers(0, 2, count).astype(np.bool_)
    if dtype not in FLOATS:
        info = np.iinfo(STORAGE[dtype])
        return rng.integers(info.min, info.max, count, dtype=STORAGE[dtype], endpoint=True)
    values = rng.normal(0, 4, count)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-7, -3e-39, 65504.0, 3e38])
    values = np.where(rng.random(count) < 0.1, rng.choice(special, count), values)
    return narrow(values.astype(np.float32), dtype) if dtype in CASTABLE else values


def random_bits(dtype: str, count: int, rng: np.random.Generator) -> Array:
    """Any bit patterns at all (for bool, 0 and 1)."""
    if dtype == "bool":
        return rng.integers(0, 2, count).astype(np.bool_)
    storage = np.dtype(STORAGE[dtype])
    bits: Array = np.frombuffer(rng.bytes(count * storage.itemsize), storage).copy()
    return bits


def random_nan(dtype: str, count: int, rng: np.random.Generator) -> Array:
    """NaN of either sign with any payload, quiet or signaling."""
    infinity = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF << 52}[dtype]
    bits = bits_of(random_bits(dtype, count, rng))
    nan: Array = (bits | bits.dtype.type(infinity | 1)).view(STORAGE[dtype])
    return nan


def widen(values: Array, dtype: str) -> Array:
    """Stored float16, bfloat16 or float32 elements as float32; NaN keep their bits, those of float16 become quiet."""
    if dtype == "float32":
        return values
    if dtype == "bfloat16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    bits = values.view(np.uint16).astype(np.uint32)
    nan = (bits & 0x8000) << 16 | 0x7FC00000 | (bits & 0x3FF) << 13
    wide = values.astype(np.float32)
    return np.where((bits & 0x7FFF) > 0x7C00, nan, wide.view(np.uint32)).astype(np.uint32).view(np.float32)


def narrow(values: Array, dtype: str) -> Array:
    """Float32 values rounded to nearest even into the storage of dtype; NaN keep their upper bits."""
    if dtype == "float32":
        return values
    bits = values.view(np.uint32)
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    if dtype == "bfloat16":
        wide = bits.astype(np.uint64)
        rounded = (wide + 0x7FFF + ((wide >> 16) & 1)) >> 16
        return np.where(is_nan, bits >> 16, rounded).astype(np.uint16)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        rounded = values.astype(np.float16).view(np.uint16)
    nan = (bits >> 16) & 0x8000 | 0x7C00 | (bits >> 13) & 0x3FF
    return np.where(is_nan, nan, rounded).astype(np.uint16).view(np.float16)


def canonical_nan(values: Array) -> Array:
    """Every NaN that comes out of arithmetic is the same one."""
    return np.where(np.isnan(values), values.dtype.type(np.nan), values)


def bits_of(values: Array) -> Array:
    """The elements as unsigned integers of their size."""
    return values.view(np.dtype(f"u{values.itemsize}"))


def check_same(actual: Array, expected: Array) -> None:
    """Fails unless both have the same bits."""
    np.testing.assert_array_equal(bits_of(actual), bits_of(expected))
