"""The last calls of this process, as dicts."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import time
from types import CodeType, FrameType, TracebackType
from typing import Any

from gradientflow._location import PACKAGE, core
from gradientflow.annotations import JsonObject

POOL = ".pool"  # end of the identity of a communicator's pools
_START = -1  # peer of an entry that marks the start of a compiled program

_OURS = tuple({str(PACKAGE) + os.sep, os.path.dirname(os.path.dirname(__file__)) + os.sep})  # with and without links
_LIBRARY = sysconfig.get_path("stdlib") + os.sep
_PACKAGES = f"-packages{os.sep}"
_FRAMEWORKS = tuple(f"{_PACKAGES}{name}{os.sep}" for name in ("torch", "jax", "jaxlib", "numpy"))


def is_ours(file: str) -> bool:
    """Tell whether code of this file belongs to this package."""
    return file.startswith(_OURS)


def is_users(file: str) -> bool:
    """Tell whether code of this file belongs to the user's program: not to this package, Python, PyTorch or JAX."""
    if is_ours(file) or file.startswith(("<frozen ", "<shim>")) or any(part in file for part in _FRAMEWORKS):
        return False
    return _PACKAGES in file or not file.startswith(_LIBRARY)


def calls(last: int = 1000) -> list[JsonObject]:
    """Return the last calls of this process, the oldest first.

    Parameters
    ----------
    last : int
        Largest number of calls; at most 1,024 are kept.

    Returns
    -------
    list of dict
        ``call`` counts the calls of the process and the starts of JAX programs, ``sequence`` the collective calls of
        the communicator (0 for others). ``state`` is "under way", "ended" or "failed", ``seconds`` the time since the
        beginning. ``file``, ``line`` and ``function`` are those of the user's program; None if a call comes from
        elsewhere.
    """
    now = time.monotonic()
    sources = {source["number"]: source for source in core.recorder.sources()}
    kept = located_entries()
    return [_described(entry, sources.get(entry["source"]), now) for entry in kept[max(0, len(kept) - last) :]]


def note_start(*, overlaps: bool) -> None:
    """Mark the line at which this thread starts a program, whose calls have no line; `overlaps`: earlier ones run."""
    core.recorder.note_message(True, _START, overlaps)


def located_entries() -> list[JsonObject]:
    """Return the core's entries, the oldest first; calls in compiled programs get the line that started these.

    A call that may belong to programs of several lines stays without a line.
    """
    found: list[JsonObject] = []
    # Where the programs started that may run now: at first unknown.
    sites: set[tuple[CodeType | None, int | None]] = {(None, None)}
    for entry in core.recorder.entries():
        if entry["form"] == "send" and entry["peer"] == _START:
            sites = {*(sites if entry["count"] else ()), (entry["code"], entry["line"])}
            continue
        if entry["code"] is None and entry["kind"] == "allreduce" and len(sites) == 1:
            entry["code"], entry["line"] = next(iter(sites))
        found.append(entry)
    return found


def pending() -> list[JsonObject]:
    """Return the calls under way, the oldest first, as `calls` does."""
    return [call for call in calls() if call["state"] == "under way"]


def communicators() -> list[JsonObject]:
    """Return the communicators of this process, each also for its pools: identity, name, place, and members."""
    return [
        {"communicator": source["identity"] + part, **{key: source[key] for key in keys}}
        for keys in (("name", "rank", "size", "members", "job", "job_rank"),)
        for source in core.recorder.sources()
        for part in ("", POOL)
    ]


def identity(entry: JsonObject, source: JsonObject) -> str:
    """Return the name of the sequence that counts a call: its communicator, or the iterations of pools there."""
    return str(source["identity"]) + POOL * (entry["form"] in ("ready", "wait"))


def stack(frame: FrameType | None) -> list[JsonObject]:
    """Return the places of the user's program in a stack, the outermost first."""
    places: list[JsonObject] = []
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            places.append(place(frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return places[::-1]


def stack_of(trace: TracebackType | None) -> list[JsonObject]:
    """Return the places of the user's program in the traceback of an exception, the outermost first."""
    places: list[JsonObject] = []
    while trace is not None:
        if is_users(trace.tb_frame.f_code.co_filename):
            places.append(place(trace.tb_frame.f_code, trace.tb_lineno))
        trace = trace.tb_next
    return places


def main_stack() -> list[JsonObject]:
    """Return the places of the user's program in which the main thread is, the outermost first."""
    return stack(sys._current_frames().get(threading.main_thread().ident or 0))


def place(code: CodeType | None, line: int | None) -> JsonObject:
    """Return a place in a program as ``file``, ``line`` and ``function``."""
    if code is None:
        return {"file": None, "line": None, "function": None}
    return {"file": code.co_filename, "line": line, "function": code.co_name}


def _described(entry: dict[str, Any], source: dict[str, Any] | None, now: float) -> JsonObject:
    return {
        "call": entry["number"],
        "communicator": identity(entry, source) if source else None,
        **{key: entry[key] for key in ("sequence", "form", "kind", "text", "dtype", "count", "op", "peer", "state")},
        "seconds": round(now - entry["began"], 3),
        **place(entry["code"], entry["line"]),
    }
