"""The training scripts of the documentation that need nothing but NumPy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


def test_sparse_training_with_numpy(mpirun: Callable[..., Any]) -> None:
    finished = mpirun(2, "execute", sys.executable, EXAMPLES / "train_sparse_numpy.py")
    assert float(finished.line("accuracy")) > 0.95
    assert "sent 9 of 42 chunks" in finished.stdout
