"""The command lines that start jobs, and the variables that these need."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from gradientflow.arguments import checked_instance, checked_int, checked_list
from gradientflow.meeting import SERVERS
from gradientflow.meeting.slurm import first_node
from gradientflow.mpi_start import start_variables

from .environment import hostfile_of_allocation, in_allocation, master_of_environment, variables_to_forward
from .hosts import check_count, read_hostfile, slots
from .launcher import MPICH, OPEN_MPI, Launcher, LaunchError
from .ports import free_port

# The folder for files of Open MPI's launcher. Their names contain its process number, so the files of a killed launcher
# keep a later one with the same number from starting: a launcher that may be killed needs a folder of its own.
SESSION_FOLDER = "PRTE_MCA_prte_local_tmpdir_base"

_RANK_SCRIPT = (sys.executable, "-I", "-S", str(Path(__file__).with_name("rank_script.py")))

# The daemons of Open MPI 5.0 miss the end of a process that ends as soon as it has begun, and wait for it for ever.
_NOT_TOO_SHORT = "0.1"


def mpirun_command(
    launcher: Launcher,
    ranks: int,
    program: Sequence[str],
    hosts: str | None = None,
    servers: int = 0,
    *,
    label: bool = False,
) -> list[str]:
    """Write the command line that starts `ranks` ranks of `program`.

    Parameters
    ----------
    launcher : Launcher
        Which launcher to write it for.
    ranks : int
        How many ranks to start.
    program : sequence of str
        The program and its arguments.
    hosts : str, optional
        Where to start them, as ``name:slots,name:slots``; this machine by default.
    servers : int, default 0
        How many ranks to start beside them that only serve. Ranks then go to the hosts in turn, so that computing and
        serving ranks share the hosts as evenly as can be.
    label : bool, default False
        Whether each line that a rank writes begins with its rank, in the way of the launcher.

    Returns
    -------
    list of str
        The whole command, launcher first.
    """
    checked_instance("launcher", launcher, Launcher)
    ranks, program = checked_int("ranks", ranks), checked_list("program", program, "texts")
    if checked_int("servers", servers) < 0:
        raise LaunchError(f"--servers takes a number of ranks, not {servers}")
    check_count(ranks, hosts)
    check_count(ranks + servers, hosts)
    command = [launcher.path, "-n", str(ranks + servers)]
    if launcher.library == MPICH:
        if servers > 0:
            command.append("-rr")
        if label:
            command.append("-prepend-rank")
        if hosts is not None:
            command += ["-hosts", hosts]
        return [*command, *program]
    if servers > 0:
        command += ["--map-by", "node"]
    if label:
        command += ["--tag-output"] if launcher.version.startswith("4.") else ["--output", "rank"]
    # Open MPI would bind each rank to one core by default. The core's progress thread and the threads of BLAS belong to
    # the same process and would then all share that core; and across hosts that are really one machine (containers,
    # network namespaces) every host's first rank would be bound to the same one.
    command += ["--bind-to", "none"]
    if hosts is None and ranks + servers > slots() and not in_allocation():
        # Only where it is needed: it also makes waiting ranks yield, which costs some latency.
        command.append("--oversubscribe")
    if hosts is not None:
        command += ["--host", hosts]
    if hosts is not None or in_allocation():
        for name in variables_to_forward(os.environ):
            command += ["-x", name]
    return [*command, *program]


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
        The program for `mpirun_command`. It adds some 15 milliseconds, and a tenth of a second with `hosts` or in an
        allocation, where the launcher uses daemons.
    """
    variables = {
        "MASTER_ADDR": master_of_environment("MASTER_ADDR") or _master_address(hosts),
        "MASTER_PORT": master_of_environment("MASTER_PORT") or str(free_port()),
    }
    if servers > 0:
        variables[SERVERS] = str(servers)
    if transport == "mpi":
        variables["GRADIENTFLOW_TRANSPORT"] = transport
    pause = _NOT_TOO_SHORT if hosts is not None or in_allocation() else "0"
    return [*_RANK_SCRIPT, pause, bind, *(f"{name}={value}" for name, value in variables.items()), "--", *program]


def _master_address(hosts: str | None) -> str:
    """Name the host of rank 0, as the others can reach it."""
    if hosts is None and (file := hostfile_of_allocation()):
        hosts = read_hostfile(file)
    if hosts is not None:
        return re.split("[:,]", hosts, maxsplit=1)[0]
    if node := first_node(os.environ):
        return node
    return socket.gethostname() if in_allocation() else "127.0.0.1"


def launch_environment(launcher: Launcher, hosts: str | None = None) -> dict[str, str]:
    """Give the variables the launcher and its ranks need beside the environment of this process.

    Parameters
    ----------
    launcher : Launcher
        Which launcher will be started.
    hosts : str, optional
        Where the job is started, as `mpirun_command` takes it. On other hosts each rank finds out by itself what its
        MPI library can skip at start.

    Returns
    -------
    dict of str to str
        The additions only, often empty.
    """
    if checked_instance("launcher", launcher, Launcher).library != OPEN_MPI:
        return {}
    variables = {} if hosts is not None or in_allocation() else start_variables(Path(launcher.path).parents[1])
    if os.geteuid() == 0:
        variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return variables


def module_command(module: str, arguments: Sequence[str]) -> list[str]:
    """Write the command that calls ``main()`` of an installed module in a new interpreter.

    ``python -m module`` would put the working folder at the head of the import path, where a folder named
    ``gradientflow`` or a file named ``random.py`` hides the real one; here that entry is dropped first.

    Parameters
    ----------
    module : str
        The module's full name.
    arguments : sequence of str
        What its ``main()`` finds in ``sys.argv[1:]``.

    Returns
    -------
    list of str
        The command.
    """
    checked_instance("module", module, str)
    arguments = checked_list("arguments", arguments, "texts")
    code = f"import sys; sys.path[:] = filter(None, sys.path); from {module} import main; sys.exit(main())"
    return [sys.executable, "-c", code, *arguments]
