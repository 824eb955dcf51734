"""Commands where there is no MPI: its launchers are hidden from them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs import Finished, Job, begin
from needs_mpi import WITHOUT_MPI

HIDE = (
    "import sys; sys.path[:] = filter(None, sys.path); import gradientflow.launch.launcher as launcher; "
    "launcher._candidates = list; from gradientflow.cli import main; main()"
)

WHY = WITHOUT_MPI or "no mpirun beside "

Command = Callable[..., Finished]


@pytest.fixture
def command() -> Iterator[Command]:
    """Give ``command(*arguments, env=None)``, which runs ``gradientflow`` without an mpirun."""
    jobs: list[Job] = []

    def run(*arguments: object, env: dict[str, str] | None = None) -> Finished:
        jobs.append(begin([sys.executable, "-c", HIDE, *map(str, arguments)], env, 60))
        return jobs[-1].finish()

    yield run
    for job in jobs:
        job.close()


def test_run_takes_tcp_and_says_so(command: Command) -> None:
    show = 'echo "$GRADIENTFLOW_TRANSPORT $RANK of $WORLD_SIZE"'
    ended = command("run", "-n", 2, "--", "sh", "-c", show)
    assert ended.returncode == 0, ended.output
    assert sorted(ended.stdout.splitlines()) == ["tcp 0 of 2", "tcp 1 of 2"]
    assert ended.stderr.startswith(f"gradientflow: without MPI, over TCP: {WHY}")
    assert ended.stderr.count("\n") == 1
    quiet = command("run", "-n", 1, "--transport", "tcp", "--", "true")
    assert (quiet.returncode, quiet.stderr) == (0, "")


@pytest.mark.parametrize("how", ["option", "variable"])
def test_run_is_refused_where_mpi_is_asked_for(command: Command, how: str) -> None:
    options = ("--transport", "mpi") if how == "option" else ()
    ended = command("run", "-n", 2, *options, "--", "true", env={"GRADIENTFLOW_TRANSPORT": "mpi"})
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"gradientflow: {WHY}")


@pytest.mark.parametrize(("bench", "ours"), [("allreduce", 2), ("ps", 2)])
def test_benches_leave_out_what_is_of_mpi(command: Command, bench: str, ours: int, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    ended = command("bench", bench, "-n", 2, "--sizes", "4K", "--iterations", 2, "--json", path)
    assert ended.returncode == 0, ended.output
    assert ended.stderr.startswith(f"gradientflow: without MPI, over TCP, and without MPI's columns: {WHY}")
    written = json.loads(path.read_text())
    assert [(result["backend"], result["wrong"]) for result in written["results"]] == [("gradientflow", 0)] * ours
    assert written["environment"]["mpi"] == "no MPI"


def test_a_bench_that_is_about_mpi_is_refused(command: Command) -> None:
    ended = command("bench", "allreduce", "-n", 2, "--transport", "tcp,mpi")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"gradientflow: {WHY}")


def test_a_rank_of_a_bench_that_fails_ends_the_job(command: Command) -> None:
    env = {"GRADIENTFLOW_TIMEOUT": "no number"}
    ended = command("bench", "allreduce", "-n", 2, "--sizes", "4K", "--iterations", 2, env=env)
    assert ended.returncode == 1, ended.output
    assert ended.stderr.count("GRADIENTFLOW_TIMEOUT") >= 1
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_training_is_measured(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    path = tmp_path / "figures.json"
    options = (
        "--model",
        "cnn",
        "--contestants",
        "gradientflow,ddp-gradientflow,mpi",
        "--steps",
        2,
        "--batch",
        4,
        "--strategy",
        "dense",
    )
    ended = command("bench", "train", "-n", 2, *options, "--json", path)
    assert ended.returncode == 0, ended.output
    written = json.loads(path.read_text())
    assert [(each["contestant"], each["wrong"]) for each in written["results"]] == [
        *(("none", 0), ("gradientflow", 0), ("ddp-gradientflow", 0))
    ]
