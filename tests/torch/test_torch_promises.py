"""What strategies promise, through PyTorch's door: one check for each promise, over the table of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")


@pytest.mark.checks("torch_promises")
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_what_strategies_promise(check: Callable[..., Any], ranks: int) -> None:
    check(ranks, timeout=150)
