"""The sparse pool and the optimizers on CUDA devices; on emulated ones where there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

# Of emulated devices. Delays show work that is in no stream's order; protection, that the host touches their memory.
DELAYED = {"CUDA_EMULATOR_DELAY": "100", "CUDA_EMULATOR_PROTECT": "0"}
APART = {"CUDA_EMULATOR_DEVICES": "2", "CUDA_EMULATOR_PEERS": "0"}


@pytest.mark.checks("device_sparse")
@pytest.mark.parametrize(
    ("ranks", "emulated"),
    [*(pytest.param(*each, marks=pytest.mark.thorough) for each in ((1, {}), (2, APART))), (3, DELAYED)],
)
def test_the_same_bits_as_on_the_host(
    check: Callable[..., Any], device_env: dict[str, str], ranks: int, emulated: Mapping[str, str]
) -> None:
    check(ranks, env={**device_env, **emulated})
