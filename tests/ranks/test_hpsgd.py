"""HPSGD: training that never waits for the network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.checks("hpsgd")
@pytest.mark.parametrize("ranks", [*(pytest.param(ranks, marks=pytest.mark.thorough) for ranks in (1, 2)), 4])
def test_hpsgd(check: Callable[..., Any], ranks: int) -> None:
    check(ranks, timeout=100)
