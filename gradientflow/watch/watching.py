"""The socket of this process, which stands for all its communicators."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading

from gradientflow._location import core
from gradientflow.recorder.job_name import job_name

from .at_store import AnswersAtStore
from .communicators import Communicators, Watched
from .folder import SocketName, own_folder
from .server import Server

_ATTEMPTS = 3


class Watching:
    """The communicators of a process, and the server of its socket once there is one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._communicators = Communicators()
        self._server: Server | None = None
        self._at_store: AnswersAtStore | None = None
        self._meet = ""
        self._job = ""
        self._is_registered = False

    def show(self, communicator: Watched) -> None:
        """Let others of this user ask for the state of this process, which belongs to these ranks.

        The first call starts a thread that answers at a socket.
        """
        with self._lock:
            self._communicators.add(communicator)
            self._job = self._job or job_name(os.environ, self._meet)
            name = str(SocketName(self._job, *self._communicators.place(), os.getpid()))
            if self._server is not None:
                self._server.rename(name)
                return
            if not self._is_registered:
                self._is_registered = True
                os.register_at_fork(after_in_child=self._after_fork)
                atexit.register(self.close)
            for _ in range(_ATTEMPTS):  # another process may remove the folder when it ends
                with contextlib.suppress(OSError, RuntimeError):  # a job runs unwatched if it has to
                    if (folder := own_folder()) is not None:
                        self._server = Server(folder / name, self._answer, self._pause)
                    return

    def answer_at(self, store: core.Store, prefix: str, meet: str) -> None:
        """Let users of other hosts ask through the store at `meet`, where the ranks meet."""
        self._meet = meet
        if isinstance(store, core.TcpStore):
            self._at_store = AnswersAtStore(store, prefix)
            if self._server is not None:
                self._server.wake()

    def _pause(self) -> float | None:
        at_store = self._at_store
        return None if at_store is None else at_store.look(self._communicators.place()[0], self._answer)

    def close(self) -> None:
        """Remove the socket."""
        if self._server is not None:
            self._server.close()

    def _answer(self, question: str) -> bytes:
        from .answers import answer  # imported by the first question

        return answer(question, self._job, self._communicators)

    def _after_fork(self) -> None:
        if self._server is not None:
            self._server.forget()
        self._lock, self._server, self._at_store = threading.Lock(), None, None
        self._communicators, self._meet, self._job = Communicators(), "", ""


_watching = Watching()


def show(communicator: Watched) -> None:
    """Let others of this user ask for the state of this process. Costs no time per call of the communicator."""
    _watching.show(communicator)


def answer_at(store: core.Store, prefix: str, meet: str) -> None:
    """Let users of other hosts ask for the state of this process, through the store at `meet`, where its ranks meet."""
    _watching.answer_at(store, prefix, meet)


__all__ = ["Watching", "answer_at", "show"]
