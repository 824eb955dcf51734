"""Questions to the sockets of ranks on this machine."""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from gradientflow.annotations import JsonObject
from gradientflow.process_stat import stat_of

from .folder import SocketName, connect, sockets

_PIECE = 1 << 16
_STATES = {"T": "is stopped", "t": "is stopped by a debugger", "D": "is blocked in the kernel", "Z": "has ended"}


class Rank(NamedTuple):
    """A rank's process: its name, its answer, or the reason why it gives none, as far as it is seen from outside."""

    name: SocketName
    said: JsonObject | None
    silence: str = ""


def ask(question: str, *, job: str | None = None, seconds: float = 1.0) -> list[Rank]:
    """Ask all ranks of this user on this machine, or of one job, at the same time; return them by job and rank.

    For questions see `gradientflow.watch.answers.answer`. A rank that takes longer than `seconds` gives no answer.
    """
    found = {path: name for path, name in sockets() if job in (None, name.job)}
    said = _ask_at(list(found), question, seconds)
    ranks = [
        Rank(name, said[path], "" if said[path] else _silence(name.pid)) for path, name in found.items() if path in said
    ]
    return sorted((each for each in ranks if each.silence != _STATES["Z"]), key=lambda each: each.name)


def _ask_at(paths: list[Path], question: str, seconds: float) -> Mapping[Path, JsonObject | None]:
    """Return the answers; None from processes that listen and do not answer in time."""
    received: dict[Path, bytearray] = {}
    answers: dict[Path, JsonObject | None] = {}
    end = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
        for path in paths:
            with contextlib.suppress(ConnectionError, FileNotFoundError):  # the process has ended
                answers[path] = None
                with contextlib.suppress(BlockingIOError):  # its queue is full: others have asked in vain
                    client = stack.enter_context(connect(path))
                    client.sendall(question.encode() + b"\n")
                    received[path] = bytearray()
                    selector.register(client, selectors.EVENT_READ, path)
                continue
            del answers[path]
        while selector.get_map() and (left := end - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                assert isinstance(key.fileobj, socket.socket)
                with contextlib.suppress(OSError):
                    if piece := key.fileobj.recv(_PIECE):
                        received[key.data] += piece
                        continue
                selector.unregister(key.fileobj)
                with contextlib.suppress(ValueError):
                    answers[key.data] = json.loads(received[key.data])
    return answers


def _silence(pid: int) -> str:
    try:
        state = stat_of(pid)[0]
    except (OSError, IndexError):
        return _STATES["Z"]
    return _STATES.get(state, "does not answer: it keeps Python's lock, or is busy")


__all__ = ["Rank", "ask"]
