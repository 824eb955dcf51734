"""Descriptions of the machine and its libraries."""

from __future__ import annotations

import contextlib
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ._location import core


def cpu_model() -> str:
    """Return the name of the processor."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model", "cpu model"):
                return value.strip()
    return platform.processor() or platform.machine()


def memory_limit() -> int:
    """Return the memory limit of this process's control groups, or else the machine's memory, in bytes."""
    return int(core.memory()[0])


def memory_available() -> int:
    """Return the available memory in bytes."""
    return int(core.memory()[1])


def mpi_library(text: str) -> str:
    """Shorten the MPI library's description of itself to name and version, without details of its build."""
    return " ".join(text.partition(",")[0].splitlines()[0].replace("Version:", "").split())


def package_version(name: str) -> str | None:
    """Return the version of an installed package, or None if it is not installed."""
    with contextlib.suppress(PackageNotFoundError):
        return version(name)
    module = sys.modules.get(name)
    return getattr(module, "__version__", None)


def format_size(size: int) -> str:
    """Return a number of bytes in the form that benchmarks read: ``64K``, ``1M``, ``1000``."""
    for exponent, unit in ((40, "T"), (30, "G"), (20, "M"), (10, "K")):
        if size and size % (1 << exponent) == 0:
            return f"{size >> exponent}{unit}"
    return str(size)
