"""The network interface that leads to other hosts of a job, and its count of sent bytes, for every contestant."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from gradientflow.addresses import interface_addresses, usual_addresses

from .objects import from_all

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator

_SENT_FIELD = 8  # field in a line of /proc/net/dev, after the name


class Traffic:
    """The counter of the interface that leads from this host to other hosts."""

    def __init__(self, comm: Communicator) -> None:
        host = socket.gethostname()
        hosts = from_all(comm, host)
        found = interface_to_others() if len(set(hosts)) > 1 else None
        self._interface = found[0] if found is not None else None
        self._counts_here = hosts.index(host) == comm.rank  # one rank of each host counts
        self.is_known: bool = all(from_all(comm, self._interface is not None))

    def sent(self) -> int:
        """Give the bytes sent so far; 0 if another rank of this host counts them, or they are unknown."""
        if not self.is_known or not self._counts_here or self._interface is None:
            return 0
        sent: int = bytes_sent_through(self._interface)
        return sent


def interface_to_others() -> tuple[str, str] | None:
    """Name the interface that leads to other hosts, and its address; None if it cannot be determined.

    It is the interface of ``GLOO_SOCKET_IFNAME``, of the host name's address, or of the default route.
    """
    addresses = interface_addresses()
    wanted = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    if wanted in addresses:
        return wanted, addresses[wanted]
    names = {address: name for name, address in addresses.items() if not address.startswith("127.")}
    for address in usual_addresses() if not wanted else ():
        if address in names:
            return names[address], address
    return None


def bytes_sent_through(interface: str) -> int:
    """Give the bytes that this host has sent through an interface, headers included."""
    # /sys is no alternative: in a container it can show the interfaces of the machine.
    for line in Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines():
        name, _, fields = line.partition(":")
        if name.strip() == interface:
            return int(fields.split()[_SENT_FIELD])
    raise OSError(f"there is no network interface {interface}")
