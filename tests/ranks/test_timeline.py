"""Timelines: what the ranks write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize("ranks", [1, 3])
def test_timelines(mpirun: Callable[..., Any], ranks: int, tmp_path: Path) -> None:
    mpirun(ranks, "timeline", tmp_path)
