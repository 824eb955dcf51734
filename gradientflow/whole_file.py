"""Files that are written completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` once all of it is on the disk.

    Until then, `path` stays as it was. After an error, which is raised, it does so too, and no other file is left.

    Parameters
    ----------
    path : path
        Where it is to be.

    Yields
    ------
    file
        To be written to.
    """
    draft = f"{os.fspath(path)}.{os.getpid()}.part"
    try:
        with open(draft, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise


__all__ = ["whole_file"]
