"""Command lines that start MPI jobs, and the environment variables that they need."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from gradientflow.arguments import checked_instance, checked_int, checked_list
from gradientflow.meeting import SERVERS
from gradientflow.meeting.slurm import first_node
from gradientflow.mpi_start import start_variables

from .environment import (
    hostfile_of_allocation,
    in_allocation,
    master_of_environment,
    renamed_variables,
    variables_to_forward,
)
from .hosts import check_count, read_hostfile, slots, slots_of, without_user
from .launcher import MPICH, OPEN_MPI, Launcher, LaunchError
from .ports import free_port

# Folder for files of Open MPI's launcher. Their names contain its process number, so files of a killed launcher prevent
# a later launcher with the same number from starting: a launcher that may be killed needs a folder of its own.
SESSION_FOLDER = "PRTE_MCA_prte_local_tmpdir_base"

_RANK_SCRIPT = (sys.executable, "-I", "-S", str(Path(__file__).with_name("rank_script.py")))

# The daemons of Open MPI 5.0 miss the end of a process that ends at once, and wait for it forever.
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
    """Return the command line that starts `ranks` ranks of `program`.

    Parameters
    ----------
    launcher : Launcher
        MPI launcher to use.
    ranks : int
        Number of ranks to start.
    program : sequence of str
        The program and its arguments.
    hosts : str, optional
        Hosts for the ranks, as ``name:slots,name:slots``; this machine by default.
    servers : int, default 0
        Number of additional ranks that only serve. Ranks then go to the hosts in turn, so that computing and serving
        ranks share the hosts as evenly as possible.
    label : bool, default False
        True to begin each output line with its rank, in the launcher's format.

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
    if hosts is not None and "[" in hosts:
        raise LaunchError(f"MPI's launcher takes no IPv6 addresses: use --transport tcp, or names, not {hosts!r}")
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
    # By default Open MPI binds each rank to one CPU core. Our progress thread and the threads of BLAS are in the same
    # process and would all share that core. If several hosts are really one machine (containers, network namespaces),
    # the first rank of every host would even be bound to the same core.
    command += ["--bind-to", "none"]
    if hosts is None and ranks + servers > slots() and not in_allocation():
        # Passed only if needed: this option also makes waiting ranks yield, which costs latency.
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
    """Return `program` wrapped so that each rank has the environment variables that PyTorch's launcher sets.

    They are RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and, with several ranks on a host,
    OMP_NUM_THREADS: the host's cores, divided among its ranks. The last three keep existing values.

    Parameters
    ----------
    program : sequence of str
        The program and its arguments.
    hosts : str, optional
        Hosts of the job, as `mpirun_command` takes them.
    servers : int, default 0
        Number of ranks that only serve; WORLD_SIZE does not count them.
    bind : str, default "none"
        Binding of a rank to cores of its host, as `share` takes it.
    transport : {"auto", "mpi"}
        Transport asked for. "mpi" sets GRADIENTFLOW_TRANSPORT on the ranks, which overrides their settings file.

    Returns
    -------
    list of str
        Program for `mpirun_command`. The wrapper adds some 15 milliseconds; with `hosts` or in an allocation, where the
        launcher uses daemons, a tenth of a second.
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
    """Return the name of rank 0's host by which all ranks can reach it."""
    if hosts is None and (file := hostfile_of_allocation()):
        hosts = read_hostfile(file)
    if hosts is not None:
        return without_user(next(iter(slots_of(hosts))))
    if node := first_node(os.environ):
        return node
    return socket.gethostname() if in_allocation() else "127.0.0.1"


def launch_environment(launcher: Launcher, hosts: str | None = None) -> dict[str, str]:
    """Return the variables that the launcher and its ranks need in addition to this process's environment.

    Parameters
    ----------
    launcher : Launcher
        Launcher to be started.
    hosts : str, optional
        Hosts of the job, as `mpirun_command` takes them. On other hosts each rank itself finds the components that its
        MPI library can skip at start.

    Returns
    -------
    dict of str to str
        The additions only, often empty.
    """
    if checked_instance("launcher", launcher, Launcher).library != OPEN_MPI:
        return {}
    variables = {} if hosts is not None or in_allocation() else start_variables(Path(launcher.path).parents[1])
    variables |= renamed_variables()
    if os.geteuid() == 0:
        variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return variables


def module_command(module: str, arguments: Sequence[str]) -> list[str]:
    """Return the command that calls ``main()`` of an installed module in a new interpreter.

    ``python -m module`` would put the working folder first in the import path, where a folder named ``gradientflow``
    or a file named ``random.py`` hides the real module. This command removes that entry first.

    Parameters
    ----------
    module : str
        Full name of the module.
    arguments : sequence of str
        Arguments that its ``main()`` finds in ``sys.argv[1:]``.

    Returns
    -------
    list of str
        The command.
    """
    checked_instance("module", module, str)
    arguments = checked_list("arguments", arguments, "texts")
    code = f"import sys; sys.path[:] = filter(None, sys.path); from {module} import main; sys.exit(main())"
    return [sys.executable, "-c", code, *arguments]
