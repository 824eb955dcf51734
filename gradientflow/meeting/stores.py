"""The stores at which ranks meet: opened by one of them or by somebody else before, and kept until the process ends."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

from gradientflow._location import load_core

from .way import MASTER, Way

TOKEN = "GRADIENTFLOW_TOKEN"  # what guards the store

# By process: a forked one may share neither a connection of its parent nor the threads of a server.
_opened: dict[tuple[int, Way], Any] = {}


def open_store(way: Way, timeout: float) -> Any:
    """Return the store at which the ranks of a job meet, one of the core.

    At MASTER_ADDR and MASTER_PORT that is PyTorch's, where there is PyTorch, so that ``init_process_group`` finds its
    own there, before or afterwards. Elsewhere it is one of the core.

    Parameters
    ----------
    way : Way
        How they meet; it says where.
    timeout : float
        How many seconds this may take.

    Raises
    ------
    gradientflow.errors.CommunicationError
        If it cannot be opened, or reached in time.
    """
    key = (os.getpid(), way)
    if key not in _opened:
        _opened[key] = _open(way, timeout)
    return _opened[key]


def _open(way: Way, timeout: float) -> Any:
    if way.name == MASTER and (way.agent or importlib.util.find_spec("torch") is not None):
        from .torch_store import open_torch_store

        return open_torch_store(way, timeout)
    at = ",".join(way.at)
    if at.startswith("file://"):
        return load_core().FileStore(at.removeprefix("file://"), timeout)
    return load_core().TcpStore(at, way.serves, timeout, way.password(os.environ.get(TOKEN, "")))
