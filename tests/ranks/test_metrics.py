"""Metrics of trainings on several ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.checks("metrics")
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_metrics(check: Callable[..., Any], ranks: int, tmp_path: Path) -> None:
    check(ranks, tmp_path)
