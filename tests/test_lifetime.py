"""Communicators begin and end in any order, and nothing stays behind: descriptors, mappings, threads, processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradientflow.launch import find_launcher, launch_environment

Run = Callable[..., Any]


@pytest.mark.parametrize(("ranks", "node_size"), [(1, 0), (2, 0), (3, 0), (2, 1), (3, 2)])
def test_inside_a_program(mpirun: Run, ranks: int, node_size: int) -> None:
    mpirun(ranks, "lifetime", "inside", env={"GRADIENTFLOW_NODE_SIZE": str(node_size)})


@pytest.mark.parametrize("node_size", [0, 1])
@pytest.mark.parametrize("how", ["without_closing", "under_way", "thread", "daemons", "finalize", "after_finalize"])
def test_the_end_of_a_program(mpirun: Run, how: str, node_size: int) -> None:
    finished = mpirun(2, "lifetime", how, env={"GRADIENTFLOW_NODE_SIZE": str(node_size)}, timeout=20)
    assert sorted(line for line in finished.stdout.splitlines() if line.startswith("over")) == ["over 0", "over 1"]
    if how == "without_closing":
        assert sorted(line for line in finished.stdout.splitlines() if line.startswith("dest")) == [
            "destroyed 0",
            "destroyed 1",
        ]
    assert "Traceback" not in finished.stderr, finished.output
    assert "terminate" not in finished.stderr, finished.output


def test_sys_exit_inside_with(mpirun: Run) -> None:
    finished = mpirun(2, "lifetime", "sys_exit", timeout=20, check=False)
    assert finished.returncode == 7, finished.output
    assert "over" in finished.stdout
    assert "Traceback" not in finished.stderr


def test_without_a_launcher(tmp_path: Path) -> None:
    """A program that is just started is a job of one rank."""
    program = Path(__file__).resolve().parent / "ranks" / "lifetime.py"
    done = subprocess.run(
        [sys.executable, program, "without_closing"],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **launch_environment(find_launcher())},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["over 0", "destroyed 0"], done.stdout + done.stderr


def test_importing_starts_nothing() -> None:
    code = (
        "import gradientflow, sys, threading; "
        "assert 'mpi4py.MPI' not in sys.modules; assert threading.active_count() == 1; print(gradientflow.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip()
    assert done.stderr == ""
