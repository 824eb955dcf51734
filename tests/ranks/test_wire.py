"""Values that travel between nodes as float16, bfloat16 or float8_e4m3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.checks("wire")
@pytest.mark.parametrize("ranks", [1, 2, 3, pytest.param(5, marks=pytest.mark.slow)])
def test_values_range_and_counts(check: Callable[..., Any], ranks: int) -> None:
    check(ranks)
