"""Launchers, the MPI library's and our own, and the command lines that start jobs.

Nearly all functions here only write text and look things up. They start nothing except ``mpirun --version``,
``ssh -G`` and a process that removes temporary folders.
"""

from __future__ import annotations

from gradientflow.meeting import SERVERS

from .command import SESSION_FOLDER, launch_environment, module_command, mpirun_command, rank_program
from .environment import BIND, asked_binding, in_allocation, rank_of_this_process, ranks_of_this_job
from .hosts import (
    check_count,
    check_min_ranks,
    hosts_of_ranks,
    ranks_to_start,
    read_hostfile,
    slots,
    slots_of,
    without_user,
)
from .jax_rank import jax_contradictions, jax_program, jax_variables
from .launcher import MPICH, OPEN_MPI, Launcher, LaunchError, find_launcher
from .machine import BINDINGS, cores
from .scratch import Scratch, scratch_folder
from .ssh import command_over_tcp, meeting_host, ssh_settings, tcp_job
from .tcp import GRACE_SECONDS, TcpJob, command_lines, job_here, tcp_command

__all__ = [
    "BIND",
    "BINDINGS",
    "GRACE_SECONDS",
    "MPICH",
    "OPEN_MPI",
    "SERVERS",
    "SESSION_FOLDER",
    "LaunchError",
    "Launcher",
    "Scratch",
    "TcpJob",
    "asked_binding",
    "check_count",
    "check_min_ranks",
    "command_lines",
    "command_over_tcp",
    "cores",
    "find_launcher",
    "hosts_of_ranks",
    "in_allocation",
    "jax_contradictions",
    "jax_program",
    "jax_variables",
    "job_here",
    "launch_environment",
    "meeting_host",
    "module_command",
    "mpirun_command",
    "rank_of_this_process",
    "rank_program",
    "ranks_of_this_job",
    "ranks_to_start",
    "read_hostfile",
    "scratch_folder",
    "slots",
    "slots_of",
    "ssh_settings",
    "tcp_command",
    "tcp_job",
    "without_user",
]
