"""Ranks that make different calls, or have different settings, are told who did what, and can go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_different_calls_and_settings(mpirun: Callable[..., Any], ranks: int) -> None:
    mpirun(ranks, "mismatch")
