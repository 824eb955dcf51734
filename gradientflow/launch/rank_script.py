"""The shell script that runs on every rank in place of the program, and becomes the program."""

from __future__ import annotations

import os
import re
import shlex
import socket
from collections.abc import Sequence

from gradientflow.meeting import SERVERS
from gradientflow.meeting.slurm import first_node

from .environment import hostfile_of_allocation, in_allocation, master_of_environment
from .hosts import read_hostfile
from .ports import free_port

# Runs on every rank in place of the program, sets variables, and becomes the program.
_RANK_SCRIPT = (
    'if [ "$OMPI_COMM_WORLD_SIZE" ]; then RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE '
    "LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK LOCAL_WORLD_SIZE=$OMPI_COMM_WORLD_LOCAL_SIZE; "
    "else RANK=$PMI_RANK WORLD_SIZE=$PMI_SIZE LOCAL_RANK=$MPI_LOCALRANKID LOCAL_WORLD_SIZE=$MPI_LOCALNRANKS; fi; "
    f"WORLD_SIZE=$((WORLD_SIZE - ${{{SERVERS}:-0}})); "
    # Else each rank would have as many threads of OpenMP and BLAS as the host has cores. nproc heeds OMP_NUM_THREADS.
    'if [ "$LOCAL_WORLD_SIZE" -gt 1 ] && [ -z "$OMP_NUM_THREADS" ]; then '
    "OMP_NUM_THREADS=$(($(nproc) / LOCAL_WORLD_SIZE)); "
    '[ "$OMP_NUM_THREADS" -gt 0 ] || OMP_NUM_THREADS=1; export OMP_NUM_THREADS; fi; '
    # What says that torchrun started them: below it, the ranks are another job.
    "unset TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_RESTART_COUNT; "
    'export RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE; exec "$@"'
)

# The daemons of Open MPI 5.0 miss the end of a process that ends as soon as it has begun, and wait for it for ever.
_NOT_TOO_SHORT = "sleep 0.1; "


def rank_program(program: Sequence[str], hosts: str | None = None, servers: int = 0) -> list[str]:
    """Wrap `program` so that each rank finds in its environment the variables that PyTorch's launcher sets.

    They are RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and, with several ranks on a host,
    OMP_NUM_THREADS: the host's cores, divided among its ranks. The last three keep the values that the environment has.

    Parameters
    ----------
    program : sequence of str
        The program and its arguments.
    hosts : str, optional
        Where the job is started, as `mpirun_command` takes it.
    servers : int, default 0
        How many of the ranks only serve; WORLD_SIZE is the number of the others.

    Returns
    -------
    list of str
        The program for `mpirun_command`. It needs a shell and adds about a millisecond; a tenth of a second with
        `hosts` or in an allocation, where the launcher uses daemons.
    """
    master = {
        "MASTER_ADDR": master_of_environment("MASTER_ADDR") or _master_address(hosts),
        "MASTER_PORT": master_of_environment("MASTER_PORT") or str(free_port()),
    }
    if servers > 0:
        master[SERVERS] = str(servers)
    assignments = " ".join(f"{name}={shlex.quote(value)}" for name, value in master.items())
    before = _NOT_TOO_SHORT if hosts is not None or in_allocation() else ""
    return ["sh", "-c", f"{before}export {assignments}; {_RANK_SCRIPT}", "sh", *program]


def _master_address(hosts: str | None) -> str:
    """Name the host of rank 0, as the others can reach it."""
    if hosts is None and (file := hostfile_of_allocation()):
        hosts = read_hostfile(file)
    if hosts is not None:
        return re.split("[:,]", hosts, maxsplit=1)[0]
    if node := first_node(os.environ):
        return node
    return socket.gethostname() if in_allocation() else "127.0.0.1"
