"""Runs a training script of PyTorch's tutorials, with our process group and with another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gradientflow.launch import module_command

SCRIPT = Path(__file__).resolve().parents[1] / "programs" / "ddp_script.py"
OUTSIDE = {name: value for name, value in os.environ.items() if not name.startswith(("GRADIENTFLOW_", "TORCH_"))}


def losses(backend: str, checkpoint: Path, epochs: int, device: str = "cpu") -> dict[int, float]:
    """Run the script with a backend; return the loss of each epoch."""
    script = [sys.executable, str(SCRIPT), backend, str(checkpoint), str(epochs)]
    script += ["--device", device]
    finished = subprocess.run(
        module_command("gradientflow.cli", ["run", "-n", "2", "--", *script]),
        env={**OUTSIDE, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    lines = [line.split() for line in finished.stdout.splitlines()]
    return {int(epoch): float(loss) for _, epoch, _, loss in lines}
