"""Ports for a job's ranks to meet at."""

from __future__ import annotations

import contextlib
import random
import socket

from .launcher import LaunchError

_PORTS = range(20000, 30000)  # outside the ephemeral ports of Linux


def free_port() -> int:
    """Choose a port at random that is free on this machine."""
    for port in random.sample(_PORTS, 50):
        with contextlib.suppress(OSError), socket.socket() as trying:
            trying.bind(("", port))
            return port
    raise LaunchError(f"none of 50 ports between {_PORTS[0]} and {_PORTS[-1]} is free: set MASTER_PORT")
