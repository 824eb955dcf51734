"""Timelines: what the ranks write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.checks("timeline")
@pytest.mark.parametrize("ranks", [1, 3])
def test_timelines(check: Callable[..., Any], ranks: int, tmp_path: Path) -> None:
    check(ranks, tmp_path)
