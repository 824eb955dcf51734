"""Metrics in a file, one JSON object a line."""

from __future__ import annotations

import fcntl
import json
import math
import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from gradientflow.errors import ArgumentError

from .registry import Source, Values


class JsonLines:
    """A file of this rank, which replaces an earlier file of its name; see `file_of_rank`."""

    def __init__(self, name: str, rank: int) -> None:
        path = file_of_rank(name, rank)
        try:
            self._path, self._file = _opened(path)
        except OSError as error:
            raise ArgumentError(f"GRADIENTFLOW_METRICS: {path} cannot be written: {error}") from error

    def write(self, source: Source, values: Values) -> None:
        """Write a line, with null for values that are not finite."""
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        line = {"time": time.time(), "rank": source.rank, "kind": source.kind, "source": source.name, **finite}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __str__(self) -> str:
        """Return the path of the file."""
        return str(self._path)


def _opened(path: Path) -> tuple[Path, TextIO]:
    """Open a file, emptied; while a process writes to it, one with a number, such as run.rank2.1.jsonl.

    A rank that comes back has the rank of a process that is still there, and had another rank before.
    """
    free, number = path, 0
    while True:
        file = free.open("a", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            number += 1
            free = path.with_stem(f"{path.stem}.{number}")
            continue
        except OSError:
            pass  # a file system without locks
        with suppress(OSError):  # a pipe has no length
            file.truncate(0)
        return free, file


def file_of_rank(name: str, rank: int) -> Path:
    """Return the path of a rank's file: of run.jsonl run.rank0.jsonl, or with the rank in place of ``{rank}``."""
    if "{rank}" in name:
        return Path(name.replace("{rank}", str(rank)))
    path = Path(name)
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


__all__ = ["JsonLines", "file_of_rank"]
