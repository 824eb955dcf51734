"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` once all of it is on the disk.

    Until then, and after an error, which goes on, what is at `path` stays as it was, and nothing is left beside it.

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
