"""What a worker does to its own weights: as NumPy, bit for bit, at every SIMD level."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_data import CASTABLE, LEVELS, LINE, Array, Guarded, check_same, compute, random_bits, sample
from kernel_references import dc_stepped, glu_stepped, replica_stepped, round_ended

from gradientflow import _core
from gradientflow.errors import ArgumentError, ArgumentTypeError

GLU = ("rate", "gradient_scale", "weight_decay", "alpha", "beta", "global_scale")
REPLICA = ("rate", "gradient_scale", "weight_decay")
DC = ("rate", "gradient_scale", "weight_decay", "lambda_0", "decay", "epsilon")


def drawn(data: st.DataObject) -> tuple[str, int, list[int], Any, np.random.Generator]:
    dtype = data.draw(st.sampled_from(CASTABLE), label="dtype")
    length = data.draw(st.integers(0, 600), label="length")
    offsets = data.draw(st.lists(st.integers(0, LINE // 4 - 1), min_size=4, max_size=4), label="offsets")
    make = data.draw(st.sampled_from([sample, random_bits]), label="values")
    return dtype, length, offsets, make, np.random.default_rng(data.draw(st.integers(0, 2**32), label="seed"))


def check(memory: Guarded, expected: Array) -> None:
    memory.check_guards()
    check_same(memory.values, expected)


@settings(max_examples=150)
@given(data=st.data())
def test_glu_anywhere(data: st.DataObject) -> None:
    """Whatever the length, the alignments, the values and the rates."""
    dtype, length, offsets, make, rng = drawn(data)
    number = st.floats(-10, 10, width=32)
    rates = {name: data.draw(number, label=name) for name in GLU}
    refreshes = data.draw(st.booleans(), label="refreshes")
    weight, pre_weight, gradient = make("float32", length, rng), make("float32", length, rng), make(dtype, length, rng)
    with np.errstate(all="ignore"):
        expected = glu_stepped(weight, pre_weight, gradient, dtype, refreshes, rates)
    for level in LEVELS:
        at, before = Guarded(weight, 4 * offsets[0]), Guarded(pre_weight, 4 * offsets[1])
        source = Guarded(gradient, offsets[2] * gradient.itemsize)
        compute.glu_step(level, at.address, before.address, source.address, dtype, length, refreshes, **rates)
        check(at, expected[0])
        check(before, expected[1])
        check(source, gradient)


@settings(max_examples=150)
@given(data=st.data())
def test_delay_compensation_anywhere(data: st.DataObject) -> None:
    """Whatever the length, the alignments, the values and the rates, with and without weights of the gradient's own."""
    dtype, length, offsets, make, rng = drawn(data)
    rates = {name: data.draw(st.floats(0, 10, width=32), label=name) for name in DC}
    weight, mean, gradient = make("float32", length, rng), make("float32", length, rng), make(dtype, length, rng)
    old = make("float32", length, rng) if data.draw(st.booleans(), label="before") else None
    with np.errstate(all="ignore"):
        expected = dc_stepped(weight, mean, old, gradient, dtype, rates)
    for level in LEVELS:
        at, squares = Guarded(weight, 4 * offsets[0]), Guarded(mean, 4 * offsets[1])
        before = None if old is None else Guarded(old, 4 * offsets[3])
        source = Guarded(gradient, offsets[2] * gradient.itemsize)
        address = 0 if before is None else before.address
        compute.dc_step(level, at.address, squares.address, address, source.address, dtype, length, **rates)
        check(at, expected[0])
        check(squares, expected[1])
        check(source, gradient)


@settings(max_examples=150)
@given(data=st.data())
def test_steps_of_a_replica_and_ends_of_rounds_anywhere(data: st.DataObject) -> None:
    """Whatever the length, the alignments, the values and the rates, with and without each of what may be left out."""
    dtype, length, offsets, make, rng = drawn(data)
    rates = {name: data.draw(st.floats(-10, 10, width=32), label=name) for name in REPLICA}
    keeps, has_mean, has_gradient = (data.draw(st.booleans(), label=name) for name in ("keeps", "mean", "gradient"))
    weight, sums, mean, kept = (make("float32", length, rng) for _ in range(4))
    gradient = make(dtype, length, rng)
    with np.errstate(all="ignore"):
        stepped = replica_stepped(weight, sums, gradient, dtype, rates)
        ended = round_ended(
            weight,
            kept if keeps else None,
            mean if has_mean else None,
            sums,
            gradient if has_gradient else None,
            dtype,
            rates,
        )
    for level in LEVELS:
        source = Guarded(gradient, offsets[2] * gradient.itemsize)
        at, total, before = (Guarded(each, 4 * offsets[i]) for i, each in enumerate((weight, sums, kept)))
        address = before.address if keeps else 0
        compute.replica_step(level, at.address, address, total.address, source.address, dtype, length, **rates)
        check(at, stepped[0])
        check(total, stepped[1])
        check(before, weight if keeps else kept)
        check(source, gradient)
        at, total, before, means = (Guarded(each, 4 * offsets[i]) for i, each in enumerate((weight, sums, kept, mean)))
        addresses = before.address if keeps else 0, means.address if has_mean else 0, total.address
        place = source.address if has_gradient else 0
        compute.round_step(level, at.address, *addresses, place, dtype, length, **rates)
        check(at, ended[0])
        check(total, ended[1])
        check(before, kept)
        check(means, np.zeros_like(mean) if has_mean else mean)
        check(source, gradient)


def test_the_module_that_strategies_call() -> None:
    """Plain SGD is the step of the optimizers without momentum; what does not fit is refused."""
    rng = np.random.default_rng(1)
    weight, gradient = (rng.normal(size=100).astype(np.float32) for _ in range(2))
    address = gradient.ctypes.data
    expected = weight - np.float32(0.1) * (gradient * np.float32(0.5) + np.float32(0.01) * weight)
    _core.local_updates.sgd_step(weight, address, "float32", 0.1, 0.5, 0.01)
    check_same(weight, expected)
    before, pre_weight = weight.copy(), np.float32(2) * weight
    expected, _ = glu_stepped(weight, pre_weight, gradient, "float32", True, dict.fromkeys(GLU, 0.5))
    _core.local_updates.glu_step(weight, pre_weight, address, "float32", True, *[0.5] * 6)
    check_same(weight, expected)
    check_same(pre_weight, before)
    means = np.ones(100, np.float32)
    expected, mean = dc_stepped(weight, means, before, gradient, "float32", dict.fromkeys(DC, 0.5))
    _core.local_updates.dc_step(weight, means, before, address, "float32", *[0.5] * 6)
    check_same(weight, expected)
    check_same(means, mean)
    gradient[7] = np.inf
    assert _core.local_updates.count_nonfinite(address, "float32", 100) == 1
    with pytest.raises(ArgumentError, match="mean squares are 3 for 100 weights"):
        _core.local_updates.dc_step(weight, np.zeros(3, np.float32), None, address, "float32", *[0.5] * 6)
    with pytest.raises(ArgumentTypeError, match="weights are float32 in memory of the host"):
        _core.local_updates.sgd_step(np.zeros(3), address, "float32", 0.1, 1.0, 0.0)
    with pytest.raises(ArgumentTypeError, match="float16, bfloat16 or float32"):
        _core.local_updates.sgd_step(weight, address, "float64", 0.1, 1.0, 0.0)
