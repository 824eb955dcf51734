"""Messages that may come from anybody at any time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gradientflow import _core

Run = Callable[..., Any]

NEEDED_GIB = 6


@pytest.mark.checks("mailbox")
@pytest.mark.parametrize("ranks", [1, 2, 3, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (4, 5))])
def test_messages_of_a_mailbox(check: Run, ranks: int) -> None:
    check(ranks)


@pytest.mark.slow
def test_a_message_of_more_than_2_gib(mpirun: Run) -> None:
    if (available := _core.memory()[1] / 2**30) < NEEDED_GIB:
        pytest.skip(f"needs {NEEDED_GIB} GiB of memory, {available:.1f} are available")
    mpirun(2, "mailbox", "large", timeout=90)


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize(
    ("how", "recover"),
    [
        *(("exit", True), pytest.param("kill", "ulfm", marks=pytest.mark.thorough)),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("exit", "ulfm"), ("kill", True))),
    ],
)
def test_a_rank_that_dies_is_named(mpirun: Run, how: str, recover: bool | str) -> None:
    finished = mpirun(3, "mailbox", how, recover=recover, check=False)
    for rank in (0, 1):
        assert f"rank {rank} has heard" in finished.stdout, finished.output


def test_without_a_thread_nothing_begins(mpirun: Run) -> None:
    mpirun(2, "mailbox", "no-thread")


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("ranks", [3, pytest.param(1, marks=pytest.mark.thorough)])
def test_a_program_may_end_with_mailboxes_open(mpirun: Run, ranks: int) -> None:
    finished = mpirun(ranks, "mailbox", "leave")
    assert finished.stderr == ""
