"""Gradients that are infinite or NaN on one rank, under every strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.checks("not_finite")
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_not_finite(check: Callable[..., Any], ranks: int) -> None:
    check(ranks, timeout=300)
