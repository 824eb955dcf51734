"""What strategies promise: one check for each promise, over the table of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from table_of_strategies import PROMISES

from gradientflow.strategies import parse_strategies


@pytest.mark.checks("promises")
@pytest.mark.parametrize(
    "ranks", [pytest.param(1, marks=pytest.mark.thorough), pytest.param(2, marks=pytest.mark.slow), 3]
)
def test_what_strategies_promise(check: Callable[..., Any], ranks: int) -> None:
    check(ranks, timeout=150)


def test_the_table_has_all_strategies() -> None:
    assert {each.name for each in PROMISES if not each.is_own} == {each.name for each in parse_strategies("all")}
