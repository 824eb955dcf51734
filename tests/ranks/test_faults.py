"""Ranks that die, leave, are late or are interrupted: the others are soon told who, and nothing stays behind."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

OF_TWO = [
    "check_leave_during_a_call_between_nodes",
    "check_leave_what_is_under_way_between_nodes",
    "check_patient",
]
OF_THREE = [
    "check_leave_by_closing",
    "check_leave_by_raising",
    "check_stopped",
    "check_late_whatever_the_yields",
    "check_close_during_a_call",
    "check_leave_during_a_call",
    "check_leave_what_is_under_way",
    "check_interrupt",
    "check_interrupt_in_a_wait",
]
OF_FIVE = ["check_late", "check_late_between_nodes", "check_absent", "check_absent_from_a_split"]


def survivors(finished: Any) -> set[int]:
    """Return the ranks that say that they have seen what they should."""
    return {int(rank) for rank in re.findall(r"^survived (\d+)$", finished.stdout, re.MULTILINE)}


def users_of_memory(finished: Any) -> list[str]:
    """Return the processes that still map, or hold open, the node memory that the ranks told of."""
    inodes = {inode for line in re.findall(r"^memory (.+)$", finished.stdout, re.MULTILINE) for inode in line.split()}
    assert inodes
    users = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            mapped = re.findall(r"(\d+) +/memfd:gradientflow", (process / "maps").read_text(encoding="utf-8"))
            opened = [
                str(os.stat(fd).st_ino) for fd in (process / "fd").iterdir() if "memfd:gradientflow" in os.readlink(fd)
            ]
        except OSError:
            continue
        if inodes & {*mapped, *opened}:
            users.append(process.name)
    return users


# ---- death -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ranks", "how"), [(5, "kill"), pytest.param(3, "die", marks=pytest.mark.thorough)])
def test_the_others_are_told_who_died_and_can_go_on(mpirun: Run, ranks: int, how: str) -> None:
    finished = mpirun(ranks, "faults", how, recover=True, check=False)
    assert survivors(finished) == set(range(ranks)) - {1}, finished.output
    assert users_of_memory(finished) == []


@pytest.mark.parametrize(
    ("ranks", "mode"), [(3, "kill_small"), pytest.param(5, "kill_large", marks=pytest.mark.thorough)]
)
def test_the_others_are_told_before_mpirun_ends_them(mpirun: Run, ranks: int, mode: str) -> None:
    finished = mpirun(ranks, "faults", mode, check=False)
    assert finished.returncode != 0
    assert survivors(finished) == set(range(ranks)) - {1}, finished.output
    assert users_of_memory(finished) == []


@pytest.mark.thorough
@pytest.mark.parametrize(("ranks", "direct_read"), [(2, "on"), (3, "off"), (4, "off")])
def test_a_death_in_the_middle_of_large_calls(mpirun: Run, ranks: int, direct_read: str) -> None:
    env = {"GRADIENTFLOW_DIRECT_READ": direct_read, "GRADIENTFLOW_DIRECT_READ_BYTES": "1MiB"}
    finished = mpirun(ranks, "faults", "kill_during_calls", env=env, recover=True, check=False)
    assert survivors(finished) == set(range(ranks)) - {1}, finished.output


# ---- leaving ---------------------------------------------------------------------------------------------------------


def test_an_exception_that_nobody_catches(mpirun: Run) -> None:
    finished = mpirun(3, "faults", "crash", check=False)
    assert finished.returncode != 0
    assert "a mistake of the user's" in finished.stderr
    assert survivors(finished) == {0, 2}, finished.output


def test_a_program_that_ends_without_closing(mpirun: Run) -> None:
    assert survivors(mpirun(3, "faults", "end")) == {0, 1, 2}


# ---- in order, so many in one job ------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["stopped_while_making", "stopped_while_making_between_nodes"])
def test_a_rank_that_is_stopped_while_communicators_are_made(mpirun: Run, mode: str) -> None:
    assert survivors(mpirun(3, "faults", mode)) == {0, 1, 2}


@pytest.mark.thorough
@pytest.mark.checks("faults", *OF_TWO)
def test_leaving_and_patience_of_two_ranks(check: Run) -> None:
    check(2)


@pytest.mark.slow
@pytest.mark.checks("faults", "check_absent", "check_late_between_nodes")
def test_two_ranks_of_which_one_is_absent_or_late(check: Run) -> None:
    check(2)


@pytest.mark.checks("faults", *OF_THREE)
def test_ranks_that_leave_are_stopped_or_interrupted(check: Run) -> None:
    check(3)


@pytest.mark.thorough
@pytest.mark.checks("faults", *OF_FIVE)
@pytest.mark.usefixtures("native")
def test_late_ranks_are_named_and_told(check: Run) -> None:
    check(5)


# ---- between nodes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hows", "ranks", "node_size", "faulty"),
    [
        ("close,raise,never,die", 3, 1, "1"),
        *(
            pytest.param(*each, marks=pytest.mark.thorough)
            for each in (
                ("close,raise", 2, 1, "0"),
                ("close,raise,never,die", 4, 2, "1"),
                ("close,raise,never,die", 5, 2, "2,3"),
                ("close,die", 5, 3, "0"),
            )
        ),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (("never", 5, 1, "1,3"), ("never", 4, 2, "3"), ("never", 5, 2, "4"))
        ),
    ],
)
def test_ranks_that_leave_never_come_or_die_between_nodes(
    mpirun: Run, hows: str, ranks: int, node_size: int, faulty: str
) -> None:
    """Those that wait find out together who is missing, also where they wait for somebody else who waits.

    The ranks of the same node see a death at once and tell all; a rank that was alone on its node is missed.
    """
    dies, env = "die" in hows, {"GRADIENTFLOW_NODE_SIZE": str(node_size)}
    finished = mpirun(ranks, "faults_between", hows, faulty, env=env, timeout=60, recover=dies, check=not dies)
    gone = {int(rank) for rank in faulty.split(",")} if dies else set()
    assert survivors(finished) == set(range(ranks)) - gone, finished.output


@pytest.mark.thorough
@pytest.mark.parametrize("patience", ["shipped"], indirect=True)
@pytest.mark.usefixtures("patience")
def test_ranks_that_never_come_are_named_after_the_wait_that_is_shipped(mpirun: Run) -> None:
    finished = mpirun(3, "faults_between", "never", "1", env={"GRADIENTFLOW_NODE_SIZE": "1"}, timeout=60)
    assert survivors(finished) == {0, 1, 2}, finished.output


@pytest.mark.thorough
def test_a_death_that_the_mpi_library_notices(mpirun: Run) -> None:
    finished = mpirun(3, "faults", "kill_between_nodes", recover="ulfm", check=False)
    assert survivors(finished) == {0, 2}, finished.output


# ---- ended from outside ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough)])
def test_a_signal_to_the_launcher_ends_all_ranks(start_job: Run, number: signal.Signals) -> None:
    """Two ranks wait in a call at that moment. That no process is left, finish() checks."""
    job = start_job(3, "faults", "wait_for_ever", timeout=30)
    ready = [job.process.stdout.readline() for _ in range(3)]
    assert ready == ["ready\n"] * 3
    time.sleep(0.2)
    job.process.send_signal(number)
    assert job.finish().returncode != 0
