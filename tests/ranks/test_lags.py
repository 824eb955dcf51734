"""LAGS, and the methods that it is compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.checks("lags")
@pytest.mark.parametrize("ranks", [1, 2, 3, pytest.param(4, marks=pytest.mark.slow), 5])
def test_lags(check: Callable[..., Any], ranks: int) -> None:
    check(ranks, timeout=200)
