"""Ranks that make different calls, or have different settings, are told who did what, and can go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.checks("mismatch")
@pytest.mark.parametrize(
    ("ranks", "odd_one"), [(2, 1), (3, 0), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((4, 3), (5, 2)))]
)
def test_different_calls_and_settings(check: Callable[..., Any], ranks: int, odd_one: int) -> None:
    """Inside a node, between nodes of one rank, and between nodes of two, of which the last may have one."""
    check(ranks, odd_one)


@pytest.mark.checks("doors")
@pytest.mark.parametrize(
    ("ranks", "node_size"),
    [(1, 0), (3, 0), (3, 1), *(pytest.param(*each, marks=pytest.mark.thorough) for each in ((2, 0), (2, 1), (4, 2)))],
)
def test_python_and_c_say_the_same(check: Callable[..., Any], ranks: int, node_size: int) -> None:
    check(ranks, env={"GRADIENTFLOW_NODE_SIZE": str(node_size)})
