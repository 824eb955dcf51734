"""Ethernet switch with a delay, which joins the hosts of a netlab. It works without the kernel's netem.

This is a program of its own, which netlab starts: ``switch.py SECONDS PORT...``. It makes a TAP device for each port,
reports this, and forwards frames until its standard input ends. A frame goes to the port from which its receiver last
sent a frame, or to all other ports if this port is unknown. The devices take segments that the kernel has not split, so
a frame has up to 64 KiB.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

_TUNSETIFF = 0x400454CA
_TUNSETOFFLOAD = 0x400454D0
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_OFFLOADS = 0x01 | 0x02 | 0x04  # checksums, and segments of TCP over IPv4 and IPv6
_HEADER = 10  # bytes before a frame: struct virtio_net_hdr
_MOST = _HEADER + (1 << 16) + 64  # largest frame with its header, in bytes
_AT_ONCE = 64  # largest number of frames read from a port before the next port


def _tap(name: str) -> int:
    port = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(port, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR))
    fcntl.ioctl(port, _TUNSETOFFLOAD, _OFFLOADS)
    return port


def _send(ports: list[int], frame: bytes) -> None:
    for port in ports:
        with contextlib.suppress(OSError):  # the device is down or full: the frame is lost, as in a network
            os.write(port, frame)


def main(seconds: float, names: list[str]) -> None:
    """Forward each frame `seconds` after its arrival."""
    ports = [_tap(name) for name in names]
    print("made", flush=True)
    heard_at: dict[bytes, int] = {}
    under_way: deque[tuple[float, list[int], bytes]] = deque()
    stop = sys.stdin.fileno()
    while True:
        wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        ready, _, _ = select.select([stop, *ports], [], [], wait)
        if stop in ready:
            return
        for port in ready:
            for _ in range(_AT_ONCE):
                try:
                    frame = os.read(port, _MOST)
                except OSError:
                    break
                receiver, sender = frame[_HEADER : _HEADER + 6], frame[_HEADER + 6 : _HEADER + 12]
                heard_at[sender] = port
                known = heard_at.get(receiver)
                to = [each for each in ports if each != port] if known is None else [known]
                under_way.append((time.monotonic() + seconds, to, frame))
        now = time.monotonic()
        while under_way and under_way[0][0] <= now:
            _send(*under_way.popleft()[1:])


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
