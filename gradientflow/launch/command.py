"""The command lines that start jobs, and the variables that these need."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from gradientflow.arguments import checked_instance, checked_int, checked_list
from gradientflow.mpi_start import start_variables

from .environment import in_allocation, variables_to_forward
from .hosts import check_count, slots
from .launcher import MPICH, OPEN_MPI, Launcher, LaunchError

# The folder for files of Open MPI's launcher. Their names contain its process number, so the files of a killed launcher
# keep a later one with the same number from starting: a launcher that may be killed needs a folder of its own.
SESSION_FOLDER = "PRTE_MCA_prte_local_tmpdir_base"


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
