"""The cores of this machine: how many a process may use, and which of them each rank gets.

Launchers load this file by its path: it imports nothing of the package.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Set
from pathlib import Path

BINDINGS = ("auto", "none", "core", "numa")

_ROOT = Path("/")


def cores(usable: Set[int] | None = None, root: Path = _ROOT) -> int:
    """Count the cores this process may use: physical ones, within its affinity and its control group's quota.

    Parameters
    ----------
    usable : set of int, optional
        The processors, in the system's numbers, to which its affinity limits it; by default those of this process.
    root : Path
        Where the system's files are.
    """
    return max(1, min([len(_physical_cores(_usable(usable), root)), *_quotas(root)]))


def share(binding: str, place: int, ranks: int, usable: Set[int] | None = None, root: Path = _ROOT) -> Set[int]:
    """Return the processors that a rank gets, in the system's numbers.

    Parameters
    ----------
    binding : {"auto", "none", "core", "numa"}
        With "auto", the cores are divided among the ranks if there is one for each; with "core" each gets one of its
        share, with "numa" all of one NUMA node or of several. With more ranks than cores or nodes, "core" and "numa"
        have neighbours share one. The processors of a core, its hyper-threads, stay together.
    place, ranks : int
        The number of the rank among those on this machine, and how many these are.
    usable, root
        As for `cores`.
    """
    processors = _usable(usable)
    if binding == "none" or (binding == "auto" and cores(processors, root) < ranks):
        return processors
    parts = _numa_nodes(processors, root) if binding == "numa" else _physical_cores(processors, root)
    first, last = (len(parts) * each // ranks for each in (place, place + 1))
    mine = parts[first : first + 1 if binding == "core" else max(last, first + 1)]
    return frozenset().union(*mine)


def bind(processors: Set[int]) -> None:
    """Bind this process to processors; one that is bound to them already stays as it is."""
    if processors != os.sched_getaffinity(0):
        os.sched_setaffinity(0, processors)


def _usable(given: Set[int] | None) -> Set[int]:
    return os.sched_getaffinity(0) if given is None else given


def _physical_cores(processors: Set[int], root: Path) -> list[Set[int]]:
    """Divide processors into cores, those of a NUMA node one after the other."""
    found: dict[str, set[int]] = {}
    for number in sorted(processors):
        siblings = _read(root / f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
        found.setdefault(siblings or str(number), set()).add(number)
    nodes = {number: at for at, node in enumerate(_numa_nodes(processors, root)) for number in node}
    return sorted(found.values(), key=lambda core: (nodes[min(core)], min(core)))


def _numa_nodes(processors: Set[int], root: Path) -> list[Set[int]]:
    """Divide processors into those of each NUMA node; a node without any is left out."""
    lists = root.glob("sys/devices/system/node/node[0-9]*/cpulist")
    nodes = [processors & set(_numbers(_read(path))) for path in lists]
    rest = processors - frozenset().union(*nodes)
    return sorted(filter(None, [*nodes, rest]), key=min)


def _numbers(text: str) -> Iterator[int]:
    """Read a list such as ``0-3,8``."""
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _quotas(root: Path) -> Iterator[int]:
    """Read how many cores' time this process's control group, and each above it, may take."""
    for folder in _control_groups(root):
        quota, _, period = _read(folder / "cpu.max").partition(" ")  # of version 2
        if not quota:
            quota, period = (_read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        if quota.isdecimal() and period.isdecimal():
            yield math.ceil(int(quota) / int(period))


def _control_groups(root: Path) -> Iterator[Path]:
    """Give the folders of this process's control group of each version, and of all above it."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, own = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / controllers
        group = top / own.lstrip("/")
        yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(top))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
