"""torchft: replicas over our process group that are killed and come back, beside replicas over torchft's Gloo."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import Job
from needs_reconfigure import needs_reconfigure


@needs_reconfigure
@pytest.mark.real("torchft")
@pytest.mark.timeout(300)
def test_replicas_that_are_killed_come_back(start_command: Callable[..., Job]) -> None:
    """The program compares the weights of all replicas."""
    command = [sys.executable, str(Path(__file__).with_name("torchft_kills.py")), "--kills=2", "--join-timeout=3000"]
    finished = start_command(command, timeout=240).finish()
    assert finished.returncode == 0, finished.output
    found = re.findall(r"^\| (\w+) \| (inside|between).* \| 1 \| .* \| (\d+) \| ", finished.stdout, re.MULTILINE)
    places = [(group, place) for group in ("gradientflow", "gloo") for place in ("inside", "between")]
    assert [(group, place) for group, place, _ in found] == places, finished.output
    assert all(int(dropped) <= 1 for _, _, dropped in found[:2]), finished.output
