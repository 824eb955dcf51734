"""The command lines that start jobs without MPI, and the variables that their ranks find."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradientflow.arguments import checked_int, checked_list
from gradientflow.meeting import SERVERS

from .hosts import check_count
from .ports import free_port

_PROCESSES = Path(__file__).with_name("processes.py")
_THIS_MACHINE = ""


@dataclass(frozen=True)
class TcpJob:
    """What a job over TCP consists of.

    Attributes
    ----------
    program : sequence of str
        The program and its arguments.
    hosts : sequence of str
        The host of each rank, by rank; an empty name is this machine.
    servers : int
        How many of the ranks, the last ones, only serve.
    meet : str
        The host where they meet: that of rank 0, as the others reach it.
    agent : sequence of str
        What starts a command on a host, given before the host's name; empty on this machine.
    """

    program: Sequence[str]
    hosts: Sequence[str]
    servers: int = 0
    meet: str = "127.0.0.1"
    agent: Sequence[str] = ()


def job_here(ranks: int, program: Sequence[str], servers: int = 0) -> TcpJob:
    """Describe a job of this machine.

    Parameters
    ----------
    ranks : int
        How many ranks to start.
    program : sequence of str
        The program and its arguments.
    servers : int, default 0
        How many ranks to start beside them that only serve.
    """
    ranks, program = checked_int("ranks", ranks), checked_list("program", program, "texts")
    check_count(ranks, None)
    check_count(ranks + checked_int("servers", servers), None)
    return TcpJob(program, [_THIS_MACHINE] * (ranks + servers), servers)


def tcp_command(job: TcpJob, variables: Mapping[str, str] | None = None) -> list[str]:
    """Write the command line that starts a job.

    Parameters
    ----------
    job : TcpJob
        The job.
    variables : mapping of str to str, optional
        Those of its ranks; by default new ones, as `tcp_variables` makes them.

    Returns
    -------
    list of str
        The command of a launcher, whose exit status is that of the first rank that fails.
    """
    told = {
        "program": list(job.program),
        "agent": list(job.agent),
        "hosts": list(job.hosts),
        "environment": dict(tcp_variables(job) if variables is None else variables),
        "of_hosts": {host: _threads(job.hosts.count(host)) for host in set(job.hosts)},
    }
    return [sys.executable, "-I", "-S", str(_PROCESSES), json.dumps(told)]


def tcp_variables(job: TcpJob) -> dict[str, str]:
    """Give the variables that all ranks of a job share: where they meet, the token, and those that PyTorch reads.

    Every rank finds GRADIENTFLOW_RANK, RANK, LOCAL_RANK and LOCAL_WORLD_SIZE beside them.
    """
    size = len(job.hosts)
    variables = {
        "GRADIENTFLOW_TRANSPORT": "tcp",
        "GRADIENTFLOW_MEET": f"{job.meet}:{free_port()}",
        "GRADIENTFLOW_SIZE": str(size),
        "GRADIENTFLOW_TOKEN": secrets.token_hex(32),
        "WORLD_SIZE": str(size - job.servers),
        "MASTER_ADDR": os.environ.get("MASTER_ADDR") or job.meet,
        "MASTER_PORT": os.environ.get("MASTER_PORT") or str(free_port()),
    }
    return {**variables, SERVERS: str(job.servers)} if job.servers > 0 else variables


def command_lines(job: TcpJob) -> list[str]:
    """Write what a shell would start each rank with, by rank."""
    variables = tcp_variables(job)
    return [
        " ".join([*(f"{name}={shlex.quote(value)}" for name, value in own.items()), shlex.join(job.program)])
        for own in ({**variables, "GRADIENTFLOW_RANK": str(rank), "RANK": str(rank)} for rank in range(len(job.hosts)))
    ]


def _threads(ranks: int) -> dict[str, str]:
    """Divide the cores among the ranks of a host: else each would start a thread of OpenMP and BLAS for each core."""
    if ranks < 2 or os.environ.get("OMP_NUM_THREADS"):
        return {}
    return {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // ranks))}
