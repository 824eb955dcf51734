"""The compute kernels against NumPy, at every SIMD level that runs here."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_data import (
    CASTABLE,
    FLOATS,
    LEVELS,
    LINE,
    PRIME,
    STORAGE,
    Array,
    Guarded,
    bits_of,
    check_same,
    compute,
    narrow,
    random_bits,
    random_nan,
    sample,
    widen,
)
from kernel_references import cast, reduced

from gradientflow import _core

OPS = ["sum", "mean", "max", "min", "prod"]
DTYPES = list(STORAGE)


def is_defined(dtype: str, op: str) -> bool:
    """Whether op is defined on dtype."""
    if dtype == "bool":
        return op in ("max", "min")
    return op != "mean" or dtype in FLOATS


DEFINED = [(dtype, op) for dtype in DTYPES for op in OPS if is_defined(dtype, op)]


def run_reduce(
    level: str,
    destinations: list[Guarded],
    sources: list[Guarded],
    dtype: str,
    op: str,
    *,
    divisor: int = 1,
    streaming: bool = False,
) -> None:
    """Calls the kernel and checks the guards."""
    compute.reduce(
        level=level,
        destinations=[d.address for d in destinations],
        sources=[s.address for s in sources],
        count=sources[0].values.size,
        dtype=dtype,
        op=op,
        divisor=divisor,
        streaming=streaming,
    )
    for memory in itertools.chain(destinations, sources):
        memory.check_guards()


# ---------------------------------------------------------------------------------------------------------------------
# reduce
# ---------------------------------------------------------------------------------------------------------------------


def shapes() -> Iterator[tuple[int, int, int]]:
    """Lengths with numbers of sources and destinations: every pair of numbers, every length, not every triple."""
    pairs = itertools.cycle(itertools.product(range(1, 6), range(1, 4)))
    for length in [*range(68), 129, 257, PRIME]:
        yield (length, *next(pairs))


@pytest.mark.parametrize(("dtype", "op"), DEFINED)
def test_reduce_matches_numpy(dtype: str, op: str) -> None:
    """Every dtype, op, level and store, over lengths and numbers of sources and destinations."""
    rng = np.random.default_rng(DTYPES.index(dtype) * len(OPS) + OPS.index(op))
    for length, p, d in shapes():
        values = [sample(dtype, length, rng) for _ in range(p)]
        divisor = p if op == "mean" else 1
        expected = reduced(values, dtype, op, divisor)
        for level, streaming in itertools.product(LEVELS, (False, True)):
            sources = [Guarded(v) for v in values]
            destinations = [Guarded(np.zeros_like(values[0])) for _ in range(d)]
            run_reduce(level, destinations, sources, dtype, op, divisor=divisor, streaming=streaming)
            for destination in destinations:
                check_same(destination.values, expected)
            for source, value in zip(sources, values, strict=True):
                check_same(source.values, value)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_reduce_in_place(dtype: str, streaming: bool) -> None:
    """A destination may be a source: one of them, or all."""
    op = "max" if dtype == "bool" else "sum"
    rng = np.random.default_rng(1)
    for length, p, d in shapes():
        values = [sample(dtype, length, rng) for _ in range(p)]
        expected = reduced(values, dtype, op)
        for level, where in itertools.product(LEVELS, range(p)):
            sources = [Guarded(v) for v in values]
            others = [Guarded(np.zeros_like(values[0])) for _ in range(d - 1)]
            run_reduce(level, [sources[where], *others], sources, dtype, op, streaming=streaming)
            for destination in [sources[where], *others]:
                check_same(destination.values, expected)
        for level in LEVELS:
            sources = [Guarded(v) for v in values]
            run_reduce(level, sources, sources, dtype, op, streaming=streaming)
            for source in sources:
                check_same(source.values, expected)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_reduce_at_every_alignment(dtype: str, streaming: bool) -> None:
    """Destinations at every alignment modulo a cache line, with sources and second destinations at the same or not."""
    op = "max" if dtype == "bool" else "sum"
    rng = np.random.default_rng(2)
    size = np.dtype(STORAGE[dtype]).itemsize
    for offset in range(0, LINE, size):
        other = int(rng.integers(0, LINE // size)) * size
        length = int(rng.integers(300, 900)) // size
        values = [sample(dtype, length, rng) for _ in range(2)]
        expected = reduced(values, dtype, op)
        for level, second in itertools.product(LEVELS, (offset, other)):
            sources = [Guarded(values[0], offset), Guarded(values[1], other)]
            destinations = [Guarded(np.zeros_like(values[0]), o) for o in (offset, second)]
            run_reduce(level, destinations, sources, dtype, op, streaming=streaming)
            for destination in destinations:
                check_same(destination.values, expected)


@settings(max_examples=300)
@given(data=st.data())
def test_reduce_anywhere(data: st.DataObject) -> None:
    """Whatever the length, the alignments, the numbers and the aliasing: as NumPy, at every level."""
    dtype, op = data.draw(st.sampled_from(DEFINED), label="dtype, op")
    size = np.dtype(STORAGE[dtype]).itemsize
    offsets = st.integers(0, LINE // size - 1).map(lambda elements: elements * size)
    length = data.draw(st.integers(0, 1500), label="length")
    source_offsets = data.draw(st.lists(offsets, min_size=1, max_size=7), label="sources at")
    destination_offsets = data.draw(st.lists(offsets, min_size=0, max_size=3), label="destinations at")
    in_place = data.draw(st.sets(st.integers(0, len(source_offsets) - 1)), label="in place")
    streaming = data.draw(st.booleans(), label="streaming")
    divisor = data.draw(st.integers(1, 9), label="divisor") if op == "mean" else 1
    if not destination_offsets and not in_place:
        in_place = {0}
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32), label="seed"))
    values = [sample(dtype, length, rng) for _ in source_offsets]
    expected = reduced(values, dtype, op, divisor)
    for level in LEVELS:
        sources = [Guarded(v, o) for v, o in zip(values, source_offsets, strict=True)]
        destinations = [Guarded(np.zeros_like(values[0]), o) for o in destination_offsets]
        destinations += [sources[i] for i in sorted(in_place)]
        run_reduce(level, destinations, sources, dtype, op, divisor=divisor, streaming=streaming)
        for destination in destinations:
            check_same(destination.values, expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_mean_is_a_true_division(dtype: str) -> None:
    """Powers of two and other divisors, up to large ones, give the correctly rounded quotient."""
    rng = np.random.default_rng(3)
    values = [sample(dtype, 1000, rng) for _ in range(2)]
    for divisor, level in itertools.product([1, 2, 3, 4, 5, 7, 10, 64, 1000, 1 << 20, 2**31 - 1], LEVELS):
        sources = [Guarded(v) for v in values]
        destination = Guarded(np.zeros_like(values[0]))
        run_reduce(level, [destination], sources, dtype, "mean", divisor=divisor)
        check_same(destination.values, reduced(values, dtype, "mean", divisor))


@pytest.mark.parametrize(("dtype", "op"), DEFINED)
def test_reduce_of_any_bit_patterns(dtype: str, op: str) -> None:
    """Subnormals, infinities and NaN with payloads, several at a place: the same bits everywhere."""
    rng = np.random.default_rng(4)
    for p, length in itertools.product(range(1, 6), (61, 4099)):
        values = [random_bits(dtype, length, rng) for _ in range(p)]
        if dtype in FLOATS:
            for value in values:
                nan = rng.random(length) < 0.1
                value[nan] = random_nan(dtype, int(nan.sum()), rng)
        divisor = p if op == "mean" else 1
        expected = reduced(values, dtype, op, divisor)
        for level in LEVELS:
            destination = Guarded(np.zeros_like(values[0]))
            run_reduce(level, [destination], [Guarded(v) for v in values], dtype, op, divisor=divisor)
            check_same(destination.values, expected)


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_max_and_min_propagate_nan(dtype: str, op: str) -> None:
    """As numpy.maximum and numpy.minimum: NaN wherever an operand is."""
    ramp = np.arange(40, dtype=np.float32) - 20
    operands = [ramp.copy(), ramp[::-1].copy(), ramp / 2]
    operands[0][::3] = np.nan
    operands[1][::4] = -np.nan
    operands[2][::5] = np.nan
    ufunc = np.maximum if op == "max" else np.minimum
    expected = ufunc(ufunc(operands[0], operands[1]), operands[2])
    values = [v.astype(np.float64) if dtype == "float64" else narrow(v, dtype) for v in operands]
    for level in LEVELS:
        destination = Guarded(np.zeros_like(values[0]))
        run_reduce(level, [destination], [Guarded(v) for v in values], dtype, op)
        result = widen(destination.values, dtype) if dtype in CASTABLE else destination.values
        np.testing.assert_array_equal(result, expected)


def test_reduce_refuses_wrong_use() -> None:
    """Undefined ops, divisors without a mean, empty lists and unknown names are refused in a sentence."""
    address = np.zeros(4, np.float32).__array_interface__["data"][0]
    good = {
        "level": "baseline",
        "destinations": [address],
        "sources": [address],
        "count": 0,
        "dtype": "float32",
        "op": "sum",
        "divisor": 1,
        "streaming": False,
    }
    compute.reduce(**good)
    wrong: list[tuple[type[Exception], dict[str, object]]] = [
        (ValueError, {"level": "sse9"}),
        (ValueError, {"op": "xor"}),
        (TypeError, {"dtype": "complex64"}),
        (TypeError, {"dtype": "int32", "op": "mean"}),
        (TypeError, {"dtype": "bool", "op": "sum"}),
        (ValueError, {"op": "mean", "divisor": 0}),
        (ValueError, {"op": "max", "divisor": 2}),
        (ValueError, {"destinations": []}),
        (ValueError, {"sources": []}),
    ]
    for error, change in wrong:
        with pytest.raises(error, match=r"\w+ \w+ \w+"):
            compute.reduce(**{**good, **change})


# ---------------------------------------------------------------------------------------------------------------------
# cast and copy
# ---------------------------------------------------------------------------------------------------------------------


def run_cast(level: str, destination: Guarded, to: str, source: Guarded, of: str, scale: float = 1.0) -> None:
    """Calls the kernel and checks the guards."""
    compute.cast(
        level=level,
        destination=destination.address,
        destination_dtype=to,
        source=source.address,
        source_dtype=of,
        count=source.values.size,
        scale=scale,
    )
    destination.check_guards()
    source.check_guards()


def check_cast(values: Array, to: str, of: str, scale: float = 1.0) -> None:
    """One cast at all levels, every bit compared."""
    expected = cast(values, to, of, scale)
    for level in LEVELS:
        destination = Guarded(np.zeros(values.size, STORAGE[to]))
        run_cast(level, destination, to, Guarded(values), of, scale)
        np.testing.assert_array_equal(bits_of(destination.values), bits_of(expected))


@pytest.mark.parametrize("scale", [1.0, 0.5, 1 / 3, -1024.0, 1e-9])
@pytest.mark.parametrize("to", CASTABLE)
@pytest.mark.parametrize("of", ["float16", "bfloat16"])
def test_cast_of_every_16_bit_pattern(of: str, to: str, scale: float) -> None:
    """All 65,536 float16 and bfloat16, subnormals, infinities and NaN included."""
    check_cast(np.arange(65536, dtype=np.uint16).view(STORAGE[of]), to, of, scale)


@pytest.mark.parametrize("of", ["float16", "bfloat16"])
def test_cast_there_and_back(of: str) -> None:
    """Every 16-bit pattern survives float32, but a NaN becomes the quiet one."""
    patterns = np.arange(65536, dtype=np.uint16)
    is_nan = np.isnan(widen(patterns.view(STORAGE[of]), of))
    expected = np.where(is_nan, 0x7E00 if of == "float16" else 0x7FC0, patterns)
    for level in LEVELS:
        source = Guarded(patterns.view(STORAGE[of]))
        wide = Guarded(np.zeros(65536, np.float32))
        back = Guarded(np.zeros(65536, STORAGE[of]))
        run_cast(level, wide, "float32", source, of)
        run_cast(level, back, of, wide, "float32")
        np.testing.assert_array_equal(bits_of(back.values), expected)


@pytest.mark.parametrize("to", CASTABLE)
def test_cast_of_random_float32(to: str) -> None:
    """A million bit patterns drawn from all float32."""
    check_cast(random_bits("float32", 1 << 20, np.random.default_rng(5)), to, "float32")
    check_cast(random_bits("float32", 1 << 16, np.random.default_rng(6)), to, "float32", 0.1)


@pytest.mark.parametrize("to", ["float16", "bfloat16"])
def test_cast_at_every_rounding_boundary(to: str) -> None:
    """Each value halfway between two neighbors, and the float32 right below and above it."""
    # Of two neighboring patterns of one sign, the float32 halfway is the mean; in float64, it is exact.
    patterns = np.arange(65536, dtype=np.uint16)
    values = widen(patterns.view(STORAGE[to]), to)
    finite = values[np.isfinite(values)].astype(np.float64).reshape(2, -1)
    halfway = ((finite[:, 1:] + finite[:, :-1]) / 2).ravel().astype(np.float32)
    overflow = np.array([65520, 3.3961775e38], np.float32)
    middle = np.concatenate([halfway, overflow, -overflow]).view(np.uint32)
    check_cast(np.concatenate([middle - 1, middle, middle + 1]).view(np.float32), to, "float32")


@pytest.mark.parametrize("to", CASTABLE)
@pytest.mark.parametrize("of", CASTABLE)
def test_cast_lengths_and_alignments(of: str, to: str) -> None:
    """Every short length, every alignment of source and of destination, and in place where the sizes agree."""
    rng = np.random.default_rng(7)
    of_size, to_size = (np.dtype(STORAGE[name]).itemsize for name in (of, to))
    for length in [*range(68), 150, PRIME]:
        values = sample(of, length, rng)
        expected = bits_of(cast(values, to, of, 0.75))
        for level in LEVELS:
            source = Guarded(values, length * of_size % LINE)
            destination = Guarded(np.zeros(length, STORAGE[to]), length * 3 * to_size % LINE)
            run_cast(level, destination, to, source, of, 0.75)
            np.testing.assert_array_equal(bits_of(destination.values), expected)
            if of_size == to_size:
                run_cast(level, source, to, source, of, 0.75)
                np.testing.assert_array_equal(source.bytes, destination.bytes)


def test_cast_refuses_other_dtypes() -> None:
    """Casts are between the 16-bit floats and float32 only."""
    for to, of in [("float64", "float32"), ("float32", "int32")]:
        with pytest.raises(TypeError, match=r"cast is between float16, bfloat16 and float32"):
            compute.cast("baseline", 0, to, 0, of, 0, 1.0)


def ways_to_copy() -> list[Callable[[int, int, int], None]]:
    """Each takes the addresses of destination and source, and the number of bytes."""

    def in_vectors(level: str, streaming: bool, destination: int, source: int, size: int) -> None:
        compute.copy(level, destination, source, size, streaming)

    return [
        compute.copy_rep_movsb,
        *(partial(in_vectors, level, streaming) for level, streaming in itertools.product(LEVELS, (False, True))),
    ]


def check_copies(values: Array, offset: int, source_offset: int) -> None:
    """One copy in every way, between memory at these distances from a cache line."""
    for copy in ways_to_copy():
        source = Guarded(values, source_offset)
        destination = Guarded(np.zeros_like(values), offset)
        copy(destination.address, source.address, values.nbytes)
        destination.check_guards()
        source.check_guards()
        np.testing.assert_array_equal(destination.bytes, values)
        np.testing.assert_array_equal(source.bytes, values)


def test_copy() -> None:
    """Every short length, none at all too, at every alignment of the destination, and a long one."""
    rng = np.random.default_rng(8)
    for length in [*range(600), 1 << 20]:
        check_copies(np.frombuffer(rng.bytes(length), np.uint8), length % LINE, length * 5 % LINE)


@settings(max_examples=300)
@given(st.integers(0, 20000), st.integers(0, LINE - 1), st.integers(0, LINE - 1))
def test_copy_property(length: int, offset: int, source_offset: int) -> None:
    """Whatever the length and the alignments, everything arrives, and nothing else is written."""
    check_copies(np.frombuffer(np.random.default_rng(length).bytes(length), np.uint8), offset, source_offset)


TILE = 1 << 20


@contextmanager
def tiled(length: int) -> Iterator[Array]:
    """So many bytes of addresses: the same TILE bytes of memory over and over."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    size, number = ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes = [ctypes.c_void_p, size, number, number, number, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, size]
    whole = -(-length // TILE) * TILE
    file = os.memfd_create("tile")
    os.ftruncate(file, TILE)
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE | 0x10  # MAP_FIXED
    start = libc.mmap(None, whole, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    try:
        for at in range(start, start + whole, TILE):
            mapped = libc.mmap(at, TILE, mmap.PROT_READ | mmap.PROT_WRITE, flags, file, 0)
            assert mapped == at
        yield np.ctypeslib.as_array((ctypes.c_uint8 * length).from_address(start))
    finally:
        libc.munmap(start, whole)
        os.close(file)


@pytest.mark.thorough
def test_copy_beyond_32_bits() -> None:
    """A length that no integer of 32 bits holds: all of the memory behind the destination is written."""
    length = (1 << 32) + 12345
    with tiled(length) as source, tiled(3 + length) as destination:
        source[:TILE] = np.frombuffer(np.random.default_rng(9).bytes(TILE), np.uint8)
        for copy in ways_to_copy():
            destination[:TILE] = 0
            copy(destination.ctypes.data + 3, source.ctypes.data, length)
            np.testing.assert_array_equal(np.roll(destination[:TILE], -3), source[:TILE])


# ---------------------------------------------------------------------------------------------------------------------
# Counting what is not finite
# ---------------------------------------------------------------------------------------------------------------------


def check_count(values: Array, offset: int = 0, dtype: str = "float32") -> None:
    """One count at all levels, against NumPy."""
    expected = int(np.count_nonzero(~np.isfinite(widen(values, dtype))))
    source = Guarded(values, offset)
    for level in LEVELS:
        assert compute.count_nonfinite(level, source.address, dtype, values.size) == expected, (level, values.size)


def test_count_nonfinite_knows_infinity_and_every_nan_from_large_numbers() -> None:
    """Bit patterns around the borders: the exponent alone decides, neither the sign nor the payload."""
    borders = np.array([0x00000000, 0x00000001, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF], np.uint32)
    patterns = np.concatenate([borders, borders | np.uint32(0x80000000)]).view(np.float32)
    for pattern in patterns:
        check_count(np.full(1, pattern))
        check_count(np.full(37, pattern))
    check_count(patterns)
    check_count(np.concatenate([patterns] * 11)[:-3])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_count_nonfinite_of_every_16_bit_pattern(dtype: str) -> None:
    """Each alone, and all together."""
    patterns = np.arange(65536, dtype=np.uint16).view(STORAGE[dtype])
    check_count(patterns, 2, dtype)
    is_finite = np.isfinite(widen(patterns, dtype))
    source = Guarded(patterns)
    for level, i in itertools.product(LEVELS, range(0, 65536, 31)):
        assert compute.count_nonfinite(level, source.address + 2 * i, dtype, 1) == (not is_finite[i]), (level, i)


@pytest.mark.parametrize("dtype", CASTABLE)
def test_count_nonfinite_of_random_bits_at_every_length_and_alignment(dtype: str) -> None:
    """Also where no whole vector fits, and with what is before and after the elements left alone."""
    rng = np.random.default_rng(12)
    item = np.dtype(STORAGE[dtype]).itemsize
    for length in [*range(140), PRIME, 1 << 20]:
        check_count(sample(dtype, length, rng), item * length % LINE, dtype)
        check_count(random_bits(dtype, length, rng), length % LINE, dtype)


@pytest.mark.parametrize(("dtype", "count"), [("float16", (1 << 22) + 4321), ("float32", (1 << 24) + 4321)])
def test_count_nonfinite_adds_up_beyond_a_lane(dtype: str, count: int) -> None:
    """Every element counts, more than the lanes of the kernel's sums can hold."""
    check_count(np.full(count, np.nan, STORAGE[dtype]), 0, dtype)


def test_count_nonfinite_refuses_other_dtypes() -> None:
    """Float64 and what is no float are refused in a sentence."""
    for dtype in ("float64", "int32"):
        with pytest.raises(TypeError, match=f"count_nonfinite is for float16, bfloat16 and float32, not {dtype}"):
            compute.count_nonfinite("baseline", 0, dtype, 0)


@given(places=st.sets(st.integers(0, 99)), length=st.integers(0, 100))
def test_count_nonfinite_finds_each_place(places: set[int], length: int) -> None:
    """Wherever they are, each one counts once."""
    values = np.ones(100, np.float32)
    values[sorted(places)] = np.inf
    check_count(values[:length])


# ---------------------------------------------------------------------------------------------------------------------
# Levels
# ---------------------------------------------------------------------------------------------------------------------


def active_level(wanted: str) -> subprocess.CompletedProcess[str]:
    """The level that a fresh process chooses with GRADIENTFLOW_SIMD set."""
    program = "from gradientflow.bench.core.native import load_kernels; print(load_kernels('cpu').active_level())"
    environment = {**os.environ, "GRADIENTFLOW_SIMD": wanted}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def test_level_follows_the_environment() -> None:
    """GRADIENTFLOW_SIMD lowers the level; what is unknown or not offered by the processor is refused."""
    known = ["baseline", "avx2", "avx512"]
    assert known[: len(LEVELS)] == LEVELS
    assert active_level("auto").stdout.strip() == LEVELS[-1]
    assert active_level("baseline").stdout.strip() == "baseline"
    for wanted in known[1:]:
        finished = active_level(wanted)
        if wanted in LEVELS:
            assert finished.stdout.strip() == wanted
        else:
            assert finished.returncode != 0
            assert f"GRADIENTFLOW_SIMD asks for {wanted}" in finished.stderr
    refused = active_level("sse9")
    assert refused.returncode != 0
    assert "GRADIENTFLOW_SIMD" in refused.stderr


def native_library() -> Path:
    """The shared library with the kernels: beside the module, or the module itself."""
    module = Path(str(_core.__file__))
    found = sorted(module.parent.rglob("libgradientflow*.so*"))
    return found[0] if found else module


def test_wide_registers_stay_in_their_level() -> None:
    """No function outside of the avx2 and avx512 kernels uses wide registers.

    A template of the C++ library, compiled with AVX into one of those files, could otherwise be the copy that the
    linker keeps for the whole program, which then dies on an older processor.
    """
    objdump = shutil.which("objdump")
    if objdump is None:
        pytest.skip("objdump is not installed")
    if len(LEVELS) == 1 and os.uname().machine != "x86_64":
        pytest.skip("wide registers are a matter of x86-64")
    disassembly = subprocess.run(
        [objdump, "-d", "-C", "--no-show-raw-insn", str(native_library())], capture_output=True, text=True, check=True
    ).stdout
    own = 0
    astray = set()
    function = ""
    for line in disassembly.splitlines():
        if line.endswith(">:"):
            function = line
        elif "%ymm" in line or "%zmm" in line:
            if "compute::avx2::" in function or "compute::avx512::" in function:
                own += 1
            else:
                astray.add(function)
    if own == 0:
        pytest.skip(f"{native_library().name} has no symbols to tell the levels apart")
    assert not astray
