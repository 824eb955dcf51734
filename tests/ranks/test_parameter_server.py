"""The parameter server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.checks("parameter_server")
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_the_parameter_server(check: Callable[..., Any], ranks: int) -> None:
    check(ranks, timeout=100)


@pytest.mark.parametrize("recover", [True, "ulfm"])
@pytest.mark.parametrize("how", ["bsp", "asp"])
def test_a_rank_that_dies_is_named(mpirun: Callable[..., Any], how: str, recover: bool | str) -> None:
    finished = mpirun(3, "parameter_server", how, recover=recover, check=False)
    for rank in (0, 2):
        assert f"rank {rank} knows" in finished.stdout, finished.stdout + finished.stderr
