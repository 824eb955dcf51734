"""Communicators begin and end in any order, and nothing stays behind: descriptors, mappings, threads, processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from needs_mpi import needs_mpi

from gradientflow.launch import OPEN_MPI, find_launcher, launch_environment

Run = Callable[..., Any]


@pytest.mark.checks("lifetime")
@pytest.mark.parametrize(
    ("ranks", "node_size"),
    [
        *((1, 0), (3, 2)),
        pytest.param(3, 0, marks=pytest.mark.thorough),
        *(pytest.param(2, size, marks=pytest.mark.slow) for size in (0, 1)),
    ],
)
def test_inside_a_program(check: Run, ranks: int, node_size: int) -> None:
    check(ranks, "inside", env={"GRADIENTFLOW_NODE_SIZE": str(node_size)})


@pytest.mark.parametrize("node_size", [pytest.param(0, marks=pytest.mark.thorough), 1])
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


@needs_mpi
def test_without_a_launcher(tmp_path: Path) -> None:
    """A program that is just started is a job of one rank."""
    program = Path(__file__).resolve().parents[1] / "programs" / "lifetime.py"
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


FORK = """
import os, gradientflow as gf
from gradientflow.mpi_library import load_mpi
load_mpi()
gf.Config(timeout=5)  # with MPI, but without a communicator
if os.fork() == 0:
    try:
        gf.init()
    except gf.errors.ClosedError as error:
        os._exit(3 if "forked" in str(error) else 1)
    os._exit(1)
status = os.waitstatus_to_exitcode(os.wait()[1])
gf.init().close()
print("child", status)
"""


@needs_mpi
def test_a_process_forked_before_any_communicator_was_made() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "child 3\n", done.stdout + done.stderr


ALONE = "import gradientflow as gf; from mpi4py import MPI; print(gf.init({}).size)"


def start_alone(variables: dict[str, str], mpi: str = "") -> subprocess.CompletedProcess[str]:
    """Run a job of one rank, as another MPI library's launcher would start it."""
    env = {**os.environ, **launch_environment(find_launcher()), **variables}
    command = [sys.executable, "-c", ALONE.format(mpi)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def variables_of(launcher: str, rank: int, size: int) -> dict[str, str]:
    """Write what a launcher that is not the MPI library's own sets."""
    if launcher == "srun":
        return {"SLURM_PROCID": str(rank), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": str(size)}
    prefix = "PMI" if find_launcher().library == OPEN_MPI else "OMPI_COMM_WORLD"
    return {f"{prefix}_RANK": str(rank), f"{prefix}_SIZE": str(size)}


BY_MPI = {"GRADIENTFLOW_TRANSPORT": "mpi"}


@needs_mpi
@pytest.mark.parametrize("launcher", ["mpirun", pytest.param("srun", marks=pytest.mark.thorough)])
def test_the_launcher_of_another_library(launcher: str) -> None:
    done = start_alone(variables_of(launcher, 1, 3) | BY_MPI)
    assert done.returncode != 0
    assert "MPILibraryError" in done.stderr
    assert launcher in done.stderr
    assert "rank 1 of 3" in done.stderr
    assert find_launcher().library in done.stderr  # what the program uses
    assert start_alone(variables_of(launcher, 1, 3), "MPI.COMM_SELF").stdout == "1\n", "this one wants to be alone"


@needs_mpi
@pytest.mark.parametrize("used", ["pmi2", *(pytest.param(each, marks=pytest.mark.thorough) for each in ("pmix", ""))])
def test_srun_that_speaks_another_language(used: str) -> None:
    """The advice is not what has been used."""
    place = {"PMI_RANK": "1", "PMI_SIZE": "2"} if used == "pmi2" else {}
    variables = {**variables_of("srun", 1, 2), **place, **({"SLURM_MPI_TYPE": used} if used else {}), **BY_MPI}
    said = start_alone(variables).stderr.splitlines()[-1]
    spoken = "pmix" if find_launcher().library == OPEN_MPI else "pmi2"
    assert f"Slurm's srun{used and f' --mpi={used}'} started this process as rank 1 of 2" in said
    assert (f"start it with --mpi={spoken}, or " in said) == (used != spoken)
    assert "use TCP, with --mpi=none or GRADIENTFLOW_TRANSPORT=tcp, or" in said


@needs_mpi
def test_pytorchs_launcher() -> None:
    """It knows nothing of MPI, so with MPI every process would be a job of its own."""
    variables = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", **BY_MPI}
    done = start_alone(variables)
    assert done.returncode != 0
    assert "MPILibraryError: torchrun" in done.stderr
    for words in ("rank 1 of 2 (WORLD_SIZE)", "gradientflow run", "gf.init(MPI.COMM_SELF)"):
        assert words in done.stderr
    assert start_alone(variables, "MPI.COMM_SELF").stdout == "1\n", "this one wants to be alone"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "variables",
    [
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_NNODES": "2"},  # Python in a batch script
        {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "PMI_RANK": "0", "PMI_SIZE": "1"},  # mpirun -n 1 below srun
        {"PMI_RANK": "some", "PMI_SIZE": "3"},
        {"PMI_SIZE": "3"},
        {"RANK": "1", "WORLD_SIZE": "2", "PMI_RANK": "0", "PMI_SIZE": "1", **BY_MPI},  # mpirun -n 1 below torchrun
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"WORLD_SIZE": "2", **BY_MPI},
    ],
)
def test_a_process_that_is_meant_to_be_alone(variables: dict[str, str]) -> None:
    done = start_alone(variables)
    assert done.stdout == "1\n", done.stderr


def test_importing_starts_nothing() -> None:
    code = (
        "import gradientflow, sys, threading; "
        "assert 'mpi4py.MPI' not in sys.modules; assert threading.active_count() == 1; print(gradientflow.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip()
    assert done.stderr == ""
