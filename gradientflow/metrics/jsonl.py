"""Metrics in a file, one JSON object a line."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

from gradientflow.errors import ArgumentError

from .registry import Source, Values


class JsonLines:
    """A file of this rank, which replaces an earlier file of its name; see `file_of_rank`."""

    def __init__(self, name: str, rank: int) -> None:
        self._path = file_of_rank(name, rank)
        try:
            self._file = self._path.open("w", encoding="utf-8")
        except OSError as error:
            raise ArgumentError(f"GRADIENTFLOW_METRICS: {self._path} cannot be written: {error}") from error

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


def file_of_rank(name: str, rank: int) -> Path:
    """Return the path of a rank's file: of run.jsonl run.rank0.jsonl, or with the rank in place of ``{rank}``."""
    if "{rank}" in name:
        return Path(name.replace("{rank}", str(rank)))
    path = Path(name)
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


__all__ = ["JsonLines", "file_of_rank"]
