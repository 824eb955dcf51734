"""Steps of optimizers on averaged gradients, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize("ranks", [1, 2, 3, 9])
def test_steps_need_averaged_gradients(mpirun: Callable[..., Any], ranks: int) -> None:
    mpirun(ranks, "steps")
