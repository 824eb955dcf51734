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


@pytest.mark.parametrize("ranks", [1, 2])
def test_training_on_an_emulated_device(mpirun: Run, emulated_cuda: Path, ranks: int) -> None:
    """Training is that of the host, bit for bit, though the device takes its time."""
    mpirun(ranks, "torch_cuda", env=emulated(emulated_cuda, CUDA_EMULATOR_DELAY="50"), timeout=100)


@pytest.mark.parametrize(
    ("program", "arguments"), [("process_group", "01"), ("torch_optimizer", ""), ("torch_strategies", "")]
)
def test_all_checks_of_the_host_on_an_emulated_device(
    mpirun: Run, emulated_cuda: Path, program: str, arguments: str
) -> None:
    mpirun(2, program, *arguments, env=emulated(emulated_cuda), timeout=100)


@on_a_device
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_training_on_a_device(mpirun: Run, ranks: int) -> None:
    mpirun(ranks, "torch_cuda", env={"TENSORS_ON": "cuda"}, timeout=200)


@on_a_device
@pytest.mark.parametrize(("ranks", "node_sizes"), [(2, "01"), (3, "0")])
def test_every_call_on_a_device_gives_what_numpy_gives(mpirun: Run, ranks: int, node_sizes: str) -> None:
    mpirun(ranks, "process_group", *node_sizes, env={"TENSORS_ON": "cuda"}, timeout=200)


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
