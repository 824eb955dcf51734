"""The hosts of a job's ranks, and the rate of the links between them."""

from __future__ import annotations

import os
import socket
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gradientflow.machine_load import this_machine
from gradientflow.netlab import RATE_VARIABLE, bytes_per_second
from gradientflow.wires import wires

from .case import COLLECTIVES, Case
from .objects import from_all

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator


@dataclass(frozen=True)
class Hosts:
    """The hosts of a job's ranks, from the view of one rank.

    Attributes
    ----------
    number : int
        The number of hosts.
    ranks_per_host : int
        The number of ranks on the largest host.
    machine : str
        The identity of this rank's machine.
    ranks_on_this_machine : int
        The number of ranks that share its processors, possibly on several hosts if hosts are containers or namespaces.
    rate : str
        The sending rate of each host, such as ``1gbit``; empty if unknown.
    """

    number: int
    ranks_per_host: int
    machine: str
    ranks_on_this_machine: int
    rate: str

    def link_seconds(self, case: Case, wire: str) -> float | None:
        """Give the least time that the busiest host needs to send; None if it sends nothing, or its rate is unknown."""
        factor = COLLECTIVES[case.collective].host_factor(self.number, self.ranks_per_host)
        nbytes = case.count * (wires()[wire].element if wire in wires() else np.dtype(wire).itemsize) * factor
        return self.sending_seconds(nbytes / self.ranks_per_host)

    def sending_seconds(self, nbytes: float) -> float | None:
        """Give the least time in which the busiest host can send `nbytes` of each of its ranks to other hosts."""
        rate = bytes_per_second(self.rate)
        return None if rate is None or self.number == 1 or not nbytes else nbytes * self.ranks_per_host / rate


def find_hosts(comm: Communicator) -> Hosts:
    """Find the hosts of the ranks, from the view of this rank. Collective."""
    machine = this_machine()
    places = from_all(comm, (socket.gethostname(), machine))
    ranks = Counter(name for name, _ in places)
    return Hosts(
        number=len(ranks),
        ranks_per_host=max(ranks.values()),
        machine=machine,
        ranks_on_this_machine=sum(other == machine for _, other in places),
        rate=os.environ.get(RATE_VARIABLE, "").replace("none", ""),
    )
