"""Strategies, mixed precision and LARS through PyTorch's door."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]

pytest.importorskip("torch")


@pytest.mark.checks("torch_strategies")
@pytest.mark.parametrize(
    ("ranks", "progress"),
    [
        *(pytest.param(*each, marks=pytest.mark.thorough) for each in ((1, "auto"), (2, "thread"))),
        (3, "caller"),
        pytest.param(4, "auto", marks=pytest.mark.slow),
    ],
)
def test_the_core_makes_the_step(check: Run, ranks: int, progress: str) -> None:
    """In one node, between nodes, and between nodes of two ranks."""
    check(ranks, env={"GRADIENTFLOW_PROGRESS": progress}, timeout=100)


@pytest.mark.checks("torch_served")
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.thorough), 3])
def test_strategies_on_a_parameter_server(check: Run, ranks: int) -> None:
    check(ranks, timeout=150)


@pytest.mark.checks("torch_local")
@pytest.mark.parametrize(
    ("ranks", "progress"),
    [*(pytest.param(*each, marks=pytest.mark.thorough) for each in ((1, "auto"), (2, "caller"))), (2, "thread")],
)
def test_strategies_with_weights_of_each_rank(check: Run, ranks: int, progress: str) -> None:
    check(ranks, env={"GRADIENTFLOW_PROGRESS": progress}, timeout=100)
