"""Strategies on a parameter server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.checks("served")
@pytest.mark.parametrize(
    "ranks",
    [
        *(pytest.param(ranks, marks=pytest.mark.thorough) for ranks in (1, 2)),
        3,
        *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (4, 5)),
    ],
)
def test_strategies_on_a_parameter_server(check: Callable[..., Any], ranks: int) -> None:
    check(ranks, timeout=300)
