"""PyTorch's optimizers over gradient pools, the broadcasts before training, and the training scripts of the docs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"

pytest.importorskip("torch")


@pytest.mark.checks("torch_optimizer")
@pytest.mark.parametrize(
    "ranks", [pytest.param(1, marks=pytest.mark.thorough), pytest.param(2, marks=pytest.mark.slow), 3]
)
def test_training_is_that_of_one_process(check: Run, ranks: int) -> None:
    """In one node, and between nodes."""
    check(ranks, timeout=100)


@pytest.mark.slow
def test_examples_train(mpirun: Run) -> None:
    """Two ranks: a mean is exact, so both doors of PyTorch go through the same weights."""
    accuracy = {
        name: float(mpirun(2, "execute", sys.executable, EXAMPLES / f"train_{name}.py").line("accuracy"))
        for name in ("torch", "ddp", "numpy", "csc")
    }
    assert min(accuracy.values()) > 0.95
    assert accuracy["torch"] == accuracy["ddp"]
