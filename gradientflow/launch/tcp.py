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
from typing import Any

from gradientflow.arguments import checked_int, checked_list
from gradientflow.meeting import SERVERS
from gradientflow.meeting.variables import join_address

from .command import module_command
from .environment import master_of_environment
from .hosts import check_count
from .ports import free_port

GRACE_SECONDS = 30.0  # as torchrun has it

_THIS_MACHINE = ""
_LONGEST = 1 << 16  # word of a command line; Linux takes 128 KiB

# The launcher, which reads from its input what to start; in place of the last word it takes that itself, in parts.
LAUNCHER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("processes.py")), "-")


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
    label : bool
        Whether each line that a rank writes begins with its rank.
    bind : str
        Which cores of its host a rank gets, as `share` takes it.
    min_ranks : int, optional
        With how many ranks the job goes on when others have failed; by default it needs all of them.
    restarts : int
        How often a process that has failed is started again.
    keeper : str
        The address of this machine, as ranks reach it, if its launcher is to keep the store where they meet, since the
        job may go on without rank 0.
    preload : sequence of str
        Modules to be imported once on each host, in a process from which the ranks are forked. The program is a command
        line of this Python.
    grace : float
        How many seconds ranks have for ending after a signal from outside has asked them to.
    """

    program: Sequence[str]
    hosts: Sequence[str]
    servers: int = 0
    meet: str = "127.0.0.1"
    agent: Sequence[str] = ()
    label: bool = False
    bind: str = "none"
    min_ranks: int | None = None
    restarts: int = 0
    keeper: str = ""
    preload: Sequence[str] = ()
    grace: float = GRACE_SECONDS

    @property
    def needed(self) -> int:
        """How many ranks have to be left for the job to go on."""
        return len(self.hosts) if self.min_ranks is None else self.min_ranks


def job_here(
    ranks: int, program: Sequence[str], servers: int = 0, *, label: bool = False, bind: str = "none"
) -> TcpJob:
    """Describe a job of this machine.

    Parameters
    ----------
    ranks : int
        How many ranks to start.
    program : sequence of str
        The program and its arguments.
    servers : int, default 0
        How many ranks to start beside them that only serve.
    label : bool, default False
        Whether each line that a rank writes begins with its rank.
    bind : str, default "none"
        Which cores a rank gets, as `share` takes it.
    """
    ranks, program = checked_int("ranks", ranks), checked_list("program", program, "texts")
    check_count(ranks, None)
    check_count(ranks + checked_int("servers", servers), None)
    return TcpJob(program, [_THIS_MACHINE] * (ranks + servers), servers, label=label, bind=bind)


def tcp_command(job: TcpJob, **more: Any) -> list[str]:
    """Write the command line that starts a job.

    Parameters
    ----------
    job : TcpJob
        The job.
    **more
        What else the launcher is told: ``parent``, the number of the process with which it ends; ``report``, a file for
        what it would say of ranks that have failed.

    Returns
    -------
    list of str
        The command of a launcher, whose exit status is that of the rank since whose failure fewer are left than the job
        needs; 0 if that does not happen.
    """
    environment = tcp_variables(job)
    told = {"environment": environment, "label": job.label, "bind": job.bind, "needed": job.needed}
    told |= {
        "grace": job.grace,
        "preload": list(job.preload),
        "command": list(job.program),
        "members": rank_members(job),
        **kept_store(job, environment),
    }
    return launcher_command({**more, **told})


def kept_store(job: TcpJob, variables: Mapping[str, str]) -> dict[str, Any]:
    """Describe to the launcher how often to start members again, and the process that keeps the store meanwhile."""
    if job.min_ranks is None:
        return {}
    return {
        "restarts": job.restarts,
        "keeper": module_command(f"{__package__}.keeper", [variables["GRADIENTFLOW_MEET"]]),
    }


def launcher_command(told: Mapping[str, Any]) -> list[str]:
    """Write the command line of the launcher, which is told what to start."""
    text = json.dumps(told)
    return [*LAUNCHER[:-1], *(text[start : start + _LONGEST] for start in range(0, len(text), _LONGEST))]


def rank_members(job: TcpJob) -> list[dict[str, Any]]:
    """Describe the ranks of a job to the launcher, by rank."""
    members: list[dict[str, Any]] = []
    started: dict[str, int] = {}
    for rank, host in enumerate(job.hosts):
        command = {"command": [*job.agent, host, shlex.join(job.program)]} if job.agent else {}
        members.append({"rank": rank, "local": started.get(host, 0), "of": job.hosts.count(host), **command})
        started[host] = started.get(host, 0) + 1
    return members


def tcp_variables(job: TcpJob) -> dict[str, str]:
    """Give the variables that all ranks of a job share: where they meet, and those that PyTorch reads.

    Every rank finds GRADIENTFLOW_RANK, RANK, LOCAL_RANK and LOCAL_WORLD_SIZE beside them, and the token of the job,
    which the launcher draws.
    """
    size = len(job.hosts)
    return {
        "GRADIENTFLOW_TRANSPORT": "tcp",
        "GRADIENTFLOW_MEET": join_address(job.keeper or job.meet, free_port()),
        "GRADIENTFLOW_SIZE": str(size),
        "WORLD_SIZE": str(size - job.servers),
        SERVERS: str(job.servers),  # those of an outer job are not of this one
        "MASTER_ADDR": master_of_environment("MASTER_ADDR") or job.meet,
        "MASTER_PORT": master_of_environment("MASTER_PORT") or str(free_port()),
    }


def command_lines(job: TcpJob) -> list[str]:
    """Write what a shell would start each rank with, by rank."""
    variables, lines = {**tcp_variables(job), "GRADIENTFLOW_TOKEN": secrets.token_hex(32)}, []
    for rank, host in enumerate(job.hosts):
        own = {**variables, "GRADIENTFLOW_RANK": str(rank), "RANK": str(rank)}
        line = " ".join([*(f"{name}={shlex.quote(value)}" for name, value in own.items()), shlex.join(job.program)])
        there = f"cd {shlex.quote(os.getcwd())} && env {line}"
        lines.append(line if host == _THIS_MACHINE else f"ssh {host} {shlex.quote(there)}")
    return lines
