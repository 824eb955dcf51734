"""The sparse gradient pool, the optimizers on it, and the choice of chunks."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradientflow as gf
from gradientflow import _core
from gradientflow.errors import ArgumentError, ArgumentTypeError

core: Any = _core

NORMS = st.lists(st.one_of(st.sampled_from([0.0, 1.0, 2.0]), st.floats(0, 1e30)), max_size=60)


@pytest.mark.checks("sparse_pool")
@pytest.mark.parametrize(
    "ranks",
    [
        *(pytest.param(ranks, marks=pytest.mark.thorough) for ranks in (1, 2)),
        3,
        *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (4, 5)),
    ],
)
def test_the_sparse_pool(check: Callable[..., Any], ranks: int) -> None:
    check(ranks)


@given(norms=NORMS, count=st.integers(0, 70))
def test_the_largest_norms_are_chosen_and_of_equal_ones_the_first(norms: list[float], count: int) -> None:
    first = sorted(range(len(norms)), key=lambda chunk: (-norms[chunk], chunk))[:count]
    assert [i for i, is_important in enumerate(core.choose_important(norms, count)) if is_important] == sorted(first)


@given(density=st.floats(0, 1, exclude_min=True), chunks=st.integers(0, 10**6))
def test_a_density_gives_the_next_whole_number(density: float, chunks: int) -> None:
    count = core.important_count(density, chunks)
    assert count <= chunks
    if chunks:
        exact = math.ceil(Fraction(density) * chunks)
        assert max(1, exact - 1) <= count <= max(1, exact)
        assert count == exact or Fraction(density) * chunks - count < Fraction(1, 10**8)


def test_a_rounding_error_is_not_another_chunk() -> None:
    assert core.important_count(1 - 0.85, 20) == 3
    assert core.important_count(0.15, 20) == 3
    assert core.important_count(1e-12, 20) == 1


def test_learning_rates() -> None:
    assert gf.optimizers.scaled_rate(0.1, 8192) == pytest.approx(3.2)
    warmup = gf.optimizers.LinearWarmup(1.0, 4, start=0.2)
    assert [warmup(step) for step in range(5)] == pytest.approx([0.4, 0.6, 0.8, 1.0, 1.0])
    assert gf.optimizers.LinearWarmup(0.5, 0)(0) == 0.5
    with pytest.raises(ArgumentError, match="peak"):
        gf.optimizers.LinearWarmup(-1.0, 4)
    with pytest.raises(ArgumentError, match="sample"):
        gf.optimizers.scaled_rate(0.1, 0)


def test_the_loss_scale() -> None:
    scale = gf.optimizers.LossScale(8.0, growth_interval=2)
    for overflowed, value in ((False, 8), (False, 16), (True, 8), (False, 8), (True, 4), (False, 4), (False, 8)):
        scale.update(overflowed)
        assert scale.value == value
    assert scale.overflows == 2
    other = gf.optimizers.LossScale.of("dynamic")
    assert other is not None
    other.load_state_dict(scale.state_dict())
    assert (other.value, other.overflows) == (8, 2)
    static = gf.optimizers.LossScale.of(128)
    assert static is not None
    static.update(True)
    assert (static.value, static.overflows) == (128, 1)
    assert gf.optimizers.LossScale.of(None) is None
    for wrong in (3.0, 0.0, -2.0, math.inf, 2.0**30, "big"):
        with pytest.raises(ArgumentError):
            gf.optimizers.LossScale.of(wrong)
    with pytest.raises(ArgumentTypeError):
        gf.optimizers.LossScale.of([2.0])  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="growth_interval"):
        gf.optimizers.LossScale(growth_interval=0)
