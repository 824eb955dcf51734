"""Command lines that start jobs without MPI, and the variables of their ranks."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradientflow.annotations import JsonObject
from gradientflow.arguments import checked_int, checked_list
from gradientflow.meeting import SERVERS
from gradientflow.meeting.variables import join_address

from .command import module_command
from .environment import master_of_environment
from .hosts import check_count
from .ports import free_port

GRACE_SECONDS = 30.0  # the same as torchrun's

_THIS_MACHINE = ""
_LONGEST = 1 << 16  # longest word of a command line in bytes; Linux takes 128 KiB

# Command of the launcher. With the last word, "-", it reads its job from standard input; the job's text, in parts, can
# replace this word.
LAUNCHER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("processes.py")), "-")


@dataclass(frozen=True)
class TcpJob:
    """Description of a job over TCP.

    Attributes
    ----------
    program : sequence of str
        The program and its arguments.
    hosts : sequence of str
        Host of each rank, by rank; an empty name is this machine.
    servers : int
        Number of ranks that only serve: the last of the job.
    meet : str
        Address where the ranks meet: that of rank 0's host, by which all ranks reach it.
    agent : sequence of str
        Command that starts another command on a host, as ssh does; host and command are appended. If empty, the ranks
        are started on this machine.
    label : bool
        True to begin each output line with its rank.
    bind : str
        Binding of a rank to cores of its host, as `share` takes it.
    min_ranks : int, optional
        Least number of ranks with which the job continues after failures; by default it needs all.
    restarts : int
        Number of times that a failed process is restarted.
    store_address : str
        Address of this machine, as ranks reach it, if its launcher keeps the store where they meet. This is needed if
        the job may continue without rank 0.
    preload : sequence of str
        Modules that are imported once on each host, in a process that forks the ranks. The program must be a command
        line of this Python.
    grace : float
        Seconds that ranks have to end after a signal from outside asks them to.
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
    store_address: str = ""
    preload: Sequence[str] = ()
    grace: float = GRACE_SECONDS

    @property
    def needed(self) -> int:
        """Least number of ranks with which the job continues."""
        return len(self.hosts) if self.min_ranks is None else self.min_ranks


def job_here(
    ranks: int, program: Sequence[str], servers: int = 0, *, label: bool = False, bind: str = "none"
) -> TcpJob:
    """Return a job of this machine.

    Parameters
    ----------
    ranks : int
        Number of ranks to start.
    program : sequence of str
        The program and its arguments.
    servers : int, default 0
        Number of additional ranks that only serve.
    label : bool, default False
        True to begin each output line with its rank.
    bind : str, default "none"
        Binding of a rank to cores, as `share` takes it.
    """
    ranks, program = checked_int("ranks", ranks), checked_list("program", program, "texts")
    check_count(ranks, None)
    check_count(ranks + checked_int("servers", servers), None)
    return TcpJob(program, [_THIS_MACHINE] * (ranks + servers), servers, label=label, bind=bind)


def tcp_command(job: TcpJob, **more: object) -> list[str]:
    """Return the command line that starts a job.

    Parameters
    ----------
    job : TcpJob
        The job.
    **more
        Further entries for the launcher: ``parent``, the number of the process with which it ends; ``report``, a file
        for its reports of failed ranks.

    Returns
    -------
    list of str
        Command of a launcher. Its exit status is that of the rank whose failure left fewer ranks than the job needs, or
        else 0.
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


def kept_store(job: TcpJob, variables: Mapping[str, str]) -> JsonObject:
    """Return the launcher's entries for restarts: their number, and the command of the process that keeps the store."""
    if job.min_ranks is None:
        return {}
    return {
        "restarts": job.restarts,
        "store_server": module_command(f"{__package__}.store_server", [variables["GRADIENTFLOW_MEET"]]),
    }


def launcher_command(told: Mapping[str, object]) -> list[str]:
    """Return the command line of the launcher with its job."""
    text = json.dumps(told)
    return [*LAUNCHER[:-1], *(text[start : start + _LONGEST] for start in range(0, len(text), _LONGEST))]


def rank_members(job: TcpJob) -> list[JsonObject]:
    """Return the launcher's entries for the ranks of a job, by rank."""
    members: list[dict[str, object]] = []
    started: dict[str, int] = {}
    for rank, host in enumerate(job.hosts):
        command = {"command": [*job.agent, host, shlex.join(job.program)]} if job.agent else {}
        members.append({"rank": rank, "local": started.get(host, 0), "of": job.hosts.count(host), **command})
        started[host] = started.get(host, 0) + 1
    return members


def tcp_variables(job: TcpJob) -> dict[str, str]:
    """Return the variables that all ranks of a job share: their meeting point, and variables that PyTorch reads.

    The launcher adds GRADIENTFLOW_RANK, RANK, LOCAL_RANK, LOCAL_WORLD_SIZE and the token of the job, which it draws.
    """
    size = len(job.hosts)
    return {
        "GRADIENTFLOW_TRANSPORT": "tcp",
        "GRADIENTFLOW_MEET": join_address(job.store_address or job.meet, free_port()),
        "GRADIENTFLOW_SIZE": str(size),
        "WORLD_SIZE": str(size - job.servers),
        SERVERS: str(job.servers),  # replaces the value of an outer job
        "MASTER_ADDR": master_of_environment("MASTER_ADDR") or job.meet,
        "MASTER_PORT": master_of_environment("MASTER_PORT") or str(free_port()),
    }


def command_lines(job: TcpJob) -> list[str]:
    """Return the shell commands that would start the ranks, by rank."""
    variables, lines = {**tcp_variables(job), "GRADIENTFLOW_TOKEN": secrets.token_hex(32)}, []
    for rank, host in enumerate(job.hosts):
        own = {**variables, "GRADIENTFLOW_RANK": str(rank), "RANK": str(rank)}
        line = " ".join([*(f"{name}={shlex.quote(value)}" for name, value in own.items()), shlex.join(job.program)])
        there = f"cd {shlex.quote(os.getcwd())} && env {line}"
        lines.append(line if host == _THIS_MACHINE else f"ssh {host} {shlex.quote(there)}")
    return lines
