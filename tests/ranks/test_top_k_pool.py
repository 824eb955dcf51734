"""The top-k gradient pool."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradientflow import _core

core: Any = _core


@pytest.mark.checks("top_k_pool")
@pytest.mark.parametrize(
    "ranks",
    [
        *(pytest.param(ranks, marks=pytest.mark.thorough) for ranks in (1, 2)),
        3,
        *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (4, 5)),
    ],
)
def test_the_top_k_pool(check: Callable[..., Any], ranks: int) -> None:
    check(ranks)


@given(ratio=st.floats(1, 1e7), elements=st.integers(0, 2**32 - 1))
def test_a_ratio_gives_the_next_whole_number(ratio: float, elements: int) -> None:
    k, share = core.k_of(elements, ratio), elements / Fraction(ratio)
    exact = math.ceil(share)
    assert k == exact or (k == exact - 1 and share - k < share / 10**9)


def test_a_rounding_error_is_not_another_entry() -> None:
    for thousandths in range(1, 1001):
        for density in (thousandths / 1000, 1 - (1000 - thousandths) / 1000):
            for elements in (1000, 10**6, 4 * 10**9):
                assert core.k_of(elements, 1 / density) == thousandths * elements // 1000
    assert core.k_of(7, 1e7) == 1
