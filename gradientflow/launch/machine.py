"""CPU cores of this machine: their number for a process, and their division among ranks.

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
    """Return the number of physical cores that this process may use, by its affinity and control group's quota.

    Parameters
    ----------
    usable : set of int, optional
        Processors of the affinity, in the system's numbers; by default this process's affinity.
    root : Path
        Root folder of the system's files.
    """
    return max(1, min([len(_physical_cores(_usable(usable), root)), *_quotas(root)]))


def share(binding: str, place: int, ranks: int, usable: Set[int] | None = None, root: Path = _ROOT) -> Set[int]:
    """Return the processors of a rank, in the system's numbers.

    Parameters
    ----------
    binding : {"auto", "none", "core", "numa"}
        "none" gives each rank all processors. "auto" divides the cores among the ranks if there are enough, else acts
        as "none". "core" gives each rank one core of its share, and "numa" all of one or more NUMA nodes. With more
        ranks than cores or nodes, "core" and "numa" let neighbors share. The processors of a core (hyper-threads) stay
        together.
    place, ranks : int
        Number of the rank on this machine, and number of ranks there.
    usable, root
        See `cores`.
    """
    processors = _usable(usable)
    if binding == "none" or (binding == "auto" and cores(processors, root) < ranks):
        return processors
    parts = _numa_nodes(processors, root) if binding == "numa" else _physical_cores(processors, root)
    first, last = (len(parts) * each // ranks for each in (place, place + 1))
    mine = parts[first : first + 1 if binding == "core" else max(last, first + 1)]
    return frozenset().union(*mine)


def bind(processors: Set[int]) -> None:
    """Bind this process to processors, unless it is bound to them already."""
    if processors != os.sched_getaffinity(0):
        os.sched_setaffinity(0, processors)


def _usable(given: Set[int] | None) -> Set[int]:
    return os.sched_getaffinity(0) if given is None else given


def _physical_cores(processors: Set[int], root: Path) -> list[Set[int]]:
    """Return processors grouped into cores, ordered by NUMA node."""
    found: dict[str, set[int]] = {}
    for number in sorted(processors):
        siblings = _read(root / f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
        found.setdefault(siblings or str(number), set()).add(number)
    nodes = {number: at for at, node in enumerate(_numa_nodes(processors, root)) for number in node}
    return sorted(found.values(), key=lambda core: (nodes[min(core)], min(core)))


def _numa_nodes(processors: Set[int], root: Path) -> list[Set[int]]:
    """Return processors grouped by NUMA node; nodes without any are left out."""
    lists = root.glob("sys/devices/system/node/node[0-9]*/cpulist")
    nodes = [processors & set(_numbers(_read(path))) for path in lists]
    rest = processors - frozenset().union(*nodes)
    return sorted(filter(None, [*nodes, rest]), key=min)


def _numbers(text: str) -> Iterator[int]:
    """Yield the numbers of a list such as ``0-3,8``."""
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _quotas(root: Path) -> Iterator[int]:
    """Yield the CPU quotas, in cores, of this process's control group and of each group above it."""
    for folder in _control_groups(root):
        quota, _, period = _read(folder / "cpu.max").partition(" ")  # version 2 of control groups
        if not quota:
            quota, period = (_read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        if quota.isdecimal() and period.isdecimal():
            yield math.ceil(int(quota) / int(period))


def _control_groups(root: Path) -> Iterator[Path]:
    """Yield the folders of this process's control groups, of both versions, and of all groups above them."""
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
