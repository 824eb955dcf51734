"""Files that only this user can read."""

from __future__ import annotations

import os
from pathlib import Path


def write_privately(path: Path, content: bytes) -> None:
    """Write a whole file, or nothing. An earlier file of its name is replaced, and no link is followed."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(content)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


__all__ = ["write_privately"]
