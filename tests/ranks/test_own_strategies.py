"""Strategies of a user's own, and the examples of the documentation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


@pytest.mark.checks("own_strategies")
@pytest.mark.parametrize("ranks", [*(pytest.param(ranks, marks=pytest.mark.thorough) for ranks in (1, 2)), 3])
def test_own_strategies(check: Callable[..., Any], ranks: int) -> None:
    check(ranks, timeout=100)


@pytest.mark.parametrize("name", ["sign_sgd", "top_k", "local_sgd"])
def test_an_example_is_short_and_knows_no_adapter(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40
    assert "torch" not in text
