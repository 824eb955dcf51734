"""Checkpoints that are loaded into another strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")


@pytest.mark.checks("moves")
def test_checkpoints_move_between_strategies(check: Callable[..., Any]) -> None:
    check(2, timeout=200)


@pytest.mark.checks("moves", "check_a_step_of_adam")
def test_one_rank(check: Callable[..., Any]) -> None:
    check(1, timeout=60)
