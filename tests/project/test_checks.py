"""That the checks of a program are items of pytest: each with its own outcome, though they share a job."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest
from checks import CheckedJob, checks_of, job_of
from jobs import begin, rank_command

from gradientflow.launch import Launcher, launch_environment

ALL = ["check_passing", "check_failing_on_one_rank", "check_skipped", "check_ending", "check_behind"]


@pytest.fixture
def start(launcher: Launcher) -> Iterator[Callable[..., CheckedJob]]:
    jobs = []

    def run(*names: str) -> CheckedJob:
        command = rank_command(launcher, 2, "outcomes", (), recover=False)
        jobs.append(CheckedJob(command, names, launch_environment(launcher), timeout=30))
        return jobs[-1]

    yield run
    for job in jobs:
        job.close()


def outcome(job: CheckedJob, name: str) -> str:
    try:
        job.wait_for(name)
    except (pytest.fail.Exception, pytest.skip.Exception) as error:
        return str(error)
    return ""


def test_checks_are_found_without_running_the_program() -> None:
    assert checks_of("outcomes") == ALL
    assert checks_of("outcomes", *ALL[3:0:-1]) == ALL[1:4]
    assert checks_of("outcomes", without=ALL[1:]) == ALL[:1]
    with pytest.raises(ValueError, match=r"outcomes\.py has no check_forgotten"):
        checks_of("outcomes", "check_forgotten")


def test_checks_of_a_job_have_one_name_in_common() -> None:
    names = [
        "a.py::test[2-x-check_one]",
        "a.py::test[2-x-check_two]",
        "a.py::test[3-x-check_one]",
        "a.py::test[check_b]",
    ]
    assert [*map(job_of, names)] == ["a.py::test[2-x]", "a.py::test[2-x]", "a.py::test[3-x]", "a.py::test[]"]
    assert job_of("a.py::test[2-x]") == "a.py::test[2-x]"


def test_each_check_has_its_own_outcome(start: Callable[..., CheckedJob]) -> None:
    job = start(*ALL[:3])
    assert [outcome(job, ALL[0]), outcome(job, ALL[2])] == ["", "not here"]
    found = outcome(job, ALL[1])
    assert "rank 1: check_failing_on_one_rank with {'window': 2}" in found
    assert "AssertionError: a mistake" in found
    assert "rank 0" not in found


def test_a_job_that_ends_fails_the_check_it_was_in_and_those_behind(start: Callable[..., CheckedJob]) -> None:
    job = start(ALL[0], *ALL[3:])
    assert outcome(job, ALL[0]) == ""
    assert outcome(job, ALL[3]).startswith("in this check, the job has ended: exit status 3")
    assert outcome(job, ALL[4]) == "this check was not run: the job ended in check_ending"


def test_only_what_was_selected_is_run_and_the_last_waits_for_the_end(start: Callable[..., CheckedJob]) -> None:
    finished = start(ALL[0], ALL[4]).wait_for(ALL[4])
    assert finished is not None
    assert finished.returncode == 0


def test_a_launcher_has_time_to_pass_on_what_ranks_have_said() -> None:
    launcher = [sys.executable, "-c", "import time; time.sleep(2); print('said')"]
    finished = begin(launcher, None, 30, recover=True).finish()
    assert (finished.returncode, finished.stdout) == (0, "said\n")
