"""Tensors from one rank to another, and communicators of parts of the ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]


@pytest.mark.checks("point_to_point")
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_send_and_receive(check: Run, ranks: int) -> None:
    check(ranks)


@pytest.mark.checks("parts")
@pytest.mark.parametrize("ranks", [1, 2, 4, 5])
def test_parts_of_the_ranks(check: Run, ranks: int) -> None:
    check(ranks)
