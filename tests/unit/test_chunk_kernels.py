"""The kernels of sparse communication and of the optimizers against straight-line NumPy, at every SIMD level."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_data import (
    CASTABLE,
    LEVELS,
    LINE,
    PRIME,
    STORAGE,
    Array,
    Guarded,
    canonical_nan,
    check_same,
    compute,
    narrow,
    random_bits,
    sample,
    widen,
)
from kernel_references import BLOCK, add_up, corrected, stepped

LENGTHS = [*range(5), 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 1021, 2047, 2048, 2049, 2111, 4096, 4161, PRIME, 32768]
SHORT = [name for name in CASTABLE if name != "float32"]


# ---- one call, checked -----------------------------------------------------------------------------------------------


def check_sum(actual: float, expected: float) -> None:
    """Fails unless both are the same number, or NaN."""
    assert actual == expected or (math.isnan(actual) and math.isnan(expected)), (actual, expected)


def address(memory: Guarded | None) -> int:
    """Where it is; 0 where it is not."""
    return 0 if memory is None else memory.address


def placed(values: Array | None, offset: int = 0) -> Guarded | None:
    """A guarded copy, at a multiple of its element size; None of None."""
    return None if values is None else Guarded(values, offset * values.itemsize % LINE)


def check_untouched(memory: Guarded | None, values: Array | None) -> None:
    """Fails if an input was written to."""
    if memory is not None and values is not None:
        memory.check_guards()
        np.testing.assert_array_equal(memory.bytes, values.view(np.uint8))


def check_update_residual(
    gradient: Array, dtype: str, residual: Array | None, keep: bool, scale: float, momentum: float, offsets: list[int]
) -> None:
    """One chunk that stays in the residual, at all levels."""
    with np.errstate(all="ignore"):
        x = corrected(gradient, dtype, residual, scale)
        expected, norm = canonical_nan(x * np.float32(momentum)), add_up(np.abs(x))
    for level, streaming in itertools.product(LEVELS, (False, True) if keep else (False,)):
        memory = Guarded(gradient, offsets[0] * gradient.itemsize % LINE)
        before = placed(residual, offsets[1])
        after = placed(np.full(len(gradient), 7, np.float32), offsets[2]) if keep else None
        found = compute.update_residual(
            level, memory.address, dtype, address(before), address(after), len(gradient), scale, momentum, streaming
        )
        check_sum(found, norm)
        memory.check_guards()
        assert not memory.bytes.any(), "the gradient is not zero"
        check_untouched(before, residual)
        if after is not None:
            after.check_guards()
            check_same(after.values, expected)


def check_gather(gradient: Array, dtype: str, residual: Array | None, scale: float, offsets: list[int]) -> None:
    """One chunk that is sent, at all levels."""
    with np.errstate(all="ignore"):
        x = corrected(gradient, dtype, residual, scale)
        expected, norm = narrow(canonical_nan(x / np.float32(scale)), dtype), add_up(np.abs(x))
    for level in LEVELS:
        memory = Guarded(gradient, offsets[0] * gradient.itemsize % LINE)
        before = placed(residual, offsets[1])
        buffer = Guarded(np.ones_like(gradient), offsets[2] * gradient.itemsize % LINE)
        found = compute.gather(level, memory.address, dtype, address(before), buffer.address, len(gradient), scale)
        check_sum(found, norm)
        check_untouched(memory, gradient)
        check_untouched(before, residual)
        buffer.check_guards()
        check_same(buffer.values, expected)


def check_scatter(values: Array, dtype: str, scale: float, offsets: list[int]) -> None:
    """One chunk that comes back, at all levels."""
    with np.errstate(all="ignore"):
        norm = add_up(np.abs(widen(values, dtype) * np.float32(scale)))
    for level in LEVELS:
        buffer = Guarded(values, offsets[0] * values.itemsize % LINE)
        memory = Guarded(np.ones_like(values), offsets[1] * values.itemsize % LINE)
        check_sum(compute.scatter(level, memory.address, dtype, buffer.address, len(values), scale), norm)
        check_untouched(buffer, values)
        memory.check_guards()
        check_same(memory.values, values)


def check_squares(values: Array, dtype: str, scale: float, offset: int = 0) -> None:
    """One sum of squares, at all levels."""
    with np.errstate(all="ignore"):
        x = widen(values, dtype) * np.float32(scale)
        expected = add_up(x * x)
    for level in LEVELS:
        source = Guarded(values, offset * values.itemsize % LINE)
        check_sum(compute.sum_of_squares(level, source.address, dtype, len(values), scale), expected)
        check_untouched(source, values)


def values_of(dtype: str, count: int, rng: np.random.Generator) -> Array:
    """Ordinary values in the storage of dtype."""
    return narrow(rng.normal(0, 1, count).astype(np.float32), dtype)


# ---- update residual, gather, scatter, sum of squares ----------------------------------------------------------------


def cases(dtype: str, seed: int) -> Iterator[tuple[Array, Array, list[int], float]]:
    """Gradients and residuals of every length, ordinary ones and awkward ones, anywhere in memory."""
    rng = np.random.default_rng(seed)
    for length, make in itertools.product(LENGTHS, (values_of, sample, random_bits)):
        if make is not values_of and length > 5000:
            continue
        offsets = rng.integers(0, LINE, 3).tolist() if rng.random() < 0.7 else [0, 0, 0]
        yield make(dtype, length, rng), make("float32", length, rng), offsets, rng.choice([1.0, 2.0**-10, 8.0])


@pytest.mark.parametrize("dtype", CASTABLE)
def test_what_goes_to_the_residual_leaves_the_gradient(dtype: str) -> None:
    """It moves to the other buffer, times the momentum; the gradient is zero, and the norm that of what moved."""
    factors = itertools.cycle([1.0, 0.9, 0.0])
    for gradient, residual, offsets, scale in cases(dtype, 1):
        for before, keep in itertools.product((residual, None), (True, False)):
            check_update_residual(gradient, dtype, before, keep, scale, next(factors), offsets)


@pytest.mark.parametrize("dtype", CASTABLE)
def test_what_is_sent_is_the_gradient_and_the_residual(dtype: str) -> None:
    """Rounded once, to the gradient's own element type, at the gradient's own scale."""
    for gradient, residual, offsets, scale in cases(dtype, 2):
        for before in (residual, None):
            check_gather(gradient, dtype, before, scale, offsets)


@pytest.mark.parametrize("dtype", CASTABLE)
def test_what_comes_back_is_copied_bit_for_bit(dtype: str) -> None:
    for gradient, _, offsets, scale in cases(dtype, 3):
        check_scatter(gradient, dtype, scale, offsets)


@pytest.mark.parametrize("dtype", CASTABLE)
def test_sums_of_squares(dtype: str) -> None:
    for gradient, _, offsets, scale in cases(dtype, 4):
        check_squares(gradient, dtype, scale, offsets[0])


@settings(max_examples=150)
@given(data=st.data())
def test_chunks_anywhere(data: st.DataObject) -> None:
    """Whatever the length, the alignments, the values and the factors: as NumPy, at every level."""
    dtype = data.draw(st.sampled_from(CASTABLE), label="dtype")
    length = data.draw(st.integers(0, 5000), label="length")
    offsets = data.draw(st.lists(st.integers(0, LINE - 1), min_size=3, max_size=3), label="offsets")
    scale = 2.0 ** data.draw(st.integers(-20, 20), label="scale, as a power of two")
    momentum = data.draw(st.floats(0, 1, width=32), label="momentum")
    make = data.draw(st.sampled_from([values_of, sample, random_bits]), label="values")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32), label="seed"))
    gradient = make(dtype, length, rng)
    residual = make("float32", length, rng) if data.draw(st.booleans(), label="residual") else None
    check_update_residual(gradient, dtype, residual, data.draw(st.booleans(), label="keep"), scale, momentum, offsets)
    check_gather(gradient, dtype, residual, scale, offsets)
    check_scatter(gradient, dtype, scale, offsets)
    check_squares(gradient, dtype, scale, offsets[0])


@pytest.mark.parametrize("count", [1, 64, 2048, 2049, 32768])
def test_norms_of_integers_are_exact(count: int) -> None:
    """Small integers add up exactly in any order, so the norm is NumPy's own."""
    values = np.random.default_rng(5).integers(-8, 9, count).astype(np.float32)
    for dtype in CASTABLE:
        source, target = Guarded(narrow(values, dtype)), Guarded(narrow(values, dtype))
        for level in LEVELS:
            assert compute.scatter(level, target.address, dtype, source.address, count) == np.abs(values).sum()
            assert compute.sum_of_squares(level, source.address, dtype, count) == (values * values).sum()


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", CASTABLE)
def test_one_bad_element_anywhere_shows_in_every_sum(dtype: str, bad: float) -> None:
    """At the first place and the last, in a whole row and in the rest of one, of the gradient and of the residual."""
    length = 2 * BLOCK + 77
    for place, level in itertools.product([0, 63, 64, BLOCK - 1, BLOCK, 2 * BLOCK, length - 1], LEVELS):
        ordinary, spoilt = np.ones(length, np.float32), np.ones(length, np.float32)
        spoilt[place] = bad
        for gradient, residual in ((spoilt, ordinary), (ordinary, spoilt)):
            source, before = Guarded(narrow(gradient, dtype)), Guarded(residual)
            buffer = Guarded(source.values)
            sums = [compute.gather(level, source.address, dtype, before.address, buffer.address, length)]
            sums.append(compute.update_residual(level, source.address, dtype, before.address, 0, length))
            if residual is ordinary:
                source = Guarded(narrow(gradient, dtype))
                sums.append(compute.scatter(level, buffer.address, dtype, source.address, length))
                sums.append(compute.sum_of_squares(level, source.address, dtype, length))
            assert not any(math.isfinite(found) for found in sums), (place, level, sums)


def test_a_block_beyond_float32_has_no_finite_norm() -> None:
    """Each element is finite and their sum in float64 would be; over blocks it is added up in float64."""
    for level in LEVELS:
        large = Guarded(np.full(BLOCK, 1e36, np.float32))
        assert compute.update_residual(level, large.address, "float32", 0, 0, BLOCK) == math.inf
        blocks = Guarded(np.full(16 * BLOCK, 1e35, np.float32))
        assert 3e39 < compute.update_residual(level, blocks.address, "float32", 0, 0, 16 * BLOCK) < math.inf


@pytest.mark.parametrize("dtype", CASTABLE)
def test_subnormal_numbers_are_not_lost(dtype: str) -> None:
    """The smallest gradients stay in the residual as they are, and count."""
    smallest = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149}[dtype]
    count = BLOCK + 33
    for level in LEVELS:
        gradient = Guarded(narrow(np.full(count, smallest, np.float32), dtype))
        after = Guarded(np.zeros(count, np.float32))
        norm = compute.update_residual(level, gradient.address, dtype, 0, after.address, count)
        assert norm == count * smallest
        assert (after.values == np.float32(smallest)).all()


def test_nothing_is_lost_over_iterations() -> None:
    """With momentum 1, what was sent and what is still residual are what was put in, element for element."""
    rng = np.random.default_rng(6)
    count = 3 * BLOCK + 5
    for dtype, level in itertools.product(CASTABLE, LEVELS):
        put_in, sent = np.zeros(count), np.zeros(count)
        residual = [Guarded(np.zeros(count, np.float32)), Guarded(np.zeros(count, np.float32))]
        for iteration in range(6):
            values = rng.integers(-9, 10, count).astype(np.float32)
            put_in += values
            gradient = Guarded(narrow(values, dtype))
            if iteration % 3 == 2:
                buffer = Guarded(np.zeros_like(gradient.values))
                compute.gather(level, gradient.address, dtype, residual[0].address, buffer.address, count)
                sent += widen(buffer.values, dtype)
                residual[0].values[:] = 0
            else:
                addresses = gradient.address, dtype, residual[0].address, residual[1].address
                compute.update_residual(level, *addresses, count, scale=1.0, momentum=1.0)
                residual.reverse()
        assert (sent + residual[0].values == put_in).all()


def test_chunk_kernels_refuse_wrong_use() -> None:
    """Other element types, and numbers that make no sense, are refused in a sentence."""
    calls: list[Callable[[str], Any]] = [
        lambda dtype: compute.update_residual("baseline", 0, dtype, 0, 0, 0),
        lambda dtype: compute.gather("baseline", 0, dtype, 0, 0, 0),
        lambda dtype: compute.scatter("baseline", 0, dtype, 0, 0),
        lambda dtype: compute.sum_of_squares("baseline", 0, dtype, 0),
        lambda dtype: compute.momentum_step("baseline", 0, 0, dtype, 0, 0),
    ]
    for call, dtype in itertools.product(calls, ("float64", "int32")):
        with pytest.raises(TypeError, match=rf"float16, bfloat16 (or|and) float32, not {dtype}"):
            call(dtype)
    for dtype in ("float32", "int8"):
        with pytest.raises(TypeError, match=f"a copy of the weights is float16 or bfloat16, not {dtype}"):
            compute.momentum_step("baseline", 0, 0, "float32", 0, 0, parameter=64, parameter_dtype=dtype)
    for scale in (3.0, 0.0, -2.0, math.inf, math.nan, 2.0**-149):
        with pytest.raises(ValueError, match="must be a power of two"):
            compute.gather("baseline", 0, "float32", 0, 0, 0, scale)
    for momentum in (math.inf, math.nan):
        with pytest.raises(ValueError, match="must be finite"):
            compute.update_residual("baseline", 0, "float32", 0, 0, 0, 1.0, momentum)
    for level in LEVELS:
        assert [call("float32") for call in calls] == [0.0, 0.0, 0.0, 0.0, None]
        assert compute.gather(level, 0, "float16", 0, 0, 0, 2.0**126) == 0.0


# ---- the step of momentum SGD ----------------------------------------------------------------------------------------


def check_step(
    weight: Array,
    gradient: Array,
    dtype: str,
    momentum: Array | None,
    copy: str | None,
    rates: dict[str, float],
    offsets: list[int],
) -> None:
    """One step at all levels."""
    with np.errstate(all="ignore"):
        expected_weight, expected_momentum = stepped(weight, gradient, dtype, momentum, rates)
    for level in LEVELS:
        at = Guarded(weight, offsets[0] * 4 % LINE)
        source = Guarded(gradient, offsets[1] * gradient.itemsize % LINE)
        velocity = placed(momentum, offsets[2])
        parameter = placed(np.ones(len(weight), STORAGE[copy]), offsets[3]) if copy else None
        compute.momentum_step(
            level,
            at.address,
            source.address,
            dtype,
            address(velocity),
            len(weight),
            parameter=address(parameter),
            parameter_dtype=copy or "float16",
            **rates,
        )
        at.check_guards()
        check_same(at.values, expected_weight)
        check_untouched(source, gradient)
        if velocity is not None and expected_momentum is not None:
            velocity.check_guards()
            check_same(velocity.values, expected_momentum)
        if parameter is not None and copy:
            parameter.check_guards()
            check_same(parameter.values, narrow(expected_weight, copy))


def rates_of(scale: float, decay: float, factor: float, inner: float, outer: float) -> dict[str, float]:
    """The numbers of a step by their names."""
    return {
        "gradient_scale": scale,
        "weight_decay": decay,
        "factor": factor,
        "inner_rate": inner,
        "outer_rate": outer,
    }


RATES = [
    rates_of(1.0, 0.0, 0.9, 0.1, 1.0),
    rates_of(1.0, 5e-4, 0.9, 1.0, 0.1),
    rates_of(2.0**-12, 1e-2, 0.95, 0.03, 1.0),
    rates_of(1 / 3, 0.0, 0.0, 1.0, 0.7),
]


@pytest.mark.parametrize("copy", [None, *SHORT])
@pytest.mark.parametrize("dtype", CASTABLE)
def test_steps_at_every_length(dtype: str, copy: str | None) -> None:
    """With and without momentum, with ordinary values and with infinities, NaN and subnormal numbers among them."""
    rng = np.random.default_rng(CASTABLE.index(dtype))
    rates = itertools.cycle(RATES)
    for length, make in itertools.product([*range(36), 63, 64, 65, 127, 257, PRIME], (values_of, sample, random_bits)):
        weight, momentum = (make("float32", length, rng) for _ in range(2))
        gradient = make(dtype, length, rng)
        offsets = rng.integers(0, LINE, 4).tolist()
        for velocity in (momentum, None):
            check_step(weight, gradient, dtype, velocity, copy, next(rates), offsets)


@settings(max_examples=150)
@given(data=st.data())
def test_steps_anywhere(data: st.DataObject) -> None:
    """Whatever the length, the alignments and the rates: as NumPy, at every level."""
    dtype = data.draw(st.sampled_from(CASTABLE), label="dtype")
    copy = data.draw(st.sampled_from([None, *SHORT]), label="copy")
    length = data.draw(st.integers(0, 600), label="length")
    offsets = data.draw(st.lists(st.integers(0, LINE - 1), min_size=4, max_size=4), label="offsets")
    number = st.floats(-10, 10, width=32)
    rates = rates_of(*data.draw(st.tuples(number, number, number, number, number), label="rates"))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32), label="seed"))
    weight, momentum = sample("float32", length, rng), sample("float32", length, rng)
    velocity = momentum if data.draw(st.booleans(), label="momentum") else None
    check_step(weight, sample(dtype, length, rng), dtype, velocity, copy, rates, offsets)


@pytest.mark.parametrize(("factor", "decay", "inside"), list(itertools.product([0.0, 0.9], [0.0, 1e-2], [False, True])))
def test_steps_are_those_of_torch(factor: float, decay: float, inside: bool) -> None:
    """PyTorch's SGD, which keeps the rate outside of the momentum; inside it is the same while the rate is constant."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(7)
    count, rate = 777, 0.05
    start = rng.normal(0, 1, count).astype(np.float32)
    theirs = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = torch.optim.SGD([theirs], lr=rate, momentum=factor, weight_decay=decay)
    ours = {level: (Guarded(start), Guarded(np.zeros(count, np.float32))) for level in LEVELS}
    for _ in range(20):
        gradient = rng.normal(0, 1, count).astype(np.float32)
        theirs.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
        for level, (weight, momentum) in ours.items():
            inner, outer = (rate, 1.0) if inside else (1.0, rate)
            compute.momentum_step(
                level,
                weight.address,
                Guarded(gradient).address,
                "float32",
                momentum.address if factor else 0,
                count,
                **rates_of(1.0, decay, factor, inner, outer),
            )
    for weight, _ in ours.values():
        np.testing.assert_allclose(weight.values, theirs.detach().numpy(), rtol=1e-5, atol=2e-6)
