"""Ports at which the ranks of a job meet."""

from __future__ import annotations

import contextlib
import random
import socket

from .launcher import LaunchError

_PORTS = range(20000, 30000)  # ports outside the ephemeral ports of Linux


def free_port() -> int:
    """Return a random free port of this machine."""
    for port in random.sample(_PORTS, 50):
        with contextlib.suppress(OSError), socket.socket() as trying:
            trying.bind(("", port))
            return port
    raise LaunchError(f"none of 50 ports between {_PORTS[0]} and {_PORTS[-1]} is free: set MASTER_PORT")
