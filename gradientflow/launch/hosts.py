"""Hosts of a job, and the number of ranks that each takes."""

from __future__ import annotations

import re
from pathlib import Path

from gradientflow.arguments import checked_instance

from .environment import in_allocation
from .launcher import LaunchError
from .machine import cores

_NAME = r"((?:[\w.-]+@)?(?:[\w.-]+|\[[\da-fA-F:.]+\]))"
_HOST = re.compile(rf"{_NAME}(?::([1-9]\d{{0,5}}))?", re.ASCII)
_HOSTFILE_LINE = re.compile(
    rf"{_NAME}(?:(?::|\s+slots\s*=\s*)([1-9]\d{{0,5}}))?(?:\s+max[_-]slots\s*=\s*\d+)?", re.ASCII
)
_MOST_RANKS_PER_CORE = 256
_MOST_RANKS = 2**31 - 1  # MPI counts ranks in an int


def read_hostfile(path: str) -> str:
    """Read the hosts of a job from a file.

    Parameters
    ----------
    path : str
        Path of the file. Each line is ``name``, ``name:slots`` or ``name slots=N``; a name without a number has one
        slot, and the slots of repeated names add up. A name may be ``user@name``, or an IPv6 address in brackets. ``#``
        begins a comment.

    Returns
    -------
    str
        The hosts, as ``name:slots,name:slots``.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"the hostfile {path} cannot be read: {error}") from error
    found: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = _HOSTFILE_LINE.fullmatch(text)
        if match is None:
            raise LaunchError(f"line {number} of {path} has to be name, name:slots or name slots=N, not {text!r}")
        found[match[1]] = found.get(match[1], 0) + int(match[2] or 1)
    if not found:
        raise LaunchError(f"the hostfile {path} names no host")
    return ",".join(f"{name}:{count}" for name, count in found.items())


def slots(hosts: str | None = None) -> int:
    """Return the number of ranks that can run without sharing a core: this machine's cores, or the slots of `hosts`."""
    if hosts is None:
        return cores()
    return sum(slots_of(hosts).values())


def slots_of(hosts: str) -> dict[str, int]:
    """Return the slots of each host in ``name:slots,name:slots``; the slots of repeated names add up."""
    found: dict[str, int] = {}
    for host in checked_instance("hosts", hosts, str).split(","):
        match = _HOST.fullmatch(host)
        if match is None:
            raise LaunchError(f"--hosts takes name:slots,name:slots (for example a:2,me@b:2,[::1]:2), not {hosts!r}")
        found[match[1]] = found.get(match[1], 0) + int(match[2] or 1)
    return found


def without_user(host: str) -> str:
    """Return the name or address of a host that may be given as ``user@name`` or, for IPv6, in brackets."""
    return host.rpartition("@")[2].strip("[]")


def ranks_to_start(ranks: int | None, hosts: str | None, servers: int = 0) -> int:
    """Return the number of ranks that a command starts: `ranks`, or else one for each slot that servers leave."""
    if ranks is not None:
        return ranks
    if hosts is None:
        raise LaunchError("say how many ranks to start, for example -n 2; with --hosts, as many as there are slots")
    left = slots(hosts) - servers
    if left < 1:
        raise LaunchError(f"{servers} servers leave none of the {slots(hosts)} slots to ranks")
    return left


def hosts_of_ranks(hosts: str, ranks: int, servers: int = 0) -> list[str]:
    """Return the host of each rank, in the order of MPI's launchers: host by host; with servers, in turn.

    Addresses have no brackets, as ssh takes them.
    """
    left = {re.sub(r"[\[\]]", "", host): count for host, count in slots_of(hosts).items()}
    if servers == 0:
        places = [name for name, count in left.items() for _ in range(count)]
    else:
        places = [name for turn in range(max(left.values())) for name, count in left.items() if turn < count]
    check_count(ranks + servers, hosts)
    if ranks + servers > len(places):
        raise LaunchError(f"{ranks + servers} ranks are too many for the {len(places)} slots of the hosts")
    return places[: ranks + servers]


def check_count(ranks: int, hosts: str | None) -> None:
    """Raise if there are no ranks, more than the hosts' slots, too many for the cores, or more than MPI can count."""
    if ranks < 1:
        raise LaunchError(f"a job needs at least one rank, not {ranks}")
    if in_allocation():
        if ranks > _MOST_RANKS:
            raise LaunchError(f"MPI knows at most {_MOST_RANKS} ranks, not {ranks}")
        return
    count = slots(hosts)
    if hosts is not None and ranks > count:
        raise LaunchError(
            f"{ranks} ranks are too many for the {count} slot{'s'[: count > 1]} of the hosts: name more hosts, or say "
            "how many ranks one takes, as in name:4"
        )
    if ranks > count * _MOST_RANKS_PER_CORE:
        raise LaunchError(
            f"{ranks} ranks are too many for the {count} core{'s'[: count > 1]} of this machine: at most "
            f"{count * _MOST_RANKS_PER_CORE}, {_MOST_RANKS_PER_CORE} for each"
        )


def check_min_ranks(min_ranks: int, ranks: int) -> None:
    """Raise if a job needs no rank, or more ranks than it has."""
    if not 1 <= min_ranks <= ranks:
        raise LaunchError(f"--min-ranks takes a number from 1 to {ranks}, the ranks of the job, not {min_ranks}")
