"""Recorded events: saved, replayed, and asked of other policies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from gradientflow.cli.replay import replay
from gradientflow.description import words_of
from gradientflow.errors import ArgumentError, ArgumentTypeError
from gradientflow.policies import Policy, Stragglers, Trace, as_policy, as_stragglers, simulate, trace_of

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
POLICIES = ["bsp", "asp", "ssp(2)", "dssp(1, 4)", "dssp(1, 4, 'all')", "elastic_bsp(4)"]
MIXED = Stragglers((1, 1.3, 1.7, 2.2), jitter=0.1)


def recorded(policy: str, **options: Any) -> Trace:
    durations = [MIXED.durations(worker, 30) for worker in range(4)]
    return trace_of(simulate(policy, durations, keep_events=True, **options), policy)


# ---- traces ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_a_saved_trace_replays_to_the_same_decisions(policy: str, tmp_path: Path) -> None:
    trace = recorded(policy)
    trace.save(tmp_path / "trace.json")
    again = Trace.load(tmp_path / "trace.json")
    assert again == trace
    assert again.difference() is None


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("until", [np.inf, 20.0])
def test_a_trace_says_what_the_simulation_said(policy: str, until: float) -> None:
    durations = [MIXED.durations(worker, 30) for worker in range(4)]
    simulation = simulate(policy, durations, until=until, keep_events=True)
    trace = trace_of(simulation, policy)
    for row, duration, pushes in zip(trace.durations(), durations, simulation.pushes, strict=True):
        assert np.allclose(row, duration[:pushes])
    happened = trace.happened()
    assert (happened.pushes, happened.staleness) == (simulation.pushes, simulation.staleness)
    assert np.allclose(happened.computed, simulation.computed)
    assert happened.barriers == simulation.barriers
    assert happened.events == simulation.events
    if until == np.inf:
        assert np.allclose(happened.waited, simulation.waited)


def test_another_policy_differs_where_it_first_decides_otherwise() -> None:
    difference = recorded("ssp(2)").difference("ssp(3)")
    assert difference is not None
    assert "recorded was Answer(apply=[[0]], release=[]), the policy answers Answer(apply=[[0]], release=[0])" in str(
        difference
    )


def test_after_all_have_left_the_policy_begins_afresh() -> None:
    first = recorded("bsp")
    end = first.events[-1].seconds
    later = [event._replace(seconds=event.seconds + end) for event in first.events]
    trace = Trace(4, "bsp", [*first.events, *later], began=0.0)
    assert trace.difference() is None
    assert trace.happened().pushes == [60] * 4
    assert np.allclose(trace.durations()[1], [*first.durations()[1]] * 2)


def test_a_first_iteration_that_nobody_timed_counts_like_the_second() -> None:
    events = [(0, 100.0, "push", {"go_on": [0]}), (0, 102.0, "push", {"release": [0]}), (1, 103.0, "push", {})]
    assert Trace(2, "asp", events).durations() == [[2.0, 2.0], [3.0]]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as a trace"),
        ("[]", "cannot be read as a trace"),
        pytest.param("[" * 100_000, "cannot be read as a trace", id="nested"),
        ("{}", "workers is a whole number"),
        ('{"workers": 2, "policy": "bsp", "events": [[0, 1.0, "push"]]}', "event 0 is no .worker, seconds, kind"),
        (
            '{"workers": 2, "policy": "bsp", "events": [[2, 1.0, "push", {}]]}',
            "event 0 names worker 2, but there are 2",
        ),
        ('{"workers": 2, "policy": "bsp", "events": [[0, 1.0, "push", {"release": [3]}]]}', "names worker 3"),
        ('{"workers": 2, "policy": "bsp", "events": [[0, 1.0, "pull", {}]]}', "event 0 is a 'pull'"),
        ('{"workers": 2, "policy": "bsp", "events": [[0, "x", "push", {}]]}', "its time is a number"),
        ('{"workers": 2, "policy": "bsp", "events": [[0, 1, "push", {"wait": 1}]]}', "event 0 is no"),
    ],
)
def test_what_is_no_trace_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(text)
    with pytest.raises(ArgumentError, match=message):
        Trace.load(tmp_path / "trace.json")
    with pytest.raises(ArgumentError, match="nowhere"):
        Trace.load(tmp_path / "nowhere")


# ---- gradientflow replay ---------------------------------------------------------------------------------------------


def test_replay_says_what_other_policies_would_have_done(tmp_path: Path) -> None:
    trace, figures = tmp_path / "trace.json", tmp_path / "figures.json"
    recorded("dssp(1, 4)").save(trace)
    arguments = [str(trace), "--policy", "bsp; elastic_bsp(15)", "--policy", "ssp(2)", "--json", str(figures)]
    pytest.importorskip("matplotlib")
    result = CliRunner().invoke(replay, [*arguments, "--plot", str(tmp_path / "plot.png"), "--to", "20"])
    assert result.exit_code == 0, result.output
    assert "dssp(low=1, high=4) gives the recorded answers to all 124 events." in result.output
    assert (tmp_path / "plot.png").stat().st_size > 10_000
    runs = json.loads(figures.read_text())
    names = ["recorded: dssp(low=1, high=4)", "bsp", "elastic_bsp", "ssp(staleness=2)"]
    assert [run["policy"] for run in runs] == names
    assert all(name in result.output for name in names)
    assert [len(run["staleness"]) for run in runs[1::2]] == [1, 3]
    assert runs[2]["waited"] < runs[1]["waited"] / 2


def test_replay_fails_where_a_decision_differs(tmp_path: Path) -> None:
    trace = recorded("ssp(2)")
    Trace(4, "ssp(3)", trace.events).save(tmp_path / "trace.json")
    result = CliRunner().invoke(replay, [str(tmp_path / "trace.json")])
    assert result.exit_code == 1
    assert "ssp(staleness=3) does not give the recorded answers: event" in result.output
    result = CliRunner().invoke(replay, [str(tmp_path / "trace.json"), "--recorded", "ssp(2)"])
    assert result.exit_code == 0


@pytest.fixture
def trace_of_own_policy(tmp_path: Path) -> tuple[Path, Path]:
    """The trace of a policy of the user's, and a file that is there once its file has been run again."""
    path, ran = tmp_path / "mine.py", tmp_path / "ran"
    path.write_text((EXAMPLES / "k_sync.py").read_text())
    trace = trace_of(simulate(f"{path}:KSync(2)", MIXED.durations(4, 5), keep_events=True), f"{path}:KSync(2)")
    assert trace.policy == f"{path}:KSync(k=2)"
    trace.save(tmp_path / "trace.json")
    path.write_text(f"{path.read_text()}\nopen({str(ran)!r}, 'w').close()\n")
    return tmp_path / "trace.json", ran


def test_replay_runs_no_file_of_a_trace_unasked(trace_of_own_policy: tuple[Path, Path]) -> None:
    trace, ran = trace_of_own_policy
    result = CliRunner().invoke(replay, [str(trace)])
    assert isinstance(result.exception, ArgumentError)
    for words in (str(trace), "mine.py, which would be run", "--yes", "--recorded"):
        assert words in str(result.exception)
    result = CliRunner().invoke(replay, [str(trace), "--recorded", "ssp(2)"])
    assert "ssp(staleness=2) does not give the recorded answers" in result.output
    assert not ran.exists()
    result = CliRunner().invoke(replay, [str(trace), "--yes"])
    assert (result.exit_code, ran.exists()) == (0, True)
    assert "KSync(k=2) gives the recorded answers" in result.output


@pytest.mark.parametrize("agrees", [False, True])
def test_replay_asks_at_a_terminal(
    agrees: bool, trace_of_own_policy: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, ran = trace_of_own_policy
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda *_: True)
    result = CliRunner().invoke(replay, [str(trace)], input="y\n" if agrees else "\n")
    assert "mine.py. Run this file? [y/N]" in result.output
    assert (result.exit_code == 0, ran.exists()) == (agrees, agrees)
    if not agrees:
        assert "was not run" in str(result.exception)


def test_words_of_what_no_file_has_are_without_a_path() -> None:
    class Local(Policy):
        def start(self, workers: int) -> Any: ...

    assert (words_of(Local()), words_of(as_policy("ssp(3)"))) == ("Local", "ssp(staleness=3)")


# ---- stragglers ------------------------------------------------------------------------------------------------------


def test_durations_are_the_same_everywhere_by_their_seed() -> None:
    model = as_stragglers("stragglers((1, 1.5), jitter=0.1, seed=3)")
    assert as_stragglers(repr(model)) == model
    assert np.array_equal(model.durations(1, 50), Stragglers((1, 1.5), jitter=0.1, seed=3).durations(1, 50))
    assert np.array_equal(model.durations(1, 50)[:20], model.durations(1, 20))
    assert not np.array_equal(model.durations(1, 50), model.durations(1, 50, run=1))
    assert np.mean(model.durations(3, 10_000)) == pytest.approx(1.5, rel=0.02)


def test_ratios_alone_are_words_too() -> None:
    assert as_stragglers("1, 1.3,1.7,2.2") == Stragglers((1, 1.3, 1.7, 2.2))
    assert [as_stragglers("1,2").durations(worker, 2).tolist() for worker in range(3)] == [[1, 1], [2, 2], [1, 1]]


def test_a_worker_can_slow_down() -> None:
    assert Stragglers([2], slows=0, at=2, by=3).durations(0, 4).tolist() == [2, 2, 6, 6]


@pytest.mark.parametrize(
    "words",
    ["", "1,0", "1,-2", "1,nan", "1,x", "stragglers", "stragglers(())", "stragglers((1,), jitter=-1)", 3, "fixed(1)"],
)
def test_what_is_no_straggler_model_is_refused(words: Any) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError)):
        as_stragglers(words)
