"""Wires: their table, and the segments of float8_e4m3 against a reference of NumPy, to the bit at every SIMD level."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_data import LEVELS, Array, Guarded, bits_of, compute, random_bits

from gradientflow.errors import ArgumentError
from gradientflow.wires import Wire, check_wire, wires

FP8 = "float8_e4m3"
CODES = np.arange(256, dtype=np.uint8)
TINY = np.finfo(np.float32).tiny


def value_of(codes: Array) -> Array:
    """Decode by the definition: sign, 4 bits of exponent with bias 7, 3 of fraction; 0x7f and 0xff are NaN."""
    exponent, fraction = (codes >> 3 & 15).astype(int), (codes & 7).astype(float)
    magnitude = np.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7))
    return np.where(codes & 0x7F == 0x7F, np.nan, np.where(codes & 0x80, -magnitude, magnitude)).astype(np.float32)


FINITE = value_of(CODES[:0x7F])  # ascending


def code_of(values: Array) -> Array:
    """Round to the nearest code, of two to the even one; what is not finite becomes NaN."""
    magnitude = np.abs(values.astype(np.float64))
    upper = np.searchsorted(FINITE, magnitude).clip(1, 0x7E)
    below, above = magnitude - FINITE[upper - 1], FINITE[upper] - magnitude
    nearest = np.where((below < above) | ((below == above) & (upper % 2 == 1)), upper - 1, upper)
    return np.where(np.isfinite(values), nearest | np.where(np.signbit(values), 0x80, 0), 0x7F).astype(np.uint8)


def reference(values: Array, factor: float = 1.0) -> tuple[np.float32, Array]:
    """Return the scale of a segment, and its codes."""
    finite = np.abs(values[np.isfinite(values)])
    with np.errstate(all="ignore"):
        scale = max(finite.max(initial=np.float32(0)) * np.float32(factor) / np.float32(256), TINY)
        return scale, code_of(values * (np.float32(factor) / scale))


def encoded(values: Array, level: str, factor: float = 1.0) -> Array:
    """Return the bytes of a segment."""
    segment, source = Guarded(np.zeros(4 + values.size, np.uint8), offset=4), Guarded(values)
    compute.encode(level, FP8, segment.address, source.address, values.size, factor)
    segment.check_guards()
    return segment.values


def decoded(segment: Array, level: str, factor: float = 1.0) -> Array:
    """Return the values of a segment."""
    values, source = Guarded(np.zeros(segment.size - 4, np.float32)), Guarded(segment, offset=4)
    compute.decode(level, FP8, values.address, source.address, values.values.size, factor)
    values.check_guards()
    return values.values


def check(values: Array, factor: float = 1.0) -> None:
    """Compare a segment, and what becomes of it, with the reference at all levels."""
    scale, codes = reference(values, factor)
    with np.errstate(all="ignore"):
        back = value_of(codes) * scale
    for level in LEVELS:
        segment = encoded(values, level, factor)
        assert segment[:4].view(np.float32) == scale
        np.testing.assert_array_equal(segment[4:], codes)
        np.testing.assert_array_equal(bits_of(decoded(segment, level)), bits_of(back))
        np.testing.assert_array_equal(encoded(back, level), segment, "a rank that passes it on changes it")


def test_the_table() -> None:
    assert wires() == {
        "float32": Wire(4, 0, "float32"),
        "float16": Wire(2, 0, "float16"),
        "bfloat16": Wire(2, 0, "bfloat16"),
        FP8: Wire(1, 4, None),
    }
    for name in (None, *wires()):
        check_wire(name)
    with pytest.raises(ArgumentError, match="wire is one of float32, float16, bfloat16, float8_e4m3, not 'int4'"):
        check_wire("int4")


@pytest.mark.parametrize("scale", [1.0, 3.0, 2.0**-126, 1e-30, 1e30])
def test_every_code(scale: float) -> None:
    segment = np.concatenate([np.array([scale], np.float32).view(np.uint8), CODES])
    for level in LEVELS:
        for factor in (1.0, 5.0):
            expected = value_of(CODES) * (np.float32(scale) * np.float32(factor))
            np.testing.assert_array_equal(bits_of(decoded(segment, level, factor)), bits_of(expected))


@pytest.mark.parametrize("factor", [1.0, 1 / 3])
def test_random_values(factor: float) -> None:
    generator = np.random.default_rng(8)
    for count in (1, 3, 15, 16, 17, 1000, 4099):
        check(generator.standard_normal(count).astype(np.float32), factor)
        check((generator.standard_normal(count) * 2.0 ** generator.integers(-40, 1, count)).astype(np.float32), factor)


def test_halfway_between_two_codes() -> None:
    """And the values right below and above; the largest one makes the scale 1."""
    middle = (FINITE[1:0x78].astype(np.float32) + FINITE[:0x77]) / 2
    around = [np.nextafter(middle, np.float32(0)), middle, np.nextafter(middle, np.float32(500))]
    check(np.concatenate([*around, *(-each for each in around), np.array([256], np.float32)]))


@settings(max_examples=50)
@given(st.lists(st.floats(width=32), min_size=1, max_size=70))
def test_any_values(values: list[float]) -> None:
    check(np.array(values, np.float32))


def test_any_bits() -> None:
    """All orders of magnitude, with infinity and NaN: nearly all values vanish beside the largest."""
    check(random_bits("float32", 5000, np.random.default_rng(9)))


def test_extremes() -> None:
    largest = np.finfo(np.float32).max
    for values in ([0.0, -0.0], [largest, -largest, 1.0], [TINY, -TINY / 2, TINY / 512], [2.0**-149], [np.inf, np.nan]):
        check(np.array(values, np.float32))


def test_what_is_lost_is_a_32nd_of_the_largest_at_most() -> None:
    values = np.random.default_rng(10).standard_normal(10_000).astype(np.float32)
    for level in LEVELS:
        error = np.abs(decoded(encoded(values, level), level) - values)
        assert error.max() <= np.abs(values).max() / 32
