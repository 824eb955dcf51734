"""Background transfer of state to ranks that join, before they take part."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from gradientflow.communicator import Communicator
from gradientflow.errors import GradientFlowError
from gradientflow.plain import pack

from .handover import receive, send


class StatePrefetch:
    """Gives plain values to the joining ranks of a communicator, from rank 0 of it, in threads of their own.

    No other call of `send` or `recv` is made on the communicator meanwhile. A joining rank that lacks them in the end,
    because a rank was lost, gets them like every rank that is behind.
    """

    def __init__(self) -> None:
        self._copying: list[threading.Thread] = []
        self._giving: list[threading.Thread] = []

    def begin(self, comm: Communicator, changing: Any, lasting: Any) -> None:
        """Begin to give values to the joining ranks, which come behind the others.

        Parameters
        ----------
        comm : Communicator
            With the joining ranks.
        changing : plain value
            Is sent as it is now. Its arrays must not change before `wait_for_copies` has returned.
        lasting : plain value
            Does not change until the joining ranks take part: its arrays are not copied.
        """
        self.end()
        parts, copies = (pack(changing, "the state"), pack(lasting, "the state")), list[Any]()
        copying = threading.Thread(target=lambda: copies.extend(each.copy() for each in parts[0]), daemon=True)

        def give(newcomer: int) -> None:
            copying.join()
            with contextlib.suppress(GradientFlowError):
                send(comm, copies, newcomer)
                send(comm, parts[1], newcomer)

        newcomers = range(max(1, len(comm.recovered_from or ())), comm.size)
        self._copying = [copying]
        self._giving = [threading.Thread(target=give, args=(each,), daemon=True) for each in newcomers]
        for thread in (*self._copying, *self._giving):
            thread.start()

    def wait_for_copies(self) -> None:
        """Wait until what is to be sent has been copied, where it changes."""
        while self._copying:
            self._copying.pop().join()

    def end(self) -> None:
        """Wait until all have got it, or `comm` is closed."""
        while self._giving:
            self._giving.pop().join()


def take_prefetched(comm: Communicator) -> tuple[Any, Any]:
    """Return the values that rank 0 gives."""
    changing = receive(comm, 0)
    return changing, receive(comm, 0)


__all__ = ["StatePrefetch", "take_prefetched"]
