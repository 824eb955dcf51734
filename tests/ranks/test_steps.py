"""Steps of optimizers on averaged gradients, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.checks("steps")
@pytest.mark.parametrize("ranks", [1, 2, 3, 9])
def test_steps_need_averaged_gradients(check: Callable[..., Any], ranks: int) -> None:
    check(ranks)
