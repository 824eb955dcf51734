"""Starting MPI jobs: the launcher of the MPI library in use, and the command lines for it.

Everything here is plain text and look-ups: nothing is started except ``mpirun --version``.
"""

from __future__ import annotations

from gradientflow.meeting import SERVERS

from .command import SESSION_FOLDER, launch_environment, module_command, mpirun_command
from .environment import in_allocation, rank_of_this_process, ranks_of_this_job
from .hosts import read_hostfile, slots
from .launcher import MPICH, OPEN_MPI, Launcher, LaunchError, find_launcher
from .machine import cores
from .rank_script import rank_program

__all__ = [
    "MPICH",
    "OPEN_MPI",
    "SERVERS",
    "SESSION_FOLDER",
    "LaunchError",
    "Launcher",
    "cores",
    "find_launcher",
    "in_allocation",
    "launch_environment",
    "module_command",
    "mpirun_command",
    "rank_of_this_process",
    "rank_program",
    "ranks_of_this_job",
    "read_hostfile",
    "slots",
]
