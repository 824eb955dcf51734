"""The parameter server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.checks("parameter_server")
@pytest.mark.parametrize(
    "ranks",
    [
        *(pytest.param(ranks, marks=pytest.mark.thorough) for ranks in (1, 2)),
        3,
        *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (4, 5)),
    ],
)
def test_the_parameter_server(check: Callable[..., Any], ranks: int) -> None:
    check(ranks, timeout=100)


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("recover", [True, "ulfm"])
@pytest.mark.parametrize("how", ["bsp", "asp"])
def test_a_rank_that_dies_is_named(mpirun: Callable[..., Any], how: str, recover: bool | str) -> None:
    finished = mpirun(3, "parameter_server", how, recover=recover, check=False)
    for rank in (0, 2):
        assert f"rank {rank} knows" in finished.stdout, finished.stdout + finished.stderr


@pytest.mark.parametrize(
    ("ranks", "servers", "node_size"),
    [(3, 1, 0), (4, 2, 1), *(pytest.param(*each, marks=pytest.mark.thorough) for each in ((5, 2, 0), (5, 1, 2)))],
)
@pytest.mark.parametrize("how", ["work", "unknown", "left"])
def test_ranks_that_serve_only(mpirun: Callable[..., Any], ranks: int, servers: int, node_size: int, how: str) -> None:
    finished = mpirun(ranks, "server_ranks", servers, how, env={"GRADIENTFLOW_NODE_SIZE": str(node_size)})
    assert finished.stdout.count("has served") == servers, finished.stdout + finished.stderr


@pytest.mark.parametrize("recover", [True, "ulfm"])
@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("server-dies", ["rank 0 knows", "rank 1 knows", "rank 3 has served"]),
        ("worker-dies", ["rank 0 knows", "rank 2 knows", "rank 3 knows"]),
    ],
)
def test_a_death_beside_ranks_that_serve_is_named(
    mpirun: Callable[..., Any], how: str, told: list[str], recover: bool | str
) -> None:
    finished = mpirun(4, "server_ranks", 2, how, recover=recover, check=False)
    for words in told:
        assert words in finished.stdout, finished.stdout + finished.stderr


@pytest.mark.parametrize(("ranks", "node_size"), [(8, 0), (6, 1), pytest.param(64, 0, marks=pytest.mark.slow)])
def test_a_worker_that_stands_still_holds_nobody_up(mpirun: Callable[..., Any], ranks: int, node_size: int) -> None:
    mpirun(ranks, "parameter_server", "stall", node_size, timeout=100 if ranks < 64 else 280)


def test_a_system_that_cannot_be_told_to_provide_pages(mpirun: Callable[..., Any]) -> None:
    mpirun(3, "parameter_server", "old-system")
