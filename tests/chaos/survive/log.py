"""What a process does, in a file, where it is still found when the process has been killed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

Entries = list[list[Any]]  # each begins with its kind


class ContradictionError(Exception):
    """Logs do not fit to each other."""


class Log:
    """The log of this process.

    Parameters
    ----------
    folder : Path
        Where it is.
    own : int
        The number of this process.
    """

    def __init__(self, folder: Path, own: int) -> None:
        self._file = os.open(folder / f"log.{own}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def write(self, *entry: object) -> None:
        """Add an entry."""
        os.write(self._file, f"{json.dumps(entry)}\n".encode())


def read(folder: Path) -> dict[int, Entries]:
    """Return the logs of all processes, by their numbers."""
    return {
        int(path.suffix.removeprefix(".")): [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        for path in folder.glob("log.*")
    }


def wrap(kind: Any, name: str, wrapped: Callable[..., Any]) -> None:
    """Let a method of a class be called by another function, which gets it as its first argument."""
    original = getattr(kind, name)
    setattr(kind, name, lambda self, *arguments: wrapped(original, self, *arguments))


__all__ = ["ContradictionError", "Entries", "Log", "read", "wrap"]
