"""Stores at which ranks meet, served by a rank or a launcher; a process keeps its stores open until it ends."""

from __future__ import annotations

import importlib.util
import os

from gradientflow._location import core

from .plan import MASTER, MeetingPlan

TOKEN = "GRADIENTFLOW_TOKEN"  # secret that guards the store

# Open stores by process and plan: a fork must not use its parent's connection, and lacks a server's threads.
_opened: dict[tuple[int, MeetingPlan], core.Store] = {}


def open_store(plan: MeetingPlan, timeout: float) -> core.Store:
    """Return the store at which the ranks of a job meet, as a store of the core.

    At MASTER_ADDR and MASTER_PORT it uses PyTorch's store if PyTorch is installed, so that ``init_process_group`` finds
    the store that it expects, before or afterwards. Elsewhere it is the core's own.

    Parameters
    ----------
    plan : MeetingPlan
        The plan of the meeting, which has the address.
    timeout : float
        Seconds that opening the store may take.

    Raises
    ------
    gradientflow.errors.CommunicationError
        If the store cannot be opened, or reached in time.
    """
    key = (os.getpid(), plan)
    if key not in _opened:
        _opened[key] = _open(plan, timeout)
    return _opened[key]


def _open(plan: MeetingPlan, timeout: float) -> core.Store:
    if plan.name == MASTER and (plan.agent or importlib.util.find_spec("torch") is not None):
        from .torch_store import open_torch_store

        return open_torch_store(plan, timeout)
    at = ",".join(plan.at)
    if at.startswith("file://"):
        return core.FileStore(at.removeprefix("file://"), timeout)
    return core.TcpStore(at, plan.serves, timeout, plan.password(os.environ.get(TOKEN, "")))
