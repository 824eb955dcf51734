"""The cores of this machine that this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path


def cores() -> int:
    """Count the cores this process may use: physical ones, within its affinity and its control group's quota."""
    cpus = os.sched_getaffinity(0)
    physical = {_physical_core(cpu) for cpu in cpus}
    count = len(cpus) if None in physical else len(physical)
    for text in _control_group_values("cpu.max"):
        quota, _, period = text.partition(" ")
        if quota.isdecimal() and period.isdecimal():
            count = min(count, math.ceil(int(quota) / int(period)))
    return max(1, count)


def _control_group_values(name: str) -> list[str]:
    """Read a file, such as ``cpu.max``, of this process's control group (version 2) and of all above it."""
    root = Path("/sys/fs/cgroup")
    entries = _read("/proc/self/cgroup").splitlines()
    own = next((line[3:] for line in entries if line.startswith("0::")), "/")
    group = root / own.lstrip("/")
    texts = [_read(folder / name) for folder in (group, *group.parents) if folder.is_relative_to(root)]
    return [text for text in texts if text]


def _physical_core(cpu: int) -> tuple[str, str] | None:
    folder = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
    package, core = _read(folder / "physical_package_id"), _read(folder / "core_id")
    return (package, core) if core else None


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
