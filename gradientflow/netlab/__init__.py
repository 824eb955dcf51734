"""Emulated hosts on one machine, with links of a given rate and delay."""

from .lab import Netlab, end_leftovers
from .link import RATE_VARIABLE, NetlabError, bytes_per_second, parse_delay, parse_link_down

__all__ = [
    "RATE_VARIABLE",
    "Netlab",
    "NetlabError",
    "bytes_per_second",
    "end_leftovers",
    "parse_delay",
    "parse_link_down",
]
