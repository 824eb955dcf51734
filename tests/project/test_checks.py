"""That the checks of a program are items of pytest: each with its own outcome, though they share a job."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
from checks import CheckedJob, checks_of, job_of, without_repeats
from jobs import Finished, begin, python_command, rank_command
from rank_servers import RankServers

from gradientflow.launch import Launcher, launch_environment

ALL = ["check_passing", "check_failing_on_one_rank", "check_skipped", "check_ending", "check_behind"]


@pytest.fixture(params=["forked", "by themselves"])
def start(
    request: pytest.FixtureRequest, launcher: Launcher, rank_servers: RankServers
) -> Iterator[Callable[..., CheckedJob]]:
    jobs = []
    python = rank_servers.command("outcomes", {}) if request.param == "forked" else python_command("outcomes")

    def run(*names: str) -> CheckedJob:
        command = rank_command(launcher, 2, python, (), recover=False)
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
    def names(*only: str, without: Sequence[str] = ()) -> list[str]:
        return [each.name for each in checks_of("outcomes", *only, without=without)]

    assert names() == ALL
    assert names(*ALL[3:0:-1]) == ALL[1:4]
    assert names(without=ALL[1:]) == ALL[:1]
    with pytest.raises(ValueError, match=r"outcomes\.py has no check_forgotten"):
        checks_of("outcomes", "check_forgotten")


def test_marks_of_checks_are_found() -> None:
    found = checks_of("outcomes")
    assert [sorted(each.ranks) for each in found] == [[1, 3], [3], [2], [3], [3]]
    assert [each.mark for each in found] == ["", "", "", "", "thorough"]


def test_checks_are_run_on_the_ranks_that_they_are_marked_for() -> None:
    def left(*ranks: int, slow: Sequence[int] = ()) -> list[tuple[int, str]]:
        items = []
        for number in ranks:
            marks = {"checks": pytest.mark.checks("outcomes").mark, **({"slow": True} if number in slow else {})}
            for name in ALL[:3]:
                spec = SimpleNamespace(params={"ranks": number, "check": name})
                items.append(SimpleNamespace(nodeid=f"t[{number}]", callspec=spec, get_closest_marker=marks.get))
        return [(each.callspec.params["ranks"], each.callspec.params["check"]) for each in without_repeats(items)]

    many = [ALL[0], ALL[1]]
    assert left(1, 2, 3, 4) == [(1, ALL[0]), (2, ALL[2]), *product((3, 4), many)]
    assert left(1, 2) == [(1, ALL[0]), *product([2], many)]
    assert left(2, 4, 3, slow=[2, 4]) == [*product((2, 4), ALL[:3]), *product([3], many)]


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


@pytest.mark.parametrize("how", ["plain", "exit", "raises", "killed"])
def test_a_forked_rank_is_what_python_would_have_been(
    how: str, launcher: Launcher, rank_servers: RankServers, tmp_path: Path
) -> None:
    def ended(python: list[str]) -> Finished:
        env = {**launch_environment(launcher), "SAID": "in its environment"}
        return begin(["taskset", "-c", "0", *python, how, "x y"], env, 30, cwd=tmp_path).finish()

    forked, plain = ended(rank_servers.command("ending", {})), ended(python_command("ending"))
    assert (forked.returncode, forked.stdout) == (plain.returncode, plain.stdout)
    assert f"['{how}', 'x y'] __main__ {tmp_path} [0] in its environment" in forked.stdout or how == "raises"
    assert ("at exit\nfinalized\n" in forked.stdout) == (how != "killed")
    assert ("ValueError: raises" in forked.stderr) == (how == "raises")


def test_a_forked_rank_handles_the_signal_that_its_launcher_sends(
    launcher: Launcher, rank_servers: RankServers
) -> None:
    env = {**launch_environment(launcher), "SAID": ""}
    job = begin([*rank_servers.command("ending", {}), "told"], env, 30)
    assert job.process.stdout is not None
    assert "told" in job.process.stdout.readline()
    job.process.terminate()
    assert job.finish().returncode == 9


def test_no_forked_rank_is_left_of_a_job_that_is_late(launcher: Launcher, rank_servers: RankServers) -> None:
    python = rank_servers.command("ending", {})
    env = {**launch_environment(launcher), "SAID": ""}
    job = begin(rank_command(launcher, 2, python, ("sleeps",), recover=False), env, 5)
    while len(job.processes()) < 5:  # mpirun, and for each of two ranks what it has started and the fork
        assert job.process.poll() is None
        time.sleep(0.02)
    with pytest.raises(pytest.fail.Exception, match="the job had not ended"):
        job.finish()
    assert job.processes() == []


def test_what_is_read_as_a_process_begins_is_not_left_to_the_server(rank_servers: RankServers) -> None:
    assert rank_servers.command("ending", {"SAID": "x"})[1] == "-I"
    assert rank_servers.command("ending", {"LD_PRELOAD": "libc.so.6"}) == python_command("ending")
    assert rank_servers.command("lifetime", {}) == python_command("lifetime")


def test_a_launcher_has_time_to_pass_on_what_ranks_have_said() -> None:
    launcher = [sys.executable, "-c", "import time; time.sleep(2); print('said')"]
    finished = begin(launcher, None, 30, recover=True).finish()
    assert (finished.returncode, finished.stdout) == (0, "said\n")
