"""Facts about this process."""

from __future__ import annotations

import os
import time
from pathlib import Path


def age() -> float:
    """Give the seconds since the start of this process."""
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")
