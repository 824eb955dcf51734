"""NCCL: its collectives against NumPy, and what a job does when it fails; on an emulated NCCL, and on a real one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradientflow.launch import module_command

Run = Callable[..., Any]
Env = dict[str, str]

SECONDS = 2  # that the ranks wait for each other where one of them does nothing


@pytest.fixture(scope="session")
def emulated(emulated_cuda: Path, emulated_nccl: Path) -> Callable[..., Env]:
    """Give ``emulated(devices, **more)``, the environment of a job with so many devices and an NCCL."""

    def environment(devices: int, **more: str) -> Env:
        # The host is kept from memory of the devices in one test: each time, that takes longer than the call.
        return {
            "GRADIENTFLOW_CUDA_LIBRARY": str(emulated_cuda),
            "GRADIENTFLOW_NCCL_LIBRARY": str(emulated_nccl),
            "CUDA_EMULATOR_DEVICES": str(devices),
            "CUDA_EMULATOR_PROTECT": "0",
            **more,
        }

    return environment


# ---- calls -----------------------------------------------------------------------------------------------------------


HIERARCHICAL = "check_hierarchical"  # the only one that needs several nodes


@pytest.mark.checks("nccl_calls", without=[HIERARCHICAL])
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.thorough), 3])
def test_all_calls(check: Run, emulated: Callable[..., Env], ranks: int) -> None:
    check(ranks, env=emulated(ranks))


@pytest.mark.thorough
@pytest.mark.checks("nccl_calls", "check_moves", "check_not_a_number", "check_wire", "check_streams")
def test_some_calls_of_five_ranks_on_one_device(check: Run, emulated: Callable[..., Env]) -> None:
    check(5, env=emulated(1, NCCL_MULTI_RANK_GPU_ENABLE="1", CUDA_EMULATOR_DELAY="50"))


@pytest.mark.thorough
@pytest.mark.checks("nccl_calls", HIERARCHICAL, "check_wire")
def test_the_hierarchical_form(check: Run, emulated: Callable[..., Env]) -> None:
    check(5, env=emulated(5, GRADIENTFLOW_NODE_SIZE="2", CUDA_EMULATOR_PROTECT="1"))


WITHOUT_MPI = """
import sys, numpy as np, gradientflow as gf

with gf.init() as comm:
    x = comm.empty(5000, device="cuda:%d" % comm.rank)
    for algorithm in ("nccl", "auto", "ring"):
        x.set(np.full(5000, comm.rank + 1, np.float32))
        comm.allreduce(x, algorithm=algorithm)
        assert (x.get() == 3).all()
    assert comm.describe()["nccl"] == "available"
assert "mpi4py" not in sys.modules
"""


@pytest.mark.thorough
@pytest.mark.parametrize("node_size", [0, 1])
def test_ranks_without_mpi(shell: Run, emulated: Callable[..., Env], tmp_path: Path, node_size: int) -> None:
    """What NCCL and the memory of peers need to know of each other goes through the endpoint."""
    (tmp_path / "ranks.py").write_text(WITHOUT_MPI)
    command = module_command("gradientflow.cli", ["run", "-n", "2", "--transport", "tcp", "--", "ranks.py"])
    done = shell(shlex.join(command), tmp_path, emulated(2, GRADIENTFLOW_NODE_SIZE=str(node_size)))
    assert done.returncode == 0, done.output


@pytest.mark.checks("nccl_calls", without=[HIERARCHICAL])
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_real_nccl(check: Run, cuda_devices: int, ranks: int) -> None:
    if cuda_devices == 0:
        pytest.skip("there is no CUDA device")
    check(ranks, "real", env={"NCCL_MULTI_RANK_GPU_ENABLE": "1"})


# ---- where it cannot be used -----------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("devices", [1, 2])
def test_it_is_said_why_there_is_none(mpirun: Run, emulated: Callable[..., Env], devices: int) -> None:
    """Too old, switched off and so on; with one device, that two ranks have it."""
    assert mpirun(2, "nccl_calls", "refused", env=emulated(devices)).stdout.split() == ["done"] * 2


# ---- failures --------------------------------------------------------------------------------------------------------


def told(finished: Any) -> dict[int, tuple[str, str]]:
    """Return {rank: (kind of error, message)}; every rank that was told something must have gone on."""
    found = re.findall(r"^told (\d+) (\w+) (.+)$", finished.stdout, re.MULTILINE)
    survived = re.findall(r"^survived (\d+)$", finished.stdout, re.MULTILINE)
    assert {rank for rank, _, _ in found} <= set(survived), finished.output
    return {int(rank): (kind, text) for rank, kind, text in found}


@pytest.mark.parametrize("when", ["error", pytest.param("late", marks=pytest.mark.thorough)])
def test_an_error_of_nccl(mpirun: Run, emulated: Callable[..., Env], when: str) -> None:
    errors = told(mpirun(3, "nccl_faults", when, env=emulated(3)))
    assert set(errors) == {0, 1, 2}
    kind, text = errors[1]
    assert kind == "SystemCallError"
    assert re.search(r"^allreduce of 5000 float32.* failed on rank 1: NCCL: .*emulated failure of the network", text)
    for rank in (0, 2):
        assert errors[rank][0] == "PeerError"
        assert "rank 1 has given up after an error" in errors[rank][1]
        assert "emulated failure of the network" in errors[rank][1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mode", "ranks", "more"),
    [("silence", 2, []), ("launch", 2, []), ("silence", 5, ["hierarchical"])],
    ids=["silence", "launch", "hierarchical"],
)
def test_a_rank_that_does_nothing(
    mpirun: Run, emulated: Callable[..., Env], mode: str, ranks: int, more: list[str]
) -> None:
    env = emulated(ranks, GRADIENTFLOW_TIMEOUT=str(SECONDS), GRADIENTFLOW_NODE_SIZE="2" if more else "0")
    errors = told(mpirun(ranks, "nccl_faults", mode, *more, env=env))
    assert set(errors) == set(range(ranks))
    timeouts = [text for kind, text in errors.values() if kind == "CommunicationTimeoutError"]
    assert any(re.search(r"^NCCL did not finish allreduce of 5000 float32.* within 2 s", text) for text in timeouts)
    for kind, text in errors.values():
        assert kind == "CommunicationTimeoutError" or "has given up after an error" in text


@pytest.mark.thorough
def test_a_communicator_that_is_never_ready(mpirun: Run, emulated: Callable[..., Env]) -> None:
    errors = told(mpirun(2, "nccl_faults", "init", env=emulated(2, GRADIENTFLOW_TIMEOUT=str(SECONDS))))
    assert set(errors) == {0, 1}
    for _, text in errors.values():
        assert "on rank 1: NCCL did not come to know the others within 2 s" in text


@pytest.mark.thorough
@pytest.mark.usefixtures("patience")
def test_a_rank_that_dies(mpirun: Run, emulated: Callable[..., Env]) -> None:
    errors = told(mpirun(3, "nccl_faults", "kill", env=emulated(3), recover=True, check=False))
    assert set(errors) == {0, 2}
    for kind, text in errors.values():
        assert kind == "PeerError"
        assert "rank 1" in text


@pytest.mark.thorough
@pytest.mark.usefixtures("patience")
def test_a_rank_that_leaves(mpirun: Run, emulated: Callable[..., Env]) -> None:
    errors = told(mpirun(3, "nccl_faults", "leave", env=emulated(3)))
    assert set(errors) == {0, 2}
    for kind, text in errors.values():
        assert kind == "PeerError"
        assert "rank 1" in text
