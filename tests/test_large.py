"""Calls with more elements than 32 bits can count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NEEDED_GIB = 8


def available_gib() -> float:
    """Return the memory that may still be taken, within the machine and this control group."""
    text = Path("/proc/meminfo").read_text(encoding="utf-8")
    available = next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("MemAvailable:"))
    folder = Path("/sys/fs/cgroup")
    if (folder / "memory.max").is_file() and (limit := (folder / "memory.max").read_text().strip()) != "max":
        available = min(available, int(limit) - int((folder / "memory.current").read_text()))
    return available / 2**30


@pytest.mark.parametrize("what", ["node", "ordinary", "between"])
def test_more_than_32_bits_can_count(mpirun: Callable[..., Any], what: str) -> None:
    if available_gib() < NEEDED_GIB:
        pytest.skip(f"needs {NEEDED_GIB} GiB of memory, {available_gib():.1f} are available")
    mpirun(2, "large", what, timeout=90)
