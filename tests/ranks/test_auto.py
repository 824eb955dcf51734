"""The strategy that chooses among those without loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.checks("auto")
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.thorough), 3])
def test_auto(check: Callable[..., Any], ranks: int) -> None:
    pytest.importorskip("torch")
    check(ranks, timeout=100)
