"""Timelines: what the ranks write."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import outside_environment
from pace import scaled


@pytest.mark.checks("timeline")
@pytest.mark.parametrize("ranks", [1, 3])
def test_timelines(check: Callable[..., Any], ranks: int, tmp_path: Path) -> None:
    check(ranks, tmp_path)


def test_a_timeline_that_has_no_room(tmp_path: Path) -> None:
    """Such as on a full disk: the program goes on, and a sentence says that the rest is missing."""
    program = (
        "import resource, numpy as np, gradientflow as gf\n"
        "with gf.init() as comm:\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))\n"
        "    for _ in range(200): comm.allreduce(np.ones(1))\n"
    )
    path = tmp_path / "trace.json"
    environment = {**outside_environment(), "GRADIENTFLOW_TIMELINE": str(path)}
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=scaled(60), check=False)
    own = path.with_name("trace.rank0.json")
    said = f"gradientflow: the timeline {own} cannot be written to its end: File too large\n"
    assert (ended.returncode, ended.stderr) == (0, said)
    assert own.stat().st_size <= 5000
