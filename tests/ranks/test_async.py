"""Asynchronous calls, several communicators at once, several Python threads; inside a node and between nodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

THOROUGH = [pytest.param(*layout, marks=pytest.mark.thorough) for layout in ((1, 0), (3, 0), (5, 2))]
MORE = [pytest.param(*layout, marks=pytest.mark.slow) for layout in ((2, 0), (2, 1), (4, 0), (4, 1), (4, 2), (5, 3))]


@pytest.mark.checks("async_calls")
@pytest.mark.parametrize(("ranks", "node_size"), [*THOROUGH, (3, 1), *MORE])
def test_asynchronous_calls_communicators_and_threads(check: Callable[..., Any], ranks: int, node_size: int) -> None:
    check(ranks, env={"GRADIENTFLOW_NODE_SIZE": str(node_size), "GRADIENTFLOW_PROGRESS": "thread"}, timeout=100)


@pytest.mark.checks("async_calls")
@pytest.mark.parametrize("ranks", [1, 3, pytest.param(2, marks=pytest.mark.slow)])
def test_asynchronous_calls_in_the_calling_thread(check: Callable[..., Any], ranks: int) -> None:
    check(ranks, env={"GRADIENTFLOW_PROGRESS": "caller"}, timeout=100)


@pytest.mark.checks("forgotten")
@pytest.mark.parametrize("node_size", [0, 1])
def test_calls_that_fail_while_nobody_waits_are_told(check: Callable[..., Any], node_size: int) -> None:
    check(2, env={"GRADIENTFLOW_NODE_SIZE": str(node_size)}, timeout=100)


def test_calls_that_have_failed_are_told_at_exit(mpirun: Callable[..., Any]) -> None:
    job = mpirun(2, "forgotten", "exit")
    assert job.stderr.count("an asynchronous call has failed, and nobody has waited") == 2 * 2, job.output


@pytest.mark.checks("prepared_calls")
@pytest.mark.parametrize(
    ("ranks", "node_size"),
    [
        *((1, 0), (2, 0), (3, 0), (4, 2)),
        pytest.param(3, 1, marks=pytest.mark.thorough),
        *(pytest.param(*layout, marks=pytest.mark.slow) for layout in ((5, 0), (2, 1))),
    ],
)
def test_prepared_calls(check: Callable[..., Any], ranks: int, node_size: int, tmp_path: Path) -> None:
    env = {"GRADIENTFLOW_NODE_SIZE": str(node_size), "GRADIENTFLOW_DUMP": str(tmp_path)}
    check(ranks, env=env, timeout=100)
