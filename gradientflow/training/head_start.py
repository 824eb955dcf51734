"""What newcomers get before they take part, while the others go on."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from gradientflow.communicator import Communicator
from gradientflow.errors import GradientFlowError
from gradientflow.plain import pack

from .handover import receive, send


class HeadStart:
    """Gives plain values to the newcomers of a communicator, from rank 0 of it, in threads of their own.

    Nobody else calls `send` or `recv` of the communicator meanwhile. A newcomer that lacks them in the end, because a
    rank was lost, gets them like everyone who is behind.

    Parameters
    ----------
    comm : Communicator
        With newcomers, behind the others.
    changing : plain value
        Is sent as it is now. Its arrays must not change before `wait_for_copies` has returned.
    lasting : plain value
        Does not change until the newcomers take part: its arrays are not copied.
    """

    def __init__(self, comm: Communicator, changing: Any, lasting: Any) -> None:
        parts, copies = (pack(changing, "the state"), pack(lasting, "the state")), list[Any]()
        self._copying = threading.Thread(target=lambda: copies.extend(each.copy() for each in parts[0]), daemon=True)

        def give(newcomer: int) -> None:
            self._copying.join()
            with contextlib.suppress(GradientFlowError):
                send(comm, copies, newcomer)
                send(comm, parts[1], newcomer)

        newcomers = range(max(1, len(comm.recovered_from or ())), comm.size)
        self._threads = [threading.Thread(target=give, args=(each,), daemon=True) for each in newcomers]
        for thread in (self._copying, *self._threads):
            thread.start()

    def wait_for_copies(self) -> None:
        """Wait until what is to be sent has been copied, where it changes."""
        self._copying.join()

    def end(self) -> None:
        """Wait until all have got it, or `comm` is closed."""
        for thread in self._threads:
            thread.join()


def take_head_start(comm: Communicator) -> tuple[Any, Any]:
    """Return the values that rank 0 gives."""
    changing = receive(comm, 0)
    return changing, receive(comm, 0)


__all__ = ["HeadStart", "take_head_start"]
