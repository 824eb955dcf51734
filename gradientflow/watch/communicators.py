"""The communicators of this process, and its place in the job."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Protocol


class Watched(Protocol):
    """A communicator, as far as its process tells about it."""

    rank: int
    size: int

    @property
    def closed(self) -> bool:
        """True if it has been closed."""

    @property
    def bytes_sent(self) -> int | None:
        """Bytes sent so far, if they are counted."""


class Communicators:
    """A set of communicators, which it does not keep alive. Any thread may call."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._all: weakref.WeakSet[Watched] = weakref.WeakSet()
        self._place = (0, 0)

    @property
    def age(self) -> float:
        """Seconds since this set was made."""
        return time.monotonic() - self._began

    def add(self, communicator: Watched) -> None:
        """Add a communicator."""
        with self._lock:
            self._all.add(communicator)

    def open(self) -> list[Watched]:
        """Return the communicators that have not been closed."""
        with self._lock:
            return [each for each in self._all if not each.closed]

    def place(self) -> tuple[int, int]:
        """Return rank and size of the open communicator with most ranks; without any, of the last one before."""
        found = max(self.open(), key=lambda each: each.size, default=None)
        if found is not None:
            self._place = found.rank, found.size
        return self._place

    def bytes_sent(self) -> int | None:
        """Return the bytes that open communicators have sent; None if some are not counted."""
        counts = [each.bytes_sent for each in self.open()]
        return None if None in counts else sum(each or 0 for each in counts)


__all__ = ["Communicators", "Watched"]
