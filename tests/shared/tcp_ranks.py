"""Ranks of a job over TCP that live in this process, and strangers who know what travels between them."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from native import tcp

TOKEN = bytes(range(100, 132))
PATIENCE = 30.0  # seconds, far more than anything here takes

MESSAGE, ANNOUNCED, FETCH, DROPPED, PIECE, WITHDRAWN, CREDIT, BYE, EXCLUDED = range(9)


def join(size: int, **options: Any) -> list[Any]:
    """Give the endpoints of `size` ranks."""
    networks = [tcp.Network(**options) for _ in range(size)]
    addresses = [network.address for network in networks]
    return [network.join(rank, addresses, TOKEN) for rank, network in enumerate(networks)]


def carry_on_until(is_over: Callable[[], bool], endpoints: Iterable[Any], seconds: float = PATIENCE) -> None:
    """Carry on all endpoints in turn, in this thread."""
    endpoints = list(endpoints)
    deadline = time.monotonic() + seconds
    while not is_over():
        for endpoint in endpoints:
            endpoint.make_progress()
        assert time.monotonic() < deadline, "nothing has come of it"


def finish(transfers: Iterable[Any], endpoints: Iterable[Any], seconds: float = PATIENCE) -> None:
    """Carry on all endpoints in turn, in this thread, until all transfers have ended."""
    pending = list(transfers)

    def is_over() -> bool:
        pending[:] = [each for each in pending if not each.test()]
        return not pending

    carry_on_until(is_over, endpoints, seconds)


def outcome(call: Callable[[], Any]) -> Any:
    """Give what a call returns, or the exception that it raises."""
    try:
        return call()
    except Exception as error:
        return error


def in_threads(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Make the calls at once, and give the outcome of each."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(outcome, calls))


def greeting(sender: int, receiver: int, token: bytes = TOKEN, version: int = 2, purpose: int = 0) -> bytes:
    """Give what a rank says first in a connection to another one."""
    return struct.pack("<6sBBII32s", b"GFLOW\n", version, purpose, sender, receiver, token)


def header(kind: int, tag: int = 0, group: int = 0, size: int = 0, number: int = 0, magic: int = 0xF1) -> bytes:
    """Give a header."""
    return struct.pack("<BBHiQQQ", kind, magic, 0, tag, group, size, number)


def job_group() -> int:
    """Give the number of the group of all ranks."""
    return int.from_bytes(TOKEN[:8], "little")


def connect(address: str) -> socket.socket:
    """Connect to where an endpoint listens."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE)


def is_closed(stranger: socket.socket) -> bool:
    """Tell whether the other end has closed the connection."""
    stranger.setblocking(False)
    try:
        return stranger.recv(1 << 16) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    finally:
        stranger.settimeout(PATIENCE)
