"""Coming to a job that stands."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module

from .communicator import Communicator
from .config import settings
from .door import Door
from .errors import MismatchError, PeerError
from .job import asked_transport, door_at, init
from .meeting import Given, find_way

# What a loop needs, and what a program has imported that makes one: that leaves the rest for its first use.
_LOOPS = {"gradientflow": "gradientflow.optimizers", "gradientflow.torch": "gradientflow.torch.optimizer"}


def join(meet: str | None = None, config: Mapping[str, str] | None = None) -> Communicator:
    """Take part in a job, also in one that has begun long ago.

    In a process that ``gradientflow run --restart`` has started in place of one that had failed, and with `meet`, this
    waits until the ranks of the job call `Communicator.admit`, and makes a communicator of these and, behind them, of
    this process. The program then gives it what it lacks: rank 0 has it. In all other processes it is `init`, with
    which a job begins; so it is where all ranks wait, as after the deaths of all.

    Parameters
    ----------
    meet : str, optional
        Where the ranks of the job have met, ``host:port``, several with commas, or ``file:///path``; by default what
        the launcher says. The store there has to live. GRADIENTFLOW_TOKEN is that of the job.
    config : Config, optional
        Settings; by default those of the environment. Those that all ranks must share have to be those of the job.

    Returns
    -------
    Communicator
        ``recovered_from`` has an entry for each rank that was there before; it is None where a job has begun.

    Raises
    ------
    gradientflow.errors.CommunicationTimeoutError
        If nobody has let this process in within GRADIENTFLOW_TIMEOUT.
    gradientflow.errors.MismatchError
        If the job has ended, or this process does not fit into it: its version, or a setting.
    gradientflow.errors.PeerError
        If the ranks of the job have died meanwhile, or have taken this process for dead.
    """
    chosen = settings(config)
    if meet is not None:
        way = find_way({}, Given(meet=meet, rank=0, size=1), "tcp")
        return _come_in(door_at(replace(way, rank=None, size=None, serves=False), chosen), chosen)
    way = find_way(os.environ, None, asked_transport(config))
    if not way.has_keeper:
        return init(config=config)
    door, seconds = door_at(way, chosen), float(chosen["timeout"])
    end = time.monotonic() + seconds
    while True:
        if way.replaces and door.job_stands():
            try:
                return _come_in(door, chosen)
            except MismatchError:
                if door.job_stands():
                    raise
                end = time.monotonic() + seconds
        try:
            return init(config=config)
        except PeerError:  # before the job stood: the rank is started again
            if time.monotonic() > end or door.lacks():
                raise
            way = replace(way, replaces=True)  # the others may have met meanwhile


def _come_in(door: Door, chosen: Mapping[str, str]) -> Communicator:
    for imported, needed in _LOOPS.items():  # the others wait for this process once it has knocked
        if imported in sys.modules:
            import_module(needed)
    made = Communicator(door.come_in(chosen), chosen)
    made._door = door
    return made


__all__ = ["join"]
