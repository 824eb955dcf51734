"""Calls with more elements than 32 bits can count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gradientflow import _core

NEEDED_GIB = 8


@pytest.mark.slow
@pytest.mark.parametrize("what", ["node", "ordinary", "between"])
def test_more_than_32_bits_can_count(mpirun: Callable[..., Any], what: str) -> None:
    if (available := _core.memory()[1] / 2**30) < NEEDED_GIB:
        pytest.skip(f"needs {NEEDED_GIB} GiB of memory, {available:.1f} are available")
    mpirun(2, "large", what, timeout=90)
