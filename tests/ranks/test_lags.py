"""LAGS, and the methods that it is compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.checks("lags")
@pytest.mark.parametrize(
    ("ranks", "progress"),
    [
        *(pytest.param(*each, marks=pytest.mark.thorough) for each in ((1, "auto"), (2, "thread"))),
        (3, "caller"),
        *(pytest.param(ranks, "auto", marks=pytest.mark.slow) for ranks in (4, 5)),
    ],
)
def test_lags(check: Callable[..., Any], ranks: int, progress: str) -> None:
    check(ranks, env={"GRADIENTFLOW_PROGRESS": progress}, timeout=200)
