"""What moves the messages of jobs of MPI: where ranks have met, and on hosts of netlab."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Start = Callable[..., Any]


def test_on_one_host_nothing_listens(mpirun: Start) -> None:
    mpirun(2, "transports", "one_host")


def test_on_several_hosts(netlab_run: Start) -> None:
    netlab_run(2, 2, "transports", "several_hosts")


def test_hosts_that_cannot_connect_to_each_other(netlab_run: Start) -> None:
    ended = netlab_run(3, 1, "transports", "no_way")
    said = [line for line in ended.stderr.splitlines() if "messages travel over MPI, as TCP is not usable" in line]
    assert len(said) == 1, ended.output
    assert "GRADIENTFLOW_TRANSPORT=mpi" in said[0]


@pytest.mark.parametrize(("function", "timeout"), [("drops", "1"), ("elsewhere_unknown", "20"), ("needs_mpi", "20")])
def test_two_hosts(netlab_run: Start, function: str, timeout: str) -> None:
    netlab_run(2, 1, "transports", function, env={"GRADIENTFLOW_TIMEOUT": timeout})


def test_a_rank_that_fails_alone(mpirun: Start) -> None:
    keeps_no_stacks = "glibc.pthread.stack_cache_size=0"
    mpirun(2, "transports", "splits_alone", env={"GRADIENTFLOW_NODE_SIZE": "1", "GLIBC_TUNABLES": keeps_no_stacks})


def test_thread_levels(netlab_run: Start) -> None:
    netlab_run(2, 1, "thread_levels", env={"GRADIENTFLOW_TIMEOUT": "20"})


@pytest.mark.thorough
def test_ulfm(netlab_run: Start) -> None:
    netlab_run(2, 1, "transports", "ulfm", recover="ulfm")
