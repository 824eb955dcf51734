"""Folders with the sockets of ranks. Only their user can enter them."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_RUNTIME = "XDG_RUNTIME_DIR"
_SUFFIX = ".sock"
_LONGEST = 107  # bytes of a socket's path
_NEW_SECONDS = 5.0  # age of a file before which its process may not listen yet


class SocketName(NamedTuple):
    """Name of a rank's socket, which tells enough of a rank that gives no answer."""

    job: str
    rank: int
    size: int
    pid: int

    def __str__(self) -> str:
        """Return the name of the file."""
        return "-".join(map(str, self)) + _SUFFIX

    @classmethod
    def read(cls, text: str) -> SocketName | None:
        """Return the name that a file's name means; None for other files."""
        job, *numbers = text.removesuffix(_SUFFIX).split("-")
        if not text.endswith(_SUFFIX) or len(numbers) != 3 or not all(each.isdecimal() for each in numbers):
            return None
        return cls(job, *map(int, numbers))


def own_folder() -> Path | None:
    """Return the folder for sockets of this process, made if needed; None if no folder is safe from other users."""
    for folder in _preferred():
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            if _is_private(folder):
                return folder
    return None


def sockets() -> Iterator[tuple[Path, SocketName]]:
    """Yield the sockets of this user's ranks on this machine, including left-over files of killed processes."""
    folders = _preferred()
    if not os.environ.get(_RUNTIME):  # as in a session of cron, or of a batch system
        folders.append(Path(f"/run/user/{os.geteuid()}/gradientflow"))
    for folder in folders:
        with contextlib.suppress(OSError):
            for path in sorted(folder.iterdir()) if _is_private(folder) else ():
                if (name := SocketName.read(path.name)) is not None:
                    yield path, name


def connect(path: Path) -> socket.socket:
    """Connect to a socket without waiting; remove the file if its process has ended.

    Raises
    ------
    OSError
        If no process listens there.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        with _reachable(path) as address:
            made.connect(address)
    except OSError as error:
        made.close()
        with contextlib.suppress(OSError):
            if isinstance(error, ConnectionRefusedError) and time.time() - path.stat().st_mtime > _NEW_SECONDS:
                path.unlink()
        raise
    return made


def listen(path: Path) -> socket.socket:
    """Make a socket at which this user alone can connect."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _reachable(path) as address:
            made.bind(address)
        path.chmod(0o600)
        made.listen()
    except OSError:
        made.close()
        raise
    return made


@contextlib.contextmanager
def _reachable(path: Path) -> Iterator[str]:
    """Yield a path that is short enough for a socket."""
    if len(os.fsencode(path)) <= _LONGEST:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _preferred() -> list[Path]:
    runtime = Path(os.environ.get(_RUNTIME) or "/")
    with contextlib.suppress(OSError):
        if runtime != Path("/") and runtime.stat().st_uid == os.geteuid():  # after sudo, it is another user's
            return [runtime / "gradientflow", *_temporary()]
    return _temporary()


def _temporary() -> list[Path]:
    return [Path(tempfile.gettempdir(), f"gradientflow-watch-{os.geteuid()}")]


def _is_private(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


__all__ = ["SocketName", "connect", "listen", "own_folder", "sockets"]
