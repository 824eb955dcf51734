"""The numbers and logs of processes whose ranks die and come."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from gradientflow.bench.survive.log import Log
from gradientflow.bench.survive.roster import Roster

_RANKS = 100  # more than a job has


def begin(keep: Callable[[Log, Roster], None]) -> tuple[Roster, Log]:
    """Number this process, by its rank and how many times it was started again, and let synchronizers keep a log."""
    own = int(os.environ["GRADIENTFLOW_RANK"]) + _RANKS * int(os.environ.get("GRADIENTFLOW_RESTARTS", "0"))
    roster, log = Roster(own), Log(Path(sys.argv[1]), own)
    keep(log, roster)
    return roster, log


def name_of(number: int) -> str:
    """Return the name of a process: its rank, behind the number of its life if that is not the first one."""
    life, rank = divmod(number, _RANKS)
    return f"{life}:{rank}" if life else str(rank)


__all__ = ["begin", "name_of"]
