"""Files that are written completely or not at all."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape, glob
from typing import BinaryIO

_STALE_SECONDS = 3600.0  # after which a draft that nothing was written to belongs to no process any more


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` once all of it is on the disk.

    Until then, `path` stays as it was. After an error, which is raised, it does so too, and no other file is left. The
    draft has no name where the file system can do that, so that a process that is killed leaves none. Elsewhere, for
    example on NFS, its draft stays until a later call for the same path, an hour afterwards or more, removes it.

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
    _remove_stale_drafts(path)
    try:
        with _open_draft(draft) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if file.name != draft:
                with suppress(FileNotFoundError):  # of a killed process with the same number
                    os.unlink(draft)
                # With a folder given, which is not used, Python calls linkat(2), which follows the link.
                os.link(f"/proc/self/fd/{file.fileno()}", draft, src_dir_fd=file.fileno())
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise


def _open_draft(draft: str) -> BinaryIO:
    """Open a new file without a name in the folder of a draft, or else the draft."""
    with suppress(OSError):
        return open(os.open(os.path.dirname(draft) or ".", os.O_TMPFILE | os.O_WRONLY, 0o666), "wb")
    return open(draft, "wb")


def _remove_stale_drafts(path: str | os.PathLike[str]) -> None:
    for draft in glob(f"{escape(os.fspath(path))}.*.part"):
        with suppress(OSError):
            if time.time() - os.stat(draft).st_mtime > _STALE_SECONDS:
                os.unlink(draft)


__all__ = ["whole_file"]
