"""The environment of a measurement: the machine, the libraries, the command. No host names."""

from __future__ import annotations

import contextlib
import platform
import shlex
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gradientflow.annotations import JsonObject
from gradientflow.launch import cores
from gradientflow.machine import cpu_model, memory_limit, mpi_library, package_version

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator
    from gradientflow.machine_load import Load

    from .hosts import Hosts


def describe_environment(
    comm: Communicator, arguments: list[str], hosts: Hosts, load: Load | None = None
) -> dict[str, object]:
    """Describe this run from the view of rank 0: the "environment" of a result file.

    `arguments` are the command line without the program's name.
    """
    mpi = sys.modules.get("mpi4py.MPI")  # absent in a job over TCP, where importing it would start MPI
    facts = comm.describe()
    environment: JsonObject = {
        "cpu": cpu_model(),
        "cores": cores(frozenset(facts["cores"])),
        "memory_GiB": round(memory_limit() / 2**30, 1),
        "ranks": comm.size,
        "nodes": comm.nodes,
        "ranks_on_this_node": comm.local_size,
        "transport": facts["transport"],
        "transport_remark": facts["transport_remark"],
        "hosts": hosts.number,
        "ranks_per_host": hosts.ranks_per_host,
        "ranks_on_this_machine": hosts.ranks_on_this_machine,
        "link_rate": hosts.rate or None,
        "tcp_congestion_control": congestion_control() or None,
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "mpi": mpi_library(mpi.Get_library_version()) if mpi is not None else "no MPI",
        "gradientflow": package_version("gradientflow") or "unknown",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(["gradientflow", *arguments]),
    }
    if load is not None:
        environment |= {"processors_taken_by_others": load.others, "processors_stolen": load.stolen}
        if warning := load.remark(hosts.ranks_on_this_machine):
            environment["warning"] = warning  # kept here so that it travels with the figures
    return environment


def environment_lines(environment: JsonObject) -> list[str]:
    """Describe the environment of figures in a few lines, with a final remark if ranks had to share cores."""
    ranks = environment["ranks_on_this_machine"]
    lines = [
        f"{environment['cpu']}, {_plural(environment['cores'], 'core')}, {environment['memory_GiB']} GiB; "
        f"{_plural(environment['ranks'], 'rank')} on {_place(environment)}",
        f"GradientFlow {environment['gradientflow']}, {environment['mpi']}, Python {environment['python']}, "
        f"NumPy {environment['numpy']}, {environment['kernel']}",
    ]
    if environment["hosts"] > 1 and (control := environment.get("tcp_congestion_control")):
        lines[1] += f", TCP under {control}"
    if environment["nodes"] > 1 and (transport := environment.get("transport")):
        remark = environment["transport_remark"]
        lines[1] += f", the job's messages over {transport.upper()}{f' ({remark})' if remark else ''}"
    if "gpu" in environment:
        gpus = f"{_plural(environment['gpus'], 'GPU')}, {environment['gpu']}"
        lines.insert(1, f"{gpus}; built with CUDA {environment['cuda']}")
    if ranks > environment["cores"]:
        lines.append(
            f"{_plural(ranks, 'rank')} share {_plural(environment['cores'], 'core')}: every time here includes waiting "
            "for a turn."
        )
    return lines


def congestion_control() -> str:
    """Name the algorithm that decides how fast TCP sends by default; empty if the kernel does not tell."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text(encoding="utf-8").strip()
    return ""


def readable(date: str) -> str:
    """Write a date of `describe_environment` in readable form."""
    return date.replace("T", " ").replace("+00:00", " UTC")


def _place(environment: JsonObject) -> str:
    """Name the nodes, and also the hosts if there are several or they differ from the nodes."""
    nodes, hosts = environment["nodes"], environment["hosts"]
    if nodes == hosts == 1:
        return "1 node"
    place = f"{_plural(nodes, 'node')}: {_plural(hosts, 'host')} with {_plural(environment['ranks_per_host'], 'rank')}"
    if hosts > 1:
        place += " each"
    return f"{place} at {environment['link_rate']}" if environment["link_rate"] else place


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
