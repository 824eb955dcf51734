"""Asynchronous calls, several communicators at once, several Python threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_asynchronous_calls_communicators_and_threads(mpirun: Callable[..., Any], ranks: int) -> None:
    mpirun(ranks, "async_calls", timeout=100)
