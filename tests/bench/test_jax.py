"""``gradientflow bench jax``: libraries take turns as jobs, and results are compared."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jax_jobs import needs_jax

from gradientflow.bench.core.job_turns import JobPlace, turns
from gradientflow.bench.jax import command
from gradientflow.errors import ArgumentError, GradientFlowError

pytestmark = needs_jax


def measure(path: Path, *arguments: str) -> dict[str, Any]:
    words = [sys.executable, "-m", "gradientflow", "bench", "jax", *arguments, "--json", str(path)]
    finished = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return dict(json.loads(path.read_text()))


@pytest.mark.thorough
def test_psum_beside_gloo(tmp_path: Path) -> None:
    arguments = ["--transport", "tcp", "--sizes", "4,64K", "--rounds", "1", "--seconds", "0.05"]
    found = measure(tmp_path / "found.json", "psum", *arguments)
    assert [turn["library"] for turn in found["turns"]] == ["gradientflow", "gloo"]
    assert [turn["implementation"] for turn in found["turns"]] == ["mpi", "gloo"]
    for result in (result for turn in found["turns"] for result in turn["results"]):
        assert result["wrong"] == 0
        assert 0 < result["min_us"] <= result["median_us"] <= result["p95_us"]
        assert result["empty_us"] > 0


def test_the_loop_counts(tmp_path: Path) -> None:
    found = measure(tmp_path / "found.json", "loop", "--transport", "tcp", "-n", "3", "--calls", "20", "--size", "4K")
    assert found["wrong"] == {"psum_scatter": 0, "all_gather": 0}
    assert found["calls"] == 20


@pytest.mark.thorough
def test_calls_at_one_rank(tmp_path: Path) -> None:
    found = measure(tmp_path / "found.json", "calls", "--sizes", "1K", "--rounds", "1", "--seconds", "0.1")
    results = {result["call"]: result for result in found["turns"][0]["results"]}
    assert {"average('dense')", "average('csc(density=0.1)')", "allreduce, max", "empty"} <= {*results}
    assert all(result["wrong"] == 0 and result["median_us"] > 0 for result in results.values())


@pytest.mark.slow
def test_steps_of_two_frameworks(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("optax")
    found = measure(tmp_path / "found.json", "step", "--transport", "tcp", "--turns", "2")
    assert found["wrong"] == 0
    assert [*found["steps"]] == ["jax", "jax alone", "pytorch", "pytorch alone"]
    assert all(figures["median_ms"] > 0 for figures in found["steps"].values())


def test_wrong_results_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"calls": 1, "wrong": {"psum_scatter": 1, "all_gather": 0}}
    monkeypatch.setattr(command, "run_turn", lambda place, told: wrong)
    assert command.loop.main(["--calls", "1"], standalone_mode=False) == 1


@pytest.mark.parametrize(("words", "sentence"), [("foo", "foo"), ("dense; ssgd", "average gradients, not ssgd")])
def test_strategies_are_checked_before_a_job_starts(words: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "run_turn", pytest.fail)
    with pytest.raises(ArgumentError, match=sentence):
        command.calls.main(["--strategies", words], standalone_mode=False)


def test_turns_change_their_order() -> None:
    assert list(turns(["a", "b"], 3)) == ["a", "b", "b", "a", "a", "b"]


def test_ranks_that_hosts_cannot_share() -> None:
    with pytest.raises(GradientFlowError, match="3 ranks cannot be dealt out evenly to 2 hosts"):
        JobPlace(3, hosts=2).command(["true"])
