"""Tensors on CUDA devices, real ones or emulated ones: collectives, pools, errors; how a path is chosen."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from native import collective

from gradientflow._location import build_info
from gradientflow.errors import ArgumentError

Run = Callable[..., Any]
Env = Mapping[str, str]

LATE = {"CUDA_EMULATOR_DELAY": "100"}  # whatever is not ordered by events happens in any order


@pytest.mark.parametrize(
    ("ranks", "devices", "one_of"),
    [*(pytest.param(*each, marks=pytest.mark.thorough) for each in ((1, 1, 12), (5, 1, 60))), (3, 2, 16)],
)
def test_every_collective_in_memory_of_the_devices(
    mpirun: Run, device_env: Env, ranks: int, devices: int, one_of: int
) -> None:
    """Ranks that share a device, and ranks that have one each."""
    env = {**device_env, **LATE, "CUDA_EMULATOR_DEVICES": str(devices), "GRADIENTFLOW_NCCL_LIBRARY": "off"}
    finished = mpirun(ranks, "device_collectives", "peers", one_of, env=env, timeout=100)
    assert int(finished.line("cases ")) > 1000 // one_of
    assert finished.line("paths ") == ("device_staged" if ranks > 1 else "alone")


@pytest.mark.parametrize(
    "ranks", [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.thorough)]
)
def test_every_collective_through_the_host(mpirun: Run, device_env: Env, ranks: int) -> None:
    """Where ranks do not map each other's memory: in pieces, through the collectives of nodes of every size."""
    env = {**device_env, **LATE, "CUDA_EMULATOR_PEERS": "0", "CUDA_EMULATOR_DEVICES": str(ranks)}
    env["GRADIENTFLOW_NCCL_LIBRARY"] = "off"
    finished = mpirun(ranks, "device_collectives", "host", 16, env=env, timeout=100)
    assert int(finished.line("cases ")) > 80
    assert "through_host" in finished.line("paths ")


@pytest.mark.checks("device")
@pytest.mark.parametrize(
    ("ranks", "node_size"),
    [pytest.param(1, 0, marks=pytest.mark.thorough), (3, 0), pytest.param(3, 2, marks=pytest.mark.thorough)],
)
def test_tensors_streams_errors_pools_and_timelines(check: Run, device_env: Env, ranks: int, node_size: int) -> None:
    env = {**device_env, **LATE, "CUDA_EMULATOR_DEVICES": "2", "GRADIENTFLOW_NCCL_LIBRARY": "off"}
    check(ranks, node_size, env=env, timeout=100)


@pytest.mark.checks("device_cupy")
def test_cupy(check: Run, cuda_devices: int) -> None:
    if cuda_devices == 0:
        pytest.skip("no CUDA device")
    pytest.importorskip("cupy")
    check(2, timeout=100)


# ---- without a device ------------------------------------------------------------------------------------------------

PROGRAM = """
import numpy, gradientflow as gf
from gradientflow import device, errors
with gf.init() as comm:
    for call in (lambda: device.empty(3), lambda: comm.empty(3, device="cuda"),
                 lambda: gf.GradientPool(comm, [3], device="cuda:0")):
        try:
            call()
        except errors.SystemCallError as error:
            print(error)
    print(comm.allreduce(numpy.ones(2)).tolist())
"""


def outcome(**env: str) -> list[str]:
    environment = {**os.environ, **env}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_build_without_cuda_says_so() -> None:
    lines = outcome(GRADIENTFLOW_CUDA_LIBRARY="/no/such/library.so")
    sentence = "GradientFlow was built without CUDA: there is no /no/such/library.so; install it on a machine with nvcc"
    assert [line.startswith(sentence) for line in lines] == [True, True, True, False]
    assert lines[-1] == "[1.0, 1.0]"


def test_a_machine_without_a_device_says_so() -> None:
    if not build_info().get("cuda"):
        pytest.skip("built without CUDA")
    lines = outcome(CUDA_VISIBLE_DEVICES="", GRADIENTFLOW_CUDA_LIBRARY="auto")
    assert [line.startswith("there is no CUDA device") for line in lines] == [True, True, True, False]
    assert lines[-1] == "[1.0, 1.0]"


# ---- the choice of a path --------------------------------------------------------------------------------------------


def select(kind: str = "allreduce", algorithm: str = "auto", nodes: tuple[int, ...] = (4,), **facts: Any) -> str:
    given = {
        "bytes": 1 << 20,
        "in_device_memory": False,
        "shares_device": False,
        "no_nccl": "",
        "no_peers": "",
        **facts,
    }
    return str(collective.select_on_device(kind, algorithm, node_sizes=list(nodes), **given))


KINDS = [
    "allreduce",
    "broadcast",
    "reduce",
    "allgather",
    "allgatherv",
    "reduce_scatter",
    "alltoall",
    "gather",
    "scatter",
]


@pytest.mark.parametrize("kind", KINDS)
def test_large_tensors_take_nccl_and_small_ones_device_memory(kind: str) -> None:
    assert select(kind, nodes=(1,)) == "alone"
    assert select(kind, bytes=1) == select(kind, bytes=256 << 10) == "device_staged"
    assert select(kind, bytes=(256 << 10) + 1) == "nccl"
    assert select(kind, bytes=1, no_peers="why") == select(kind, bytes=1, nodes=(2, 2), no_peers="why") == "nccl"


@pytest.mark.parametrize("kind", KINDS)
def test_without_nccl(kind: str) -> None:
    assert select(kind, no_nccl="why") == select(kind, shares_device=True) == "device_staged"
    assert select(kind, no_nccl="why", in_device_memory=True) == "device_memory"
    assert select(kind, no_nccl="why", no_peers="why") == "through_host"
    with pytest.raises(ArgumentError, match=r"algorithm 'nccl' cannot serve CUDA tensors here: it is too old"):
        select(kind, "nccl", no_nccl="it is too old")


def test_algorithms_that_are_asked_for() -> None:
    assert select(algorithm="nccl", bytes=1) == select(algorithm="nccl", shares_device=True) == "nccl"
    assert select(algorithm="hierarchical", nodes=(2, 2), no_peers="why") == "nccl_hierarchical"
    assert select(algorithm="hierarchical", nodes=(2, 2), no_nccl="why", no_peers="why") == "through_host"
    for algorithm in ("ring", "recursive_doubling", "hierarchical_lanes", "mpi"):
        assert select(algorithm=algorithm) == "through_host"
        assert select(algorithm=algorithm, nodes=(1,)) == "alone"
    assert select(algorithm="shared", bytes=1 << 30) == "device_staged"
    with pytest.raises(ArgumentError, match=r"algorithm 'shared' cannot serve CUDA tensors here: too far apart"):
        select(algorithm="shared", no_peers="too far apart")
    with pytest.raises(ArgumentError, match="works inside one node"):
        select(algorithm="shared", nodes=(2, 2), no_peers="why")
    for kind in ("broadcast", "alltoall"):
        for algorithm in ("recursive_doubling", "hierarchical"):
            with pytest.raises(ArgumentError, match=f"algorithm '{algorithm}' does not serve {kind}"):
                select(kind, algorithm)
