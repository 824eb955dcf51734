"""The gradient pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.checks("pool")
@pytest.mark.parametrize(
    "ranks",
    [
        *(pytest.param(ranks, marks=pytest.mark.thorough) for ranks in (1, 2)),
        3,
        pytest.param(5, marks=pytest.mark.slow),
    ],
)
def test_the_gradient_pool(check: Callable[..., Any], ranks: int) -> None:
    check(ranks)
