"""Counting what hosts send each other, for every contestant alike."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from .interfaces import bytes_sent_through, interface_to_others

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator


class Traffic:
    """The counter of the interface that leads from this host to the others.

    Parameters
    ----------
    comm : Communicator
        The ranks; all of them make one together.
    """

    def __init__(self, comm: Communicator) -> None:
        host = socket.gethostname()
        hosts = comm.mpi.allgather(host)
        found = interface_to_others() if len(set(hosts)) > 1 else None
        self._interface = found[0] if found is not None else None
        self._counts_here = hosts.index(host) == comm.rank  # one rank of each host
        self.is_known: bool = all(comm.mpi.allgather(self._interface is not None))

    def sent(self) -> int:
        """Give the bytes sent so far; 0 where another rank of this host gives them, or they are not known."""
        if not self.is_known or not self._counts_here or self._interface is None:
            return 0
        sent: int = bytes_sent_through(self._interface)
        return sent
