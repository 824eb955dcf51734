"""Policies of a parameter server whose workers are not equally fast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.checks("live_policies")
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_policies_decide_on_a_server(check: Callable[..., Any], ranks: int) -> None:
    check(ranks, timeout=100)
