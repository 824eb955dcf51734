"""Checkpoints by PyTorch's functions that save by name, `torch.distributed.checkpoint` among them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

pytest.importorskip("torch")


@pytest.mark.checks("torch_by_name", without=["check_fewer_ranks", "check_more_ranks"])
def test_the_whole_state_is_saved_by_name(check: Run, tmp_path: Path) -> None:
    check(2, tmp_path, timeout=100)


@pytest.mark.checks("torch_by_name", "check_fewer_ranks", "check_more_ranks")
def test_other_numbers_of_ranks_load_it(check: Run, tmp_path: Path) -> None:
    check(3, tmp_path, timeout=60)
