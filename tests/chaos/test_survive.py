"""``python tests/chaos survive``: ranks are killed and the sums are right; and that a wrong replay is noticed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from commands import chaos
from survive import counts, rounds_replay
from survive.ending import Ending, expanded
from survive.groups import GROUPS
from survive.job import Event, Job, _Life
from survive.local_replay import Replay
from survive.log import ContradictionError, Log
from survive.sums import add, gradient, new_weights, replayed
from survive.task import MOMENTUM, RATE, contribution
from survive.telling import checksum
from survive.training_replay import replay


def survive(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    path = folder / "events.json"
    command = [sys.executable, str(Path(__file__).parent), "survive", *arguments, "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    jobs: list[dict[str, Any]] = json.loads(path.read_text())["jobs"]
    return jobs


@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.usefixtures("_hosts_can_be_made")
def test_hosts_are_cut_off(tmp_path: Path) -> None:
    jobs = survive(tmp_path, "-n", "2", "--hosts", "3", "--kills", "30", "--seed", "3")
    assert any(event["kind"] == "host's link" for job in jobs for event in job["events"])


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_ranks_die_and_all_is_right(tmp_path: Path) -> None:
    """In a job of each of these groups."""
    names = ["collectives", "asgd", "diloco"]
    options = ["-n", "3", "--kills", "1", "--events", "1", "--seed", "7"]
    jobs = [job for name in names for job in survive(tmp_path, *options, "--strategy", name)]
    events = [event for job in jobs for event in job["events"]]
    assert sum(len(event["victims"]) for event in events) >= len(names)
    assert list(dict.fromkeys(job["strategy"] for job in jobs)) == names
    assert all(job["verdict"] in ("right", "stopped") for job in jobs)
    assert jobs[0]["verdict"] == "right"
    assert all(event["seconds"] is None or event["seconds"] > 0 for event in events)
    assert sum(job["back"] for job in jobs) > 0


@pytest.mark.slow
@pytest.mark.parametrize("strategy", GROUPS)
@pytest.mark.timeout(300)
def test_trainings_go_on(tmp_path: Path, strategy: str) -> None:
    jobs = survive(tmp_path, "-n", "3", "--kills", "2", "--events", "2", "--strategy", strategy)
    assert all(job["verdict"] in ("right", "stopped") and job["strategy"] == strategy for job in jobs)


EARLY = "CommunicationError: rank 0 has died before its weights, with which all begin, had ..."
WAITS = "CommunicationTimeoutError: no rank of the job has let this process in within 60 s"


def verdict(said: Sequence[Sequence[dict[str, Any]]], victims: Sequence[int]) -> str:
    """Judge a job of these processes, of which some were killed."""
    job = Job(len(said), "dense", None, 1)
    for place, words in enumerate(said):
        with subprocess.Popen([sys.executable, "-c", ""], text=True) as process:
            job._lives.append(_Life(place, process, [{"begins": True}, *words]))
    job._outcome.events = [Event("one rank", "they meet", (victim,), 0.0) for victim in victims]
    job._living = {*range(len(said))} - set(victims)
    job._judge()
    return job._outcome.verdict


def test_a_job_whose_rank_0_dies_too_early_stops_with_the_same_error_on_all() -> None:
    early, waits, other = ([{"error": error}] for error in (EARLY, WAITS, "CommunicationError: rank 1 has died"))
    step = [{"members": [0, 1, 2], "seconds": 1.0}]
    assert verdict([[], early, early], [0]) == "stopped"
    assert verdict([[], early, waits], [0]) == "stopped"
    assert verdict([[], early, other], [0]) == "wrong"
    assert verdict([waits, early, early], []) == "wrong"  # it lives
    assert verdict([waits, [], early], [1]) == "wrong"
    assert verdict([step, step, early], [0, 1]) == "wrong"  # others had its weights


def test_who_has_ended_is_not_killed() -> None:
    job = Job(2, "dense", None, 1)
    for place in range(2):
        with subprocess.Popen([sys.executable, "-c", ""], text=True) as process:
            job._lives.append(_Life(place, process, [{"members": [0, 1], "seconds": 1.0, "checksum": 1}]))
    job._living, job._ends = {0, 1}, True
    job._hit()
    assert not job._outcome.events


def test_strategies_without_a_check_are_refused() -> None:
    done = CliRunner().invoke(chaos, ["survive", "--strategy", "dense; slgs"])
    assert done.exit_code != 0
    assert "not slgs" in done.output


@pytest.mark.parametrize("arguments", [("-n", "1"), ("--events", "0"), ("-n", "0", "--hosts", "2")])
def test_jobs_in_which_nobody_can_die_are_refused(arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(chaos, ["survive", *arguments])
    assert done.exit_code == 2
    assert "2 ranks or more" in done.output


@pytest.mark.parametrize("command", ["join", "survive", "train"])
def test_a_file_that_cannot_be_written_is_refused_before_ranks_start(command: str) -> None:
    done = CliRunner().invoke(chaos, [command, "--json", "/no/such/folder/x.json"])
    assert str(done.exception) == "/no/such/folder/x.json cannot be written"


def test_replay_of_sums() -> None:
    weights = new_weights()
    steps = expanded([(0, [0, 1, 2]), (6, [0, 2]), (6, [2])], 9)
    for step in range(9):
        for own in [0, 1, 2] if step < 6 else [2]:
            add(weights, gradient(own, step))
    assert replayed(steps) == checksum(weights)
    assert replayed(steps[:8]) != checksum(weights)
    assert replayed(expanded([(0, [0, 1, 2]), (7, [2])], 9)) != checksum(weights)
    assert (weights == np.round(weights)).all()


@pytest.mark.parametrize("strategy", ["dense", "csc", "top_k", "powersgd"])
def test_a_step_of_others_is_noticed(tmp_path: Path, strategy: str) -> None:
    history = [(0, [0, 1, 2]), (40, [0, 2])]

    def rows(step: int, members: Sequence[int]) -> Any:
        return np.array([contribution(3, own, step) for own in members])

    check: Any = GROUPS[strategy].check
    steps = expanded(history, 100)
    weights, residuals = replay(check.sent, check.options, steps, [RATE] * 100, rows, MOMENTUM)
    for own in (0, 2):
        np.savez(tmp_path / f"left.{own}", weights=weights, residuals=residuals[own])

    def problem(history: Any) -> str:
        return str(check(Ending(tmp_path, 3, 1, {own: {"history": history, "steps": 100} for own in (0, 2)})))

    assert problem(history) == ""
    came_and_went = [*history[:1], (20, [0, 1, 2]), *history[1:]]  # a rank, and chunks are all sent again
    assert ("wrong" in problem(came_and_went)) == (strategy == "csc")
    assert "the weights of process 0 are wrong" in problem([(0, [0, 1, 2]), (41, [0, 2])])


def test_logs_that_contradict_each_other_are_noticed() -> None:
    def log(members: list[int]) -> list[list[Any]]:
        return [["step", 0], ["send", 0, 0, members], ["end", 0, 0, members]]

    def own(name: int, step: int) -> Any:
        return contribution(3, name, step)

    words = "local_sgd(period=1)"
    found = Replay(words, {0: log([0, 1]), 1: log([0, 1])}, [0, 1], own, MOMENTUM).ranks
    mean = (own(0, 0) + own(1, 0)) / 2
    assert np.array_equal(found[0].weights, -RATE * mean)
    Replay(words, {0: log([0, 1]), 1: log([0, 1]), 2: log([0, 1, 2])}, [0, 1], own, MOMENTUM)  # 2 has died
    with pytest.raises(ContradictionError, match="have taken part"):
        Replay(words, {0: log([0, 1]), 1: log([1])}, [0, 1], own, MOMENTUM)
    with pytest.raises(ContradictionError, match="cannot have done"):
        Replay(words, {0: log([0, 1]), 1: log([0, 1])[:1]}, [0, 1], own, MOMENTUM)


def test_what_is_sent_anew_to_the_same_ranks_counts() -> None:
    """A rank has come and gone, so that two exchanges under way were sent again, a step later on one rank."""

    def own(name: int, step: int) -> Any:
        return contribution(3, name, step)

    both = [0, 1]
    logs: dict[int, list[list[Any]]] = {
        0: [["step", 0], ["send", 0, 0, both], ["end", 0, 0, both]],
        1: [["step", 0], ["send", 0, 0, both], ["send", 1, 0, both], ["step", 1], ["send", 0, 0, both]],
    }
    logs[1].append(["end", 0, 0, both])
    found = Replay("local_sgd(period=1)", logs, both, own, MOMENTUM).ranks
    weights = -RATE * (own(0, 0) + (1 + MOMENTUM) * own(1, 0) + own(1, 1)) / 2
    assert np.array_equal(found[0].weights, weights)
    assert np.array_equal(found[1].weights, weights)


def test_pushes_that_are_applied_twice_or_not_at_all_are_noticed(tmp_path: Path) -> None:
    def problem(applied: Sequence[int]) -> str:
        weights = -RATE * sum(count * counts.contribution(2, own, 0) for own, count in enumerate(applied))
        np.savez(tmp_path / "left.0", weights=weights)
        return counts.problem(Ending(tmp_path, 2, 1, {0: {}}))

    for own in (0, 1):  # has pushed ten times, and has heard of nine of these
        log = Log(tmp_path, own)
        for step in range(10):
            log.write("gradient", step)
            if step < 9:
                log.write("step", step)
    assert problem([10, 9]) == ""
    assert problem([5, 10]) == ""  # some were lost with another rank
    assert "of 10 pushes of process 1 11 have been applied" in problem([10, 11])
    assert "of 9 pushes of process 0 only 4 have been applied" in problem([4, 10])


def test_rounds_that_contradict_each_other_are_noticed() -> None:
    def log(step: int, members: list[int]) -> list[list[Any]]:
        first = [["gradient", step], ["round", 0, members, True], ["send", 1, members]]
        return [*first, ["round", 1, members, False], ["send", 2, members], ["round", 2, members, False]]

    def own(name: int, step: int) -> Any:
        return contribution(3, name, step)

    both = [0, 1]
    found = rounds_replay.Replay({0: log(0, both), 1: log(1, both)}, both, own)
    assert np.array_equal(found.common[-1], -RATE * (own(0, 0) + own(1, 1)) / 2)
    with pytest.raises(ContradictionError, match="have taken part in round 1"):
        rounds_replay.Replay({0: log(0, both), 1: log(1, [1])}, both, own)
    with pytest.raises(ContradictionError, match="gradients left"):
        rounds_replay.Replay({0: log(0, both), 1: [*log(1, both), ["gradient", 1], ["train"]]}, both, own)
