"""Server of a process's socket: one thread, which sleeps until the socket is asked."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path

from gradientflow.blocked_signals import signals_blocked

from .folder import connect, listen

_SECONDS = 2.0  # time that a client has to ask, and to read the answer
_LONGEST = 4096  # bytes of a question
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class Server:
    """A socket and the thread that answers there, with the process's life.

    In the thread, `answer` gets a question of one line, and `pause` does other work and returns the seconds after which
    it is to be called again.
    """

    def __init__(self, path: Path, answer: Callable[[str], bytes], pause: Callable[[], float | None]) -> None:
        self.path = path
        self._answer = answer
        self._pause = pause
        self._socket = listen(path)
        with signals_blocked():
            threading.Thread(target=self._serve, name="gradientflow watch", daemon=True).start()

    def rename(self, name: str) -> None:
        """Give the file another name, in the same folder."""
        with contextlib.suppress(OSError):
            self.path = self.path if self.path.name == name else self.path.rename(self.path.with_name(name))

    def close(self) -> None:
        """Remove the file, and the folder after its last file; the thread ends with the process."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
            self.path.parent.rmdir()

    def wake(self) -> None:
        """Let the thread call `pause` now."""
        with contextlib.suppress(OSError):
            connect(self.path).close()

    def forget(self) -> None:
        """Leave the socket to the parent process, in a process that was forked."""
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                self._socket.settimeout(self._pause())
                client, _ = self._socket.accept()
            except TimeoutError:
                continue
            except OSError:  # out of descriptors, or closed in a fork
                if self._socket.fileno() < 0:
                    return
                threading.Event().wait(_SECONDS)
                continue
            with client, contextlib.suppress(OSError):
                client.settimeout(_SECONDS)
                if user_of(client) == os.geteuid():
                    client.sendall(self._answer(_question(client)))


def user_of(client: socket.socket) -> int:
    """Return the user whose process has connected."""
    told = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(told)[1])


def _question(client: socket.socket) -> str:
    asked = b""
    while not asked.endswith(b"\n") and len(asked) < _LONGEST and (more := client.recv(_LONGEST)):
        asked += more
    return asked.decode(errors="replace").strip()


__all__ = ["Server", "user_of"]
