"""Readers of ranks, numbers of ranks and addresses in environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gradientflow.errors import ArgumentError

Variables = Mapping[str, str]

_HIGHEST_PORT = 65535


class RankAndSize(NamedTuple):
    """Rank of a process, and number of ranks."""

    rank: int
    size: int


def read_number(variables: Variables, name: str) -> int | None:
    """Return the number in a variable; None if it is unset or empty.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the value is no number of 0 or more.
    """
    text = variables.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()):
        raise ArgumentError(f"{name} is {text!r}: it is a number of 0 or more")
    return int(text)


def read_place(variables: Variables, rank_name: str, size_name: str) -> RankAndSize | None:
    """Return the rank and size in two variables; None if neither is set.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If only one is set, a value is no number, or there is no such rank.
    """
    rank, size = read_number(variables, rank_name), read_number(variables, size_name)
    if rank is None and size is None:
        return None
    if rank is None or size is None:
        given, missing = (size_name, rank_name) if rank is None else (rank_name, size_name)
        raise ArgumentError(f"{given} is {variables[given]}, but {missing} is not set: both are needed, or neither")
    return checked_place(rank, size, rank_name, size_name)


def checked_place(rank: int, size: int, rank_name: str, size_name: str) -> RankAndSize:
    """Return a `RankAndSize` after checking that there is such a rank; the names are for the error."""
    if size < 1:
        raise ArgumentError(f"{size_name} is {size}: a job has at least one rank")
    if not 0 <= rank < size:
        raise ArgumentError(f"{rank_name} is {rank} and {size_name} is {size}: ranks are 0 to {size - 1}")
    return RankAndSize(rank, size)


def read_lenient(variables: Variables, name: str) -> int | None:
    """Return the number in a variable that other programs set in any form; None if it holds no number."""
    text = variables.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else None


def read_port(text: str, what: str) -> int:
    """Return a port number; `what` names it in the error."""
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= _HIGHEST_PORT):
        raise ArgumentError(f"{what} is {text!r}: a port is a number from 1 to {_HIGHEST_PORT}")
    return int(text)


def split_address(text: str, what: str) -> tuple[str, int]:
    """Split ``host:port``, or ``[host]:port`` with an IPv6 address; `what` names it in the error."""
    host, _, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not host:
        message = f"{what} is {text!r}: an address is host:port, such as 10.0.0.1:29400 or [fe80::1%eth0]:29400"
        raise ArgumentError(message)
    return host, read_port(port, f"the port of {what}")


def join_address(host: str, port: int) -> str:
    """Return an address in the form that `split_address` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
