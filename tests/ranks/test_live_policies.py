"""Policies of a parameter server whose workers are not equally fast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.checks("live_policies")
@pytest.mark.parametrize("ranks", [*(pytest.param(ranks, marks=pytest.mark.thorough) for ranks in (1, 4)), 3])
def test_policies_decide_on_a_server(check: Callable[..., Any], ranks: int) -> None:
    check(ranks, timeout=100)
