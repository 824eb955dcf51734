"""How long Python waits for what may never come: one table, and one factor for all of it.

What the core waits for is in kernels/base/waits.hpp. The launcher's program, which starts at once, reads this, too:
nothing of the package is imported.
"""

from __future__ import annotations

import os
from typing import NamedTuple


class Wait(NamedTuple):
    """A wait of fixed length."""

    shipped: float

    @property
    def seconds(self) -> float:
        """The length, times GRADIENTFLOW_PATIENCE, which only tests set."""
        return self.shipped * float(os.environ.get("GRADIENTFLOW_PATIENCE") or 1)


# Launchers.
REPORT = Wait(3.0)  # for ranks to notice that another has gone
ASKED_TO_END = Wait(3.0)  # before a rank is killed, unless a signal from outside is the reason
LAUNCHER_ENDS = Wait(5.0)  # for a launcher to kill its ranks
SAME_SIGNAL = Wait(1.0)  # in which a second signal may be the first one: sent to a group, and then to each process
RESTART = Wait(1.0)  # before a rank that has failed quickly, twice, is started again; then twice as long
LONGEST_RESTART = Wait(30.0)
FIRST_RANK_SAYS = Wait(1.0)  # for rank 0 to say for all ranks what is wrong

# Processes that join a job.
LOOK = Wait(0.2)  # between two looks at the store
BLIND = Wait(30.0)  # after one that has failed
STORE = Wait(2.0)  # for a call of the store between two steps
NOBODY_LEFT = Wait(1.0)  # between two looks whether nobody is left to let newcomers in

# Servers.
SERVER_ENDS = Wait(5.0)  # for each server that workers have left open to end by itself
WORKER_DIES = Wait(0.2)  # between checks for workers that have died

# Where ranks meet.
PLACE_ANSWERS = Wait(3.0)  # for trying where ranks are to meet
MASTER_ANSWERS = Wait(5.0)  # for trying one address of the master
