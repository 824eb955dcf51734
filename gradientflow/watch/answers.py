"""Answers of a rank to questions at its socket, in JSON."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import traceback
from pathlib import Path

from gradientflow import recorder
from gradientflow.annotations import JsonObject
from gradientflow.recorder.entries import is_ours

from . import facts
from .communicators import Communicators


def answer(question: str, job: str, communicators: Communicators) -> bytes:
    """Return the answer to ``status``, ``stacks`` or ``dump PATH``; an entry ``error`` names what went wrong."""
    word, _, rest = question.partition(" ")
    try:
        if word == "status":
            said = status(job, communicators)
        elif word == "stacks":
            said = {**status(job, communicators), "stacks": stacks()}
        elif word == "dump":
            path = os.path.join(rest, f"rank{communicators.place()[0]}.jsonl")
            recorder.dump(path)
            said = {"file": path}
        else:
            said = {"error": f"a question is status, stacks or dump PATH, not {question!r}"}
    except Exception as error:  # a program that is ending may be in any state
        said = {"error": f"{type(error).__name__}: {error}"}
    return json.dumps(said, default=float).encode()


def status(job: str, communicators: Communicators) -> JsonObject:
    """Return the state of this process: its place in the job, its last calls, its figures."""
    rank, size = communicators.place()
    figures = facts.figures()
    if (sent := communicators.bytes_sent()) is not None:
        figures["bytes"] = sent  # of everything, not of the training alone
    return {
        "job": job,
        "rank": rank,
        "size": size,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "program": program(),
        "age": communicators.age,
        "at": time.monotonic(),
        "memory": memory(os.getpid()),
        "calls": facts.calls(),
        "figures": figures,
    }


def stacks() -> list[JsonObject]:
    """Return the Python stack of each thread but this one, the main thread first, the innermost frame last."""
    names = {each.ident: each.name for each in threading.enumerate()}
    main = threading.main_thread().ident
    frames = [(ident, frame) for ident, frame in sys._current_frames().items() if ident != threading.get_ident()]
    return [
        {
            "thread": names.get(ident, str(ident)),
            "frames": [
                {
                    "file": each.filename,
                    "line": each.lineno,
                    "function": each.name,
                    "code": each.line,
                    "is_ours": is_ours(each.filename),
                }
                for each in traceback.extract_stack(frame)
            ],
        }
        for ident, frame in sorted(frames, key=lambda each: each[0] != main)
    ]


def memory(pid: int) -> int:
    """Return the bytes of memory that a process occupies; 0 if unknown."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGESIZE")
    except (OSError, ValueError, IndexError):
        return 0


def program() -> str:
    """Return the name of the program that this process runs."""
    path = Path(sys.argv[0] if sys.argv else "")
    return (path.parent.name if path.name == "__main__.py" else path.name) or "python"


__all__ = ["answer", "memory", "program", "stacks", "status"]
