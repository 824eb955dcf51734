"""PyTorch's tensors on CUDA devices: on real ones where there are any, and everywhere on an emulated one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tutorial_script import losses

torch = pytest.importorskip("torch")

Run = Callable[..., Any]

on_a_device = pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason=f"PyTorch {torch.__version__} has no CUDA device here (torch.cuda.is_available() is False)",
)


@pytest.mark.checks("torch_cuda")
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_training_on_an_emulated_device(check: Run, emulated_cuda: Path, ranks: int) -> None:
    """Training is that of the host, bit for bit, though the device takes its time."""
    check(ranks, env=emulated(emulated_cuda, CUDA_EMULATOR_DELAY="50"), timeout=100)


# What needs many pools, or many steps, is left out, and what is only of the host.
WITHOUT = [
    "check_training_equals_one_process",
    "check_models_that_change",
    "check_gradients_that_layers_write_in_place",
    "check_embeddings_that_add_in_place",
]


@pytest.mark.slow
@pytest.mark.checks("torch_optimizer", without=WITHOUT)
def test_the_optimizer_on_an_emulated_device(check: Run, emulated_cuda: Path) -> None:
    check(2, env=emulated(emulated_cuda), timeout=100)


@pytest.mark.slow
@pytest.mark.checks(
    "torch_strategies",
    without=[
        "check_csc_is_the_algorithm",
        "check_nothing_is_lost",
        "check_training_in_16_bits_learns",
    ],
)
def test_strategies_on_an_emulated_device(check: Run, emulated_cuda: Path) -> None:
    check(2, env=emulated(emulated_cuda), timeout=100)


# Where ranks have weights of their own, gradients on a device are not looked at: weights are, in the next exchange.
@pytest.mark.slow
@pytest.mark.checks("torch_promises", without=["check_gradients_that_are_not_finite"])
def test_what_strategies_promise_on_an_emulated_device(check: Run, emulated_cuda: Path) -> None:
    check(2, env=emulated(emulated_cuda, CUDA_EMULATOR_DELAY="50"), timeout=150)


@pytest.mark.thorough
@pytest.mark.checks("torch_served")
def test_strategies_on_servers_on_an_emulated_device(check: Run, emulated_cuda: Path) -> None:
    """The bits are those of the host, which copies and what is computed in other streams must not change."""
    check(2, env=emulated(emulated_cuda, CUDA_EMULATOR_DELAY="50"), timeout=150)


@pytest.mark.thorough
@pytest.mark.checks("torch_local")
def test_strategies_with_own_weights_on_an_emulated_device(check: Run, emulated_cuda: Path) -> None:
    check(2, env=emulated(emulated_cuda, CUDA_EMULATOR_DELAY="50"), timeout=150)


@pytest.mark.thorough
@pytest.mark.checks("process_group")
def test_the_process_group_on_an_emulated_device(check: Run, emulated_cuda: Path) -> None:
    check(2, *"01", env=emulated(emulated_cuda), timeout=100)


@on_a_device
@pytest.mark.checks("torch_cuda")
@pytest.mark.parametrize("ranks", [1, 3])
def test_training_on_a_device(check: Run, ranks: int) -> None:
    check(ranks, env={"TENSORS_ON": "cuda"}, timeout=200)


@on_a_device
@pytest.mark.checks("torch_served")
@pytest.mark.parametrize("ranks", [1, 2])
def test_strategies_on_servers_on_a_device(check: Run, ranks: int) -> None:
    check(ranks, env={"TENSORS_ON": "cuda"}, timeout=200)


@on_a_device
@pytest.mark.checks("torch_local")
@pytest.mark.parametrize("ranks", [1, 2])
def test_strategies_with_own_weights_on_a_device(check: Run, ranks: int) -> None:
    check(ranks, env={"TENSORS_ON": "cuda"}, timeout=200)


@on_a_device
@pytest.mark.checks("process_group")
@pytest.mark.parametrize(("ranks", "node_sizes"), [(2, "0"), (3, "01")])
def test_every_call_on_a_device_gives_what_numpy_gives(check: Run, ranks: int, node_sizes: str) -> None:
    check(ranks, *node_sizes, env={"TENSORS_ON": "cuda"}, timeout=200)


@on_a_device
def test_a_tutorial_script_gives_on_a_device_what_it_gives_with_gloo(tmp_path: Path) -> None:
    ours = losses("gradientflow", tmp_path / "ours", 3, "cuda:0")
    assert ours == pytest.approx(losses("gloo", tmp_path / "gloo", 3), rel=1e-3)


def emulated(library: Path, **settings: str) -> dict[str, str]:
    """Say what a job needs that takes all tensors for tensors on an emulated device."""
    return {
        "TENSORS_ON": "emulated",
        "GRADIENTFLOW_CUDA_LIBRARY": str(library),
        "CUDA_EMULATOR_PROTECT": "0",
        **settings,
    }
