"""Parsers of the options of a host's link: rate, delay, and time at which it goes down."""

from __future__ import annotations

import re

from gradientflow.errors import GradientFlowError

RATE_VARIABLE = "NETLAB_RATE"  # set by ``gradientflow netlab``, or by hand if the rate of the links is known

_RATE = re.compile(r"(\d+(?:\.\d+)?)([kmgt]?)bit", re.ASCII)
_DELAY = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s)", re.ASCII)
_LINK_DOWN = re.compile(r"(?:host)?(\d{1,3})@(\d+(?:\.\d+)?)", re.ASCII)
_LONGEST_DELAY = 10.0
_SLOWEST, _FASTEST = 1.0, 100e12 / 8  # bytes per second, the unit of tc, which counts a burst's bytes in 32 bits

# After a pause a link sends a burst without limit. A large burst makes small messages faster than the link. A small
# burst makes fast links slower than their rate, because the kernel's timers are late by up to 0.1 ms. If the burst is
# below 64 KiB, the size of its largest packets, the kernel splits every packet, at ten times the processor time.
_BURST_SECONDS = 128e-6
_LEAST_BURST = 70_000


class NetlabError(GradientFlowError):
    """Hosts cannot be created; the message is one sentence for the user."""


def bytes_per_second(rate: str) -> float | None:
    """Return the bytes per second of a rate in the notation of ``tc``.

    Parameters
    ----------
    rate : str
        The given text, such as ``200mbit`` or ``1gbit``.

    Returns
    -------
    float or None
        Bytes per second; None for any other text.
    """
    match = _RATE.fullmatch(rate)
    return float(match[1]) * 1000.0 ** " kmgt".index(match[2] or " ") / 8 if match else None


def link_limit(rate: str) -> str | None:
    """Return the limit of a link as arguments of ``tc ... tbf``.

    Parameters
    ----------
    rate : str
        The given text: a rate in the notation of ``tc``, or ``none``.

    Returns
    -------
    str or None
        The arguments; None without a limit.
    """
    if rate == "none":
        return None
    speed = bytes_per_second(rate)
    if speed is None or not _SLOWEST <= speed <= _FASTEST:
        raise NetlabError(f"--rate takes a rate such as 200mbit, from 8bit to 100tbit, or none, not {rate!r}")
    return f"rate {rate} burst {max(_LEAST_BURST, round(speed * _BURST_SECONDS))} latency 100ms"


def parse_delay(text: str) -> float:
    """Return the seconds of a time such as ``5ms``.

    Parameters
    ----------
    text : str
        The given text: a number and ``us``, ``ms`` or ``s``.

    Returns
    -------
    float
        Seconds.
    """
    match = _DELAY.fullmatch(text)
    if match is None or (seconds := float(match[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[match[2]]) > _LONGEST_DELAY:
        raise NetlabError(f"--delay takes a time such as 5ms, up to {_LONGEST_DELAY:g}s, not {text!r}")
    return seconds


def parse_link_down(text: str, hosts: int) -> tuple[int, float]:
    """Return the host and time in ``HOST@SECONDS``, such as ``host1@2.5`` or ``1@2.5``.

    Parameters
    ----------
    text : str
        The given text.
    hosts : int
        Number of hosts.

    Returns
    -------
    tuple of int and float
        Number of the host, and seconds.
    """
    match = _LINK_DOWN.fullmatch(text)
    if match is None or int(match[1]) >= hosts:
        last = f" (hosts are host0 to host{hosts - 1})" if match else ""
        raise NetlabError(f"--link-down takes HOST@SECONDS, such as host0@2.5, not {text!r}{last}")
    return int(match[1]), float(match[2])
