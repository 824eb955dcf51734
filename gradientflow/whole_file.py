"""Files that are written completely or not at all."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape, glob
from typing import BinaryIO

_STALE_SECONDS = 3600.0  # age after which an unchanged draft belongs to no process any more


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a draft file that replaces `path` once all of it is on disk.

    Until then, `path` does not change. After an error, which is raised, `path` is unchanged and no other file is left.
    If the file system allows it, the draft has no name, so that a killed process leaves none. Elsewhere, for example on
    NFS, the draft of a killed process stays until a later call for the same path, at least an hour later, removes it.

    Parameters
    ----------
    path : path
        Path of the final file.

    Yields
    ------
    file
        Draft to write to.
    """
    draft = f"{os.fspath(path)}.{os.getpid()}.part"
    _remove_stale_drafts(path)
    try:
        with _open_draft(draft) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if file.name != draft:
                with suppress(FileNotFoundError):  # left by a killed process with the same number
                    os.unlink(draft)
                # With src_dir_fd, otherwise unused, Python calls linkat(2), which follows the link.
                os.link(f"/proc/self/fd/{file.fileno()}", draft, src_dir_fd=file.fileno())
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise


def _open_draft(draft: str) -> BinaryIO:
    """Open a new file without a name in the folder of a draft; if that fails, open the draft itself."""
    with suppress(OSError):
        return open(os.open(os.path.dirname(draft) or ".", os.O_TMPFILE | os.O_WRONLY, 0o666), "wb")
    return open(draft, "wb")


def _remove_stale_drafts(path: str | os.PathLike[str]) -> None:
    for draft in glob(f"{escape(os.fspath(path))}.*.part"):
        with suppress(OSError):
            if time.time() - os.stat(draft).st_mtime > _STALE_SECONDS:
                os.unlink(draft)


__all__ = ["whole_file"]
