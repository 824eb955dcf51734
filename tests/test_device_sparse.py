"""The sparse pool and the optimisers on CUDA devices; on an emulated one, with delays, where there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_same_bits_as_on_the_host(mpirun: Callable[..., Any], device_env: dict[str, str], ranks: int) -> None:
    mpirun(ranks, "device_sparse", env={**device_env, "CUDA_EMULATOR_DELAY": "100"})


def test_two_devices_and_no_peers(mpirun: Callable[..., Any], device_env: dict[str, str]) -> None:
    emulated = {"CUDA_EMULATOR_DEVICES": "2", "CUDA_EMULATOR_PEERS": "0"}
    mpirun(2, "device_sparse", env={**device_env, **emulated})
