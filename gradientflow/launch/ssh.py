"""Jobs over TCP on several hosts: ssh starts a launcher on each, which reads its job from its input.

Therefore no part of the job, above all its token, is in a command line that other users can read, and the ranks of a
host end with its connection.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import replace

from gradientflow.meeting.stores import TOKEN

from .environment import in_allocation, master_of_environment, variables_to_forward
from .hosts import hosts_of_ranks, without_user
from .launcher import LaunchError
from .tcp import LAUNCHER, TcpJob, job_here, kept_store, launcher_command, rank_members, tcp_command, tcp_variables

_SETTINGS_SECONDS = 10.0
_OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5")
_NO_FOLDER = 126
_NO_LAUNCHER = 127


def tcp_job(
    ranks: int,
    program: Sequence[str],
    hosts: str | None,
    servers: int = 0,
    *,
    label: bool = False,
    bind: str = "none",
    min_ranks: int | None = None,
    restarts: int = 0,
) -> TcpJob:
    """Return a job of this machine, or of the hosts in ``name:slots,name:slots``; see `job_here`."""
    if hosts is None:
        nodes = os.environ.get("SLURM_JOB_NUM_NODES", "1")
        if in_allocation() and nodes != "1":
            raise LaunchError(
                f"this allocation has {nodes} nodes, and over TCP all ranks would start on this one: start the program "
                "by srun, or name the hosts by --hosts"
            )
        job = job_here(ranks, program, servers, label=label, bind=bind)
        return replace(job, min_ranks=min_ranks, restarts=restarts, store_address=job.meet)
    names = hosts_of_ranks(hosts, ranks, servers)
    job = TcpJob(program, names, servers, meeting_host(names), label=label, bind=bind)
    store_address = "" if min_ranks is None else _own_address_for(names)
    return replace(job, min_ranks=min_ranks, restarts=restarts, store_address=store_address)


def command_over_tcp(job: TcpJob) -> list[str]:
    """Return the command line that starts a job here or on its hosts; see `tcp_command`."""
    return tcp_command(job) if not any(job.hosts) else _ssh_command(job)


def _ssh_command(job: TcpJob) -> list[str]:
    """Return the command line that starts a job on its hosts."""
    if shutil.which("ssh") is None and not all(map(_is_this_machine, job.hosts)):
        raise LaunchError("there is no ssh on the PATH, by which ranks on other hosts are started")
    mark, members = f"\x1e{secrets.token_hex(16)}", rank_members(job)  # \x1e is rare in text
    passed_on = {name: os.environ[name] for name in variables_to_forward(os.environ) if name != TOKEN}
    environment = {**passed_on, **tcp_variables(job)}
    shared = {
        "mark": mark,
        "command": list(job.program),
        "environment": environment,
        "label": job.label,
        "bind": job.bind,
        "grace": job.grace,
        "preload": list(job.preload),
        "restarts": None if job.min_ranks is None else job.restarts,
    }
    hosts = [
        {
            "host": host,
            "command": list(LAUNCHER) if _is_this_machine(host) else ["ssh", *_OPTIONS, host, _command_there(host)],
            "job": {
                **shared,
                "where": f" on {host}",
                "members": [member for member, place in zip(members, job.hosts, strict=True) if place == host],
            },
        }
        for host in dict.fromkeys(job.hosts)
    ]
    return launcher_command(
        {"members": hosts, "needed": job.needed, "grace": job.grace, **kept_store(job, environment)}
    )


def meeting_host(hosts: Sequence[str]) -> str:
    """Return the address of the first host by which all hosts reach it; MASTER_ADDR overrides it."""
    if given := master_of_environment("MASTER_ADDR"):
        return given
    first = hosts[0]
    if not _is_this_machine(first):
        return _address_of(first)
    return _own_address_for(hosts)


def _own_address_for(hosts: Sequence[str]) -> str:
    """Return the address of this machine by which the hosts reach it."""
    others = [host for host in hosts if not _is_this_machine(host)]
    return _own_address_towards(_address_of(others[0])) if others else "127.0.0.1"


def ssh_settings(name: str) -> dict[str, str]:
    """Return the settings of ssh for a host; empty if ssh does not report them."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        printed = subprocess.run(
            ["ssh", "-G", name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SETTINGS_SECONDS,
            check=False,
        ).stdout
        return dict(line.split(maxsplit=1) for line in printed.splitlines() if " " in line)
    return {}


def _command_there(host: str) -> str:
    """Return the command for the shell of a host: starts the launcher in this folder, or names a missing path."""
    folder, python, script = os.getcwd(), LAUNCHER[0], LAUNCHER[-2]
    needs = "Python environment and programs have the same paths on all hosts"
    no_folder = f"gradientflow: host {host} has no folder {folder}: {needs}"
    no_launcher = f"gradientflow: host {host} has no GradientFlow in {os.path.dirname(script)} with {python}: {needs}"
    commands = (
        f"cd {shlex.quote(folder)} 2> /dev/null || {{ echo {shlex.quote(no_folder)} >&2; exit {_NO_FOLDER}; }}; "
        f"[ -x {shlex.quote(python)} ] && [ -f {shlex.quote(script)} ] || "
        f"{{ echo {shlex.quote(no_launcher)} >&2; exit {_NO_LAUNCHER}; }}; exec {shlex.join(LAUNCHER)}"
    )
    return f"exec sh -c {shlex.quote(commands)}"


def _is_this_machine(host: str) -> bool:
    return host in ("localhost", "127.0.0.1", "::1", socket.gethostname())


def _address_of(host: str) -> str:
    """Return the address of a host, or else its name for ssh, which other hosts may know."""
    name = ssh_settings(host).get("hostname", without_user(host))
    with contextlib.suppress(OSError):
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    return name


def _own_address_towards(address: str) -> str:
    """Return this machine's address on the route to another address; sends nothing."""
    try:
        family, _, _, _, target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as trying:
            trying.connect(target)
            return str(trying.getsockname()[0])
    except OSError as error:
        raise LaunchError(
            f"no address of this machine leads to {address} ({error.strerror}): set MASTER_ADDR"
        ) from error
