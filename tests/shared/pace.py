"""How slow this machine is: what every limit of time is multiplied by, so that slow is not taken for stuck.

Measured once, as pytest starts. Its workers, and the ranks of their jobs, learn it from the environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

PACE = "TESTS_PACE"  # a variable of the environment
PATIENCE = "GRADIENTFLOW_PATIENCE"  # how long, beside what is shipped, the package waits for what may never come

_WORK = "sum(i * i for i in range(3_000_000))"
_QUIET_SECONDS = 0.2  # what it takes beside one of its kind on two cores of 2023 that have nothing else to do


def measure() -> float:
    """Give the factor: 1 on a quiet machine, 3 where a third of a core is left for each of two processes."""
    begin = time.monotonic()
    workers = [subprocess.Popen([sys.executable, "-I", "-S", "-c", _WORK]) for _ in range(2)]
    for worker in workers:
        worker.wait()
    return max(1.0, (time.monotonic() - begin) / _QUIET_SECONDS)


def scaled(seconds: float) -> float:
    """Give a limit of time as long as this machine needs it."""
    return seconds * float(os.environ.get(PACE, "1"))


def wait_until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Look again and again until it is so."""
    deadline = time.monotonic() + scaled(seconds)
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.02)
