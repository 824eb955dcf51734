"""Ranks that make different calls, or have different settings, are told who did what, and can go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.checks("mismatch")
@pytest.mark.parametrize(("ranks", "odd_one"), [(2, 1), (3, 2), (4, 0), (5, 2)])
def test_different_calls_and_settings(check: Callable[..., Any], ranks: int, odd_one: int) -> None:
    """Inside a node, between nodes of one rank, and between nodes of two, of which the last may have one."""
    check(ranks, odd_one)
