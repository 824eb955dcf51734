"""Background transfer of state to ranks that join, before they take part."""

from __future__ import annotations

import contextlib
import threading

from gradientflow.communicator import Communicator
from gradientflow.errors import GradientFlowError
from gradientflow.plain import Plain, pack

from .handover import receive, send


class StatePrefetch:
    """Transfer of plain values from rank 0 of a communicator to its joining ranks, in threads of their own.

    No other call of `send` or `recv` is made on the communicator meanwhile. A joining rank that misses the values,
    because a rank was lost, gets them later, like every late rank.
    """

    def __init__(self) -> None:
        self._copying: list[threading.Thread] = []
        self._giving: list[threading.Thread] = []

    def begin(self, comm: Communicator, changing: object, lasting: object) -> None:
        """Begin to give values to the joining ranks, the last ranks of a communicator.

        Parameters
        ----------
        comm : Communicator
            Communicator with the joining ranks.
        changing : plain value
            Value sent as it is now. Its arrays must not change before `wait_for_copies` has returned.
        lasting : plain value
            Value that does not change until the joining ranks take part: its arrays are not copied.
        """
        self.end()
        parts, copies = (pack(changing, "the state"), pack(lasting, "the state")), list[Plain]()
        copying = threading.Thread(target=lambda: copies.extend(each.copy() for each in parts[0]), daemon=True)

        def give(joiner: int) -> None:
            copying.join()
            with contextlib.suppress(GradientFlowError):
                send(comm, copies, joiner)
                send(comm, parts[1], joiner)

        joiners = range(max(1, len(comm.recovered_from or ())), comm.size)
        self._copying = [copying]
        self._giving = [threading.Thread(target=give, args=(each,), daemon=True) for each in joiners]
        for thread in (*self._copying, *self._giving):
            thread.start()

    def wait_for_copies(self) -> None:
        """Wait until the arrays that may change have been copied."""
        while self._copying:
            self._copying.pop().join()

    def end(self) -> None:
        """Wait until all joining ranks have the values, or `comm` is closed."""
        while self._giving:
            self._giving.pop().join()


def take_prefetched(comm: Communicator) -> tuple[Plain, Plain]:
    """Return the values that rank 0 gives: `changing` and `lasting`."""
    changing = receive(comm, 0)
    return changing, receive(comm, 0)


__all__ = ["StatePrefetch", "take_prefetched"]
