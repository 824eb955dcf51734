"""The top-k gradient pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.checks("top_k_pool")
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_the_top_k_pool(check: Callable[..., Any], ranks: int) -> None:
    check(ranks)
