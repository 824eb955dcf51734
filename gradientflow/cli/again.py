"""Start of commands that run as a job: outside a job, the command starts itself again, once for each rank."""

from __future__ import annotations

import os
from collections.abc import Sequence

from gradientflow.cli.hosts import check_hosts
from gradientflow.cli.job import Job, run_job
from gradientflow.cli.transport import find_launcher_or_tcp
from gradientflow.launch import (
    asked_binding,
    command_over_tcp,
    launch_environment,
    module_command,
    mpirun_command,
    rank_program,
    ranks_to_start,
    tcp_job,
)
from gradientflow.terminal import variables_for_ranks


def start_again(
    arguments: Sequence[str], ranks: int | None, hosts: str | None, transport: str, without: str = ""
) -> int:
    """Run this program with these arguments as a job, and return its exit status.

    Parameters
    ----------
    arguments : sequence of str
        Arguments of ``gradientflow``.
    ranks : int or None
        Number of ranks to start; by default the slots of the hosts.
    hosts : str or None
        Hosts for the ranks; by default this machine.
    transport, without : str
        See `find_launcher_or_tcp`.
    """
    ranks = ranks_to_start(ranks, hosts)
    launcher = find_launcher_or_tcp(transport, without)
    command = module_command("gradientflow.cli", list(arguments))
    check_hosts(hosts)
    os.environ.update(variables_for_ranks())
    if launcher is None:
        return run_job(Job(command_over_tcp(tcp_job(ranks, command, hosts, bind=asked_binding())), {}))
    command = rank_program(command, hosts, bind=asked_binding(), transport=transport)
    command = mpirun_command(launcher, ranks, command, hosts)
    return run_job(Job(command, launch_environment(launcher, hosts), is_mpi=True))


__all__ = ["start_again"]
