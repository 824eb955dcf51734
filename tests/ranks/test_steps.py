"""Steps of optimizers on averaged gradients, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.checks("steps")
@pytest.mark.parametrize(
    ("ranks", "progress"),
    [
        *(pytest.param(*each, marks=pytest.mark.thorough) for each in ((1, "auto"), (2, "thread"))),
        (3, "caller"),
        pytest.param(9, "auto", marks=pytest.mark.slow),
    ],
)
def test_steps_need_averaged_gradients(check: Callable[..., Any], ranks: int, progress: str) -> None:
    check(ranks, env={"GRADIENTFLOW_PROGRESS": progress})
