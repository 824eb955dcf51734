"""The network interface that leads to the other hosts of a job, and what it has sent."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

_SIOCGIFADDR = 0x8915  # ask the kernel for the address of an interface
_SENT_FIELD = 8  # of a line of /proc/net/dev, after the name


def interface_to_others() -> tuple[str, str] | None:
    """Name the interface that leads to other hosts, and its address; None where it is not clear.

    It is the one that ``GLOO_SOCKET_IFNAME`` names, or that the host's name leads to, or that of the default route.
    """
    addresses = _addresses()
    wanted = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    if wanted in addresses:
        return wanted, addresses[wanted]
    names = {address: name for name, address in addresses.items() if not address.startswith("127.")}
    for address in _candidates() if not wanted else ():
        if address in names:
            return names[address], address
    return None


def bytes_sent_through(interface: str) -> int:
    """Give the bytes that this host has sent through an interface, headers included."""
    # Not from /sys, which in a container can show the interfaces of the machine.
    for line in Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines():
        name, _, fields = line.partition(":")
        if name.strip() == interface:
            return int(fields.split()[_SENT_FIELD])
    raise OSError(f"there is no network interface {interface}")


def _candidates() -> Iterator[str]:
    """Give what may be this host's address among others; its name may lead nowhere, or to itself only."""
    with contextlib.suppress(OSError):
        yield socket.gethostbyname(socket.gethostname())
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing, but chooses an interface
        yield probe.getsockname()[0]


def _addresses() -> dict[str, str]:
    """Give the address of every interface that has one."""
    addresses = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                addresses[name] = socket.inet_ntoa(answer[20:24])
    return addresses
