"""The shell script that runs on every rank in place of the program, and becomes the program."""

from __future__ import annotations

import os
import re
import shlex
import socket
import sys
from collections.abc import Sequence

from gradientflow.meeting import SERVERS
from gradientflow.meeting.slurm import first_node

from . import machine
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
    "export RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE; "
)

# Has the rest bind itself before it becomes the program. A host without this Python may still run other programs.
_BIND = '[ -x {python} ] && [ -f {script} ] && set -- {python} -I -S {script} {binding} "$@"; '

# The daemons of Open MPI 5.0 miss the end of a process that ends as soon as it has begun, and wait for it for ever.
_NOT_TOO_SHORT = "sleep 0.1; "


def rank_program(
    program: Sequence[str],
    hosts: str | None = None,
    servers: int = 0,
    *,
    bind: str = "none",
    transport: str = "auto",
) -> list[str]:
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
    bind : str, default "none"
        Which cores of its host a rank gets, as `share` takes it.
    transport : {"auto", "mpi"}
        What was asked for. With "mpi" ranks find GRADIENTFLOW_TRANSPORT, which overrides their settings file.

    Returns
    -------
    list of str
        The program for `mpirun_command`. It needs a shell and adds about a millisecond, or some 15 where ranks are
        bound; a tenth of a second with `hosts` or in an allocation, where the launcher uses daemons.
    """
    master = {
        "MASTER_ADDR": master_of_environment("MASTER_ADDR") or _master_address(hosts),
        "MASTER_PORT": master_of_environment("MASTER_PORT") or str(free_port()),
    }
    if servers > 0:
        master[SERVERS] = str(servers)
    if transport == "mpi":
        master["GRADIENTFLOW_TRANSPORT"] = transport
    assignments = " ".join(f"{name}={shlex.quote(value)}" for name, value in master.items())
    before = _NOT_TOO_SHORT if hosts is not None or in_allocation() else ""
    script = f"{before}export {assignments}; {_RANK_SCRIPT}{_binding(bind)}" + 'exec "$@"'
    return ["sh", "-c", script, "sh", *program]


def _binding(bind: str) -> str:
    if bind == "none":
        return ""
    python, script = (shlex.quote(path) for path in (sys.executable, machine.__file__))
    several = '[ "$LOCAL_WORLD_SIZE" -gt 1 ] && ' if bind == "auto" else ""  # else there is nothing to divide
    return several + _BIND.format(python=python, script=script, binding=bind)


def _master_address(hosts: str | None) -> str:
    """Name the host of rank 0, as the others can reach it."""
    if hosts is None and (file := hostfile_of_allocation()):
        hosts = read_hostfile(file)
    if hosts is not None:
        return re.split("[:,]", hosts, maxsplit=1)[0]
    if node := first_node(os.environ):
        return node
    return socket.gethostname() if in_allocation() else "127.0.0.1"
