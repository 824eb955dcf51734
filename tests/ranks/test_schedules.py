"""The model's messages and bytes are those that ranks count: of every algorithm, on clusters of all shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]


@pytest.mark.parametrize(
    ("ranks", "node_size"),
    [
        (3, 1),
        *(pytest.param(*each, marks=pytest.mark.thorough) for each in ((2, 1), (5, 2))),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((4, 1), (6, 3), (7, 2), (8, 4))),
    ],
)
def test_every_rank_sends_what_the_model_says(mpirun: Run, ranks: int, node_size: int) -> None:
    mpirun(ranks, "schedules", env={"GRADIENTFLOW_NODE_SIZE": str(node_size), "GRADIENTFLOW_TRANSPORT": "tcp"})


def test_the_same_over_mpi(mpirun: Run) -> None:
    mpirun(3, "schedules", env={"GRADIENTFLOW_NODE_SIZE": "1", "GRADIENTFLOW_TRANSPORT": "mpi"})


@pytest.mark.slow
def test_more_nodes_than_agree_directly(mpirun: Run) -> None:
    mpirun(9, "schedules", env={"GRADIENTFLOW_NODE_SIZE": "1", "GRADIENTFLOW_TRANSPORT": "tcp"}, timeout=120)
