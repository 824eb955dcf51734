"""The top-k pool on CUDA devices; on emulated ones where there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

# Of emulated devices, as in test_device_sparse.py.
DELAYED = {"CUDA_EMULATOR_DELAY": "100", "CUDA_EMULATOR_PROTECT": "0"}
APART = {"CUDA_EMULATOR_DEVICES": "2", "CUDA_EMULATOR_PEERS": "0"}


@pytest.mark.checks("device_top_k")
@pytest.mark.parametrize(
    ("ranks", "emulated"),
    [pytest.param(1, DELAYED, marks=pytest.mark.thorough), (2, APART), pytest.param(3, {}, marks=pytest.mark.slow)],
)
def test_the_same_bits_as_on_the_host(
    check: Callable[..., Any], device_env: dict[str, str], ranks: int, emulated: Mapping[str, str]
) -> None:
    check(ranks, env={**device_env, **emulated}, timeout=150)
