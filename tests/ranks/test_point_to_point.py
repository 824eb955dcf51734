"""Tensors from one rank to another, and communicators of parts of the ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]


@pytest.mark.checks("point_to_point")
@pytest.mark.parametrize("ranks", [2, 3, pytest.param(4, marks=pytest.mark.thorough)])
def test_send_and_receive(check: Run, ranks: int) -> None:
    check(ranks)


@pytest.mark.checks("parts")
@pytest.mark.parametrize("ranks", [1, 2, 4, pytest.param(5, marks=pytest.mark.thorough)])
def test_parts_of_the_ranks(check: Run, ranks: int) -> None:
    check(ranks)
