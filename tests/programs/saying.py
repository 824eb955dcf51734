"""What ranks say, to the terminal and to pytest."""

from __future__ import annotations

import json
import os


def say(*words: object) -> None:
    """Print a line, with one write, so that the lines of the ranks stay whole."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def tell(rank: int, **record: str) -> None:
    """Write what has become of a check, on rank 0, where pytest has asked for it."""
    if rank == 0 and (outcomes := os.environ.get("CHECKS_OUTCOMES")):
        with open(outcomes, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
