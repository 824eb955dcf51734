"""Table of the time limits of waits in Python, with one factor for all of them.

The core's limits are in kernels/base/waits.hpp. This file imports nothing of the package, because the launcher's
program, which must start fast, also reads this file.
"""

from __future__ import annotations

import os
from typing import NamedTuple


class Wait(NamedTuple):
    """A wait of fixed length."""

    shipped: float

    @property
    def seconds(self) -> float:
        """Length in seconds, times GRADIENTFLOW_PATIENCE, which only tests set."""
        return self.shipped * float(os.environ.get("GRADIENTFLOW_PATIENCE") or 1)


# Launchers.
REPORT = Wait(3.0)  # time for ranks to notice the death of another rank
ASKED_TO_END = Wait(3.0)  # grace period before a rank is killed, unless a signal from outside is the reason
LAUNCHER_ENDS = Wait(5.0)  # time for a launcher to kill its ranks
SAME_SIGNAL = Wait(1.0)  # time in which an equal signal is the same one, sent to a group and then to each process
RESTART = Wait(1.0)  # delay before restarting a rank that failed quickly twice; doubled each time
LONGEST_RESTART = Wait(30.0)
FIRST_RANK_SAYS = Wait(1.0)  # time for rank 0 to report the error for all ranks

# Processes that join a job.
LOOK = Wait(0.2)  # interval between two looks at the store
BLIND = Wait(30.0)  # interval after a failed look
STORE = Wait(2.0)  # limit of a call of the store between two steps
ABANDONED_JOB = Wait(1.0)  # interval between checks for a job without any rank left to admit joiners

# Servers.
SERVER_ENDS = Wait(5.0)  # delay after which a server left open by workers ends by itself
WORKER_DIES = Wait(0.2)  # interval between checks for dead workers

# Meeting points.
PLACE_ANSWERS = Wait(3.0)  # limit of an attempt to reach the meeting point
MASTER_ANSWERS = Wait(5.0)  # limit of an attempt to reach one address of the master
