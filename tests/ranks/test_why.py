"""``gradientflow why`` after seeded faults in real jobs, and reports of single processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faulty_runs import DOORS, FAULTY, Fault, command, difference, settings
from jobs import Job, outside_environment
from pace import scaled

ALONE = """
import contextlib, json, numpy as np, gradientflow as gf
from gradientflow import recorder
comm, x = gf.init(), np.zeros(3)
"""


@pytest.fixture
def diagnose(
    process_command: Callable[[str], list[str]], start_command: Callable[..., Job], tmp_path: Path
) -> Callable[[int, str], str]:
    """Give ``diagnose(seed, door)``, which runs the job of a fault, and returns what is wrong in its diagnosis."""

    def run(seed: int, door: str) -> str:
        fault = Fault.of(seed, door)
        program = FAULTY if (door, seed) == ("ddp", 6) else process_command("faulty")  # once with --preload
        start_command(command(fault, seed, program), settings(tmp_path, scaled(3))).finish()
        return difference(fault, tmp_path)

    return run


@pytest.mark.parametrize("seed", range(10))
def test_the_rank_and_the_line_of_a_fault(seed: int, diagnose: Callable[[int, str], str]) -> None:
    assert diagnose(seed, "numpy") == ""


def test_a_job_of_mpi_ends_though_a_rank_hangs(tmp_path: Path, start_job: Callable[..., Job]) -> None:
    fault = Fault.of(7, "numpy")
    assert fault.kind == "loop"
    done = start_job(fault.ranks, "faulty", 7, "numpy", env=settings(tmp_path, scaled(3))).finish()
    assert done.returncode != 0
    assert f"no sign of rank {fault.rank};" in done.stderr
    assert "the job is aborted" in done.stderr


MORE = {"ddp": (0, 3, 6, 8), "optimizer": (1, 5, 7, 9), "jax": (1, 3, 4, 8)}
PACKAGES = {"numpy": "numpy", "ddp": "torch", "optimizer": "torch", "jax": "jax"}


@pytest.mark.thorough
@pytest.mark.parametrize(("door", "seed"), [(door, seed) for door, seeds in MORE.items() for seed in seeds])
def test_more_faults(door: str, seed: int, diagnose: Callable[[int, str], str]) -> None:
    pytest.importorskip(PACKAGES[door])
    assert diagnose(seed, door) == ""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 200))
def test_many_faults(seed: int, diagnose: Callable[[int, str], str]) -> None:
    door = DOORS[seed // 10 % len(DOORS)]
    pytest.importorskip(PACKAGES[door])
    assert diagnose(seed, door) == ""


def test_reports_are_private_and_have_no_values(tmp_path: Path, start_command: Callable[..., Job]) -> None:
    folder = tmp_path / "dump"
    fault = Fault.of(9, "numpy")
    assert fault.kind == "raise"
    done = start_command(command(fault, 9), settings(folder, scaled(3)), timeout=60).finish()
    assert f"gradientflow why {folder}" in done.stderr
    files = sorted(folder.glob("rank*.jsonl"))
    assert len(files) == fault.ranks
    assert folder.stat().st_mode & 0o777 == 0o700
    for file in files:
        assert file.stat().st_mode & 0o777 == 0o600
        assert "a secret" not in file.read_text()
    assert len(list(folder.glob("torch_*"))) == fault.ranks


def test_off_records_nothing(tmp_path: Path) -> None:
    program = "import gradientflow as gf, gradientflow.recorder as r; gf.init().barrier(); print(r.calls())"
    for setting, recorded in (("off", 0), (str(tmp_path), 1)):
        environment = {**outside_environment(), "GRADIENTFLOW_DUMP": setting, "GRADIENTFLOW_TRANSPORT": "tcp"}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.stdout.count("barrier") == recorded * 2, done.stderr
    assert not list(tmp_path.iterdir())


def log_after(program: str) -> Any:
    """Return the log of calls after a program on one rank."""
    done = subprocess.run(
        [sys.executable, "-c", f"{ALONE}{program}\nprint(json.dumps(recorder.calls()))"],
        env={**outside_environment(), "GRADIENTFLOW_DUMP": "auto", "GRADIENTFLOW_TRANSPORT": "tcp"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return json.loads(done.stdout)


def test_the_place_of_a_call_in_frames_of_each_kind() -> None:
    program = """
def called(): comm.barrier()
def made(): yield comm.allreduce(x, out=x)
called(), list(made()), [comm.broadcast(x) for _ in range(1)], list(map(comm.broadcast, [x]))"""
    places = [(call["function"], call["line"]) for call in log_after(program)]
    inlined = "<listcomp>" if sys.version_info < (3, 12) else "<module>"
    first = ALONE.count("\n") + 2
    assert places == [("called", first), ("made", first + 1), (inlined, first + 2), ("<module>", first + 2)]


def test_a_call_that_is_never_served_has_failed() -> None:
    program = """
comm.close()
with contextlib.suppress(gf.errors.ClosedError):
    comm.allreduce_async(x)"""
    assert [call["state"] for call in log_after(program)] == ["failed"]


@pytest.mark.thorough
def test_a_communicator_stays_in_the_log_after_many_others() -> None:
    program = """
for _ in range(1030):
    comm.split(0).close()
comm.barrier()"""
    calls = log_after(program)
    assert calls[-1]["communicator"] == calls[-2]["communicator"] is not None
