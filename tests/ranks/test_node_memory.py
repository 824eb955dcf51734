"""Large node memory: how much may be taken, and what ends a rank that is at it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gradientflow import _core

MACHINE, FREE = 64 << 30, 48 << 30
UNLIMITED = 9223372036854771712  # as version 1 says it
GIB = 1 << 30

V1 = "33 31 0:32 {top} {folder} rw,relatime shared:9 - cgroup cgroup rw,memory"
V2 = "38 31 0:38 {top} {folder} rw,relatime - cgroup2 cgroup2 rw"

Groups = Mapping[str, tuple[object, int, int]]  # folder: limit, used, and how much of this are files


def v1(folder: str = "/sys/fs/cgroup/memory", top: str = "/") -> str:
    return V1.format(top=top, folder=folder)


def v2(folder: str = "/sys/fs/cgroup", top: str = "/") -> str:
    return V2.format(top=top, folder=folder)


def make(root: Path, own: list[str], mounts: list[str], groups: Groups, *, unified: bool) -> str:
    """Make what the system shows of control groups, in a folder that stands for /."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(
        f"MemTotal: {MACHINE >> 10} kB\nMemFree: 1 kB\nMemAvailable: {FREE >> 10} kB\nHugePages_Total: 0\n"
    )
    (root / "proc/self/cgroup").write_text("".join(f"{line}\n" for line in own))
    (root / "proc/self/mountinfo").write_text(
        "".join(f"{line}\n" for line in ["22 1 8:1 / / rw - ext4 /dev/sda1 rw", *mounts])
    )
    limit_name, used_name = (
        ("memory.max", "memory.current") if unified else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    prefix = "" if unified else "total_"
    for folder, (limit, used, files) in groups.items():
        group = root / folder.lstrip("/")
        group.mkdir(parents=True, exist_ok=True)
        (group / limit_name).write_text(f"{limit}\n")
        (group / used_name).write_text(f"{used}\n")
        (group / "memory.stat").write_text(
            f"anon 5\n{prefix}inactive_file {files // 2}\n{prefix}active_file {files - files // 2}\nmapped_file 77\n"
        )
    return str(root)


@pytest.mark.parametrize(
    ("own", "mounts", "groups", "unified", "expected"),
    [
        pytest.param([], [], {}, True, (MACHINE, FREE), id="no groups"),
        pytest.param(["0::/"], [v2()], {"/sys/fs/cgroup": (8 * GIB, GIB, 0)}, True, (8 * GIB, 7 * GIB), id="2, own"),
        pytest.param(
            ["0::/job/step"],
            [v2()],
            {"/sys/fs/cgroup/job": (4 * GIB, 3 * GIB, 0), "/sys/fs/cgroup/job/step": ("max", GIB, 0)},
            True,
            (4 * GIB, GIB),
            id="2, above",
        ),
        pytest.param(
            ["0::/job/step"],
            [v2()],
            {
                "/sys/fs/cgroup/job": (4 * GIB, GIB, 0),
                "/sys/fs/cgroup/job/step": (9 * GIB, 8 * GIB, 0),
                "/sys/fs/cgroup/other": (GIB, GIB, 0),
            },
            True,
            (4 * GIB, GIB),
            id="2, the least of each",
        ),
        pytest.param(["0::/"], [v2()], {"/sys/fs/cgroup": ("max", GIB, 0)}, True, (MACHINE, FREE), id="2, no limit"),
        pytest.param(
            ["0::/"], [v2()], {"/sys/fs/cgroup": (8 * GIB, 8 * GIB, 6 * GIB)}, True, (8 * GIB, 6 * GIB), id="2, files"
        ),
        pytest.param(["0::/"], [v2()], {"/sys/fs/cgroup": (GIB, 2 * GIB, 0)}, True, (GIB, 0), id="2, more than full"),
        pytest.param(["0::/"], [v2()], {"/sys/fs/cgroup": (90 * GIB, 0, 0)}, True, (MACHINE, FREE), id="2, large"),
        pytest.param(
            ["0::/pod/job/step"],
            [v2("/mnt/my\\040groups", "/pod/job")],
            {"/mnt/my groups": (3 * GIB, GIB, 0), "/mnt/my groups/step": (4 * GIB, GIB, 0)},
            True,
            (3 * GIB, 2 * GIB),
            id="2, mounted from a group on",
        ),
        pytest.param(
            ["0::/seen/otherwise"],
            [v2(top="/pod")],
            {"/sys/fs/cgroup": (GIB, 0, 0)},
            True,
            (GIB, GIB),
            id="2, a container",
        ),
        pytest.param(
            ["9:cpu,cpuacct:/job", "4:memory:/job/step", "0::/"],
            ["32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu", v1(), v2("/sys/fs/cgroup/unified")],
            {
                "/sys/fs/cgroup/memory": (UNLIMITED, 20 * GIB, 0),
                "/sys/fs/cgroup/memory/job": (6 * GIB, 2 * GIB, GIB),
                "/sys/fs/cgroup/memory/job/step": (UNLIMITED, GIB, 0),
            },
            False,
            (6 * GIB, 5 * GIB),
            id="1, above",
        ),
        pytest.param(
            ["4:memory:/docker/abc"],
            [v1(top="/docker/abc")],
            {"/sys/fs/cgroup/memory": (2 * GIB, GIB, 0)},
            False,
            (2 * GIB, GIB),
            id="1, a container",
        ),
        pytest.param(["4:memory:/job"], ["nonsense", "- - -"], {}, False, (MACHINE, FREE), id="1, not to be seen"),
    ],
)
def test_the_least_limit_of_all_groups_counts(
    tmp_path: Path, own: list[str], mounts: list[str], groups: Groups, unified: bool, expected: tuple[int, int]
) -> None:
    assert _core.memory(make(tmp_path, own, mounts, groups, unified=unified)) == expected


def test_the_limits_of_this_process() -> None:
    total, available = _core.memory()
    assert 0 < available <= total


@pytest.mark.parametrize("program", ["interrupt", "calls"])
def test_a_signal_ends_the_work_on_large_memory(mpirun: Callable[..., Any], program: str) -> None:
    needed = 5 * GIB
    if _core.memory()[1] < needed:
        pytest.skip(f"needs {needed >> 30} GiB of memory")
    finished = mpirun(2, "node_memory", program, timeout=60)
    assert finished.stdout.count("as it should") == 2, finished.output


def test_memory_that_no_limit_allows(mpirun: Callable[..., Any]) -> None:
    finished = mpirun(2, "node_memory", "too_much", timeout=60)
    assert finished.stdout.count("as it should") == 2, finished.output
