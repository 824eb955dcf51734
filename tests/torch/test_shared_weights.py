"""Weights that the ranks of a node share: `DistributedOptimizer(share="node")`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]

pytest.importorskip("torch")


@pytest.mark.checks("torch_shared")
@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param(1, marks=pytest.mark.thorough),
        3,
        *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (2, 5)),
    ],
)
def test_training_is_that_without_sharing(check: Run, ranks: int) -> None:
    """In one node, between nodes of one rank, and between nodes of two and of one."""
    check(ranks, timeout=150)


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.thorough), 3])
def test_a_death_in_a_step_is_noticed_and_a_checkpoint_goes_on(mpirun: Run, ranks: int) -> None:
    finished = mpirun(ranks, "torch_shared", "kill", recover=True, check=False)
    survived = {int(rank) for rank in re.findall(r"^survived (\d+)$", finished.stdout, re.MULTILINE)}
    assert survived == set(range(ranks)) - {1}, finished.output
