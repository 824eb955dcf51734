"""Ranks that map memory of each other's devices: their collectives, and what they do where that fails."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
NO_NCCL = {"GRADIENTFLOW_NCCL_LIBRARY": "off"}
SLOW = {"CUDA_EMULATOR_DELAY": "200"}  # what misses an order shows it
DEVICES = "CUDA_EMULATOR_DEVICES"


@pytest.fixture
def env(device_env: dict[str, str]) -> dict[str, str]:
    return {**device_env, **NO_NCCL}


@pytest.fixture
def emulated(emulated_cuda: Path) -> dict[str, str]:
    """Devices that lack what a test wants them to lack."""
    return {"GRADIENTFLOW_CUDA_LIBRARY": str(emulated_cuda), **NO_NCCL}


@pytest.mark.parametrize(
    ("ranks", "devices"),
    [
        (2, 1),
        *(pytest.param(*each, marks=pytest.mark.thorough) for each in ((1, 1), (3, 2))),
        pytest.param(4, 1, marks=pytest.mark.slow),
    ],
)
def test_every_call_gives_what_it_gives_on_the_host(mpirun: Run, env: dict[str, str], ranks: int, devices: int) -> None:
    mpirun(ranks, "device_peers", "values", env={**env, DEVICES: str(devices)})


@pytest.mark.thorough
def test_large_tensors_are_reduced_in_slices(mpirun: Run, env: dict[str, str]) -> None:
    mpirun(3, "device_peers", "large", env={**env, **SLOW})


@pytest.mark.parametrize(("ranks", "devices"), [(2, 1), pytest.param(3, 2, marks=pytest.mark.thorough)])
def test_calls_in_several_streams_are_in_order(mpirun: Run, env: dict[str, str], ranks: int, devices: int) -> None:
    mpirun(ranks, "device_peers", "order", env={**env, **SLOW, DEVICES: str(devices)})


@pytest.mark.thorough
def test_memory_is_given_back_and_may_be_missing(mpirun: Run, emulated: dict[str, str]) -> None:
    mpirun(3, "device_peers", "memory", env={**emulated, "CUDA_EMULATOR_MEMORY": "32"})


def trouble(finished: Any) -> set[str]:
    """Return how calls went, and why the ranks do not exchange in their devices' memory, as they say."""
    found = re.findall(r"^trouble (.+)$", finished.stdout, re.MULTILINE)
    assert len(found) == 3, finished.output
    return set(found)


def test_devices_that_are_not_peers(mpirun: Run, emulated: dict[str, str]) -> None:
    finished = mpirun(3, "device_peers", "trouble", env={**emulated, DEVICES: "3", "CUDA_EMULATOR_PEERS": "0"})
    (said,) = trouble(finished)
    assert re.fullmatch(r"through_host rank 0 cannot map memory of rank 1's device: .*not supported.*", said)


@pytest.mark.thorough
def test_a_rank_without_memory_for_its_slot(mpirun: Run, emulated: dict[str, str]) -> None:
    finished = mpirun(3, "device_peers", "no_slot", env={**emulated, "CUDA_EMULATOR_MEMORY": "40"})
    (said,) = trouble(finished)
    assert re.fullmatch(r"through_host rank 1 cannot get 16777216 bytes of memory of its device: .*memory", said)


def test_a_death_in_the_middle_of_calls(mpirun: Run, env: dict[str, str]) -> None:
    finished = mpirun(3, "device_peers", "death", env={**env, **SLOW}, recover=True, check=False)
    assert set(re.findall(r"^survived (\d+)$", finished.stdout, re.MULTILINE)) == {"0", "2"}, finished.output
