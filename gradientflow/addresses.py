"""Network addresses of this host."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
from collections.abc import Iterator

_SIOCGIFADDR = 0x8915  # ioctl that returns the address of an interface


def usual_addresses() -> Iterator[str]:
    """Yield the address of this host's name (possibly the loopback address), then that of its default route."""
    with contextlib.suppress(OSError, UnicodeError):  # a name of 64 characters is too long for a lookup
        yield socket.gethostbyname(socket.gethostname())
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing, but chooses an interface
        yield probe.getsockname()[0]


def interface_addresses() -> dict[str, str]:
    """Return the address of each network interface that has one, by the name of the interface."""
    addresses = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                addresses[name] = socket.inet_ntoa(answer[20:24])
    return addresses
