"""gradientflow run --jax and config --jax: JAX finds the job, and uses GradientFlow, whatever starts the ranks."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from click.testing import CliRunner
from jax_jobs import jax_command, needs_jax
from jobs import PROGRAMS, Finished
from needs_mpi import needs_mpi

import gradientflow as gf
from gradientflow.cli import jax as cli_jax
from gradientflow.cli.run import run
from gradientflow.launch import Launcher, launch_environment

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # pytest imports it where ranks cannot find it

START = str(PROGRAMS / "jax_start.py")
pytestmark = needs_jax


def assert_started(finished: Finished, ranks: int) -> None:
    """Check that every rank has found all, and that they have exchanged something."""
    gathered = [[rank, ranks] for rank in range(ranks)]
    lines = sorted(line for line in finished.stdout.splitlines() if line.startswith("rank "))
    assert lines == [f"rank {rank}: {gathered}" for rank in range(ranks)], finished.output


@pytest.mark.parametrize(
    ("transport", "how"),
    [("tcp", "bare"), pytest.param("mpi", "given", marks=[needs_mpi, pytest.mark.thorough])],
)
def test_jax_finds_its_job(jax_run: Callable[..., Finished], transport: str, how: str) -> None:
    assert_started(jax_run(2, "jax_start", how, env={"GRADIENTFLOW_TRANSPORT": transport}), 2)


def test_one_rank(jax_run: Callable[..., Finished]) -> None:
    finished = jax_run(1, "jax_start", "bare", env={"GRADIENTFLOW_TRANSPORT": "tcp"})
    assert_started(finished, 1)


@pytest.mark.thorough
def test_a_process_id_that_is_not_the_rank(jax_run: Callable[..., Finished]) -> None:
    finished = jax_run(2, "jax_start", "swapped", env={"GRADIENTFLOW_TRANSPORT": "tcp"}, check=False)
    assert finished.returncode != 0
    sentence = "jax.distributed.initialize() made rank 0 of 2 process 1 of 2: leave its arguments out"
    assert finished.stderr.count(f"gradientflow: {sentence}") == 2, finished.output


@pytest.mark.thorough
def test_on_several_hosts(start_netlab: Callable[..., Any], tmp_path: Path) -> None:
    agent = tmp_path / "ssh"
    agent.write_text(
        '#!/bin/sh\nif [ "$1" = -G ]; then echo "hostname $2"; exit; fi\n'
        'while [ "${1#-}" != "$1" ]; do case $1 in -o) shift 2;; *) shift;; esac; done\n'
        'exec $NETLAB_AGENT "$@"\n',
    )
    agent.chmod(0o755)
    command = jax_command(2, [START], "bare")
    at = command.index("--jax")
    command[at:at] = ["--transport", "tcp", "--hosts", "10.1.0.1:1,10.1.0.2:1"]
    finished = start_netlab("--hosts", "2", "--shell", "--", *command, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert_started(finished.finish(), 2)


@pytest.mark.thorough
def test_settings_for_mpirun(shell: Callable[..., Finished], launcher: Launcher, tmp_path: Path) -> None:
    commands = f"""eval "$(gradientflow config --jax)"; exec {sys.executable} {START} bare"""
    env = {**launch_environment(launcher), **paths(launcher), "JAX_COORDINATOR_ADDRESS": "127.0.0.1:29371"}
    oversubscribe = "--oversubscribe" if launcher.library == "Open MPI" else ""
    assert_started(shell(f"mpirun -n 2 {oversubscribe} sh -c '{commands}'", cwd=tmp_path, env=env), 2)


@pytest.mark.thorough
def test_settings_for_torchrun(shell: Callable[..., Finished], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = f'eval "$(gradientflow config --jax)"; exec {sys.executable} {START} bare'
    finished = shell(f"torchrun --nproc-per-node 2 --no-python sh -c '{script}'", cwd=tmp_path, env=paths())
    assert_started(finished, 2)


def number_of_processes() -> tuple[int, int]:
    import jax

    jax.distributed.initialize()
    return jax.process_index(), len(jax.devices())


@pytest.mark.thorough
def test_settings_of_spawn() -> None:
    assert gf.spawn(number_of_processes, 2, jax=True) == [(0, 2), (1, 2)]


def paths(launcher: Launcher | None = None) -> dict[str, str]:
    """Give the PATH of an activated environment."""
    folders = [sysconfig.get_path("scripts"), *([str(Path(launcher.path).parent)] if launcher else [])]
    return {"PATH": os.pathsep.join([*folders, os.environ.get("PATH", os.defpath)])}


# ---- sentences -------------------------------------------------------------------------------------------------------


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(run, ["--transport", "tcp", "-n", "2", "--dry-run", "--jax", *arguments])


def test_what_keeps_jax_from_using_gradientflow_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert invoke("true").stderr == ""
    monkeypatch.setenv("JAX_CPU_COLLECTIVES_IMPLEMENTATION", "gloo")
    ended = invoke("true")
    assert ended.exit_code == 0
    assert ended.stderr.startswith("gradientflow: JAX_CPU_COLLECTIVES_IMPLEMENTATION is gloo: ")


def test_a_version_that_has_not_been_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_jax, "installed_version", lambda: "0.4.38")
    ended = invoke("true")
    assert ended.exit_code == 0
    assert "JAX 0.4.38 has not been tried" in ended.stderr


def test_without_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of another Python may have one."""
    monkeypatch.setattr(cli_jax, "installed_version", lambda: None)
    assert invoke("true").exit_code == 0
    ended = invoke(START)
    assert ended.exit_code != 0
    assert "gradientflow[jax]" in str(ended.exception)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cli_jax, "jax_library", lambda: tmp_path / "absent.so")
    ended = invoke("true")
    assert ended.exit_code != 0
    assert "absent.so is missing" in str(ended.exception)


def test_ranks_that_serve_are_refused() -> None:
    ended = invoke("--servers", "1", "true")
    assert ended.exit_code != 0
    assert "leave --servers out" in str(ended.exception)
