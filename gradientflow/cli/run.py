"""``gradientflow run``: start a program as a job of several ranks."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from gradientflow.cli.hosts import check_hosts
from gradientflow.cli.jax import check_jax
from gradientflow.cli.job import Job, run_job
from gradientflow.cli.transport import (
    WHY_NOT_MPI,
    check_restarts,
    find_launcher_or_tcp,
    min_ranks_option,
    restart_option,
    transport_option,
    transport_without_mpi,
)
from gradientflow.launch import (
    BIND,
    BINDINGS,
    GRACE_SECONDS,
    LaunchError,
    check_count,
    check_min_ranks,
    command_lines,
    command_over_tcp,
    in_allocation,
    jax_program,
    launch_environment,
    mpirun_command,
    rank_program,
    ranks_of_this_job,
    ranks_to_start,
    read_hostfile,
    tcp_job,
)

_LONGEST_GRACE = 1_000_000


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "-n",
    "-np",
    "--ranks",
    "count",
    type=int,
    metavar="N",
    help="Number of ranks to start (default: the slots of the hosts).",
)
@click.option("--hosts", metavar="A:SLOTS,B:SLOTS", help="Hosts to start ranks on (default: this machine).")
@click.option("--hostfile", metavar="FILE", help="File of the hosts: a line is NAME, NAME:SLOTS or NAME slots=N.")
@click.option(
    "--servers",
    type=int,
    default=0,
    metavar="S",
    help="Number of further processes, which serve parameters only.",
)
@min_ranks_option
@restart_option
@click.option(
    "--preload",
    metavar="MODULES",
    help="Modules, separated by commas, to import once on each host; ranks are forked from that process. Over TCP.",
)
@transport_option("without MPI, through ssh on other hosts")
@click.option("--jax", is_flag=True, help="Let GradientFlow perform JAX's collectives on CPUs.")
@click.option(
    "--bind",
    type=click.Choice(BINDINGS),
    default="auto",
    envvar=BIND,
    help="Cores of a rank: its share of its host's cores if there is one for each rank, else all (auto, the default); "
    "all (none); one core of its share (core); the cores of a NUMA node (numa).",
)
@click.option(
    "--grace",
    type=float,
    default=GRACE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Seconds that ranks have to end after a signal such as SIGTERM or Ctrl-C; a second signal ends them at once.",
)
@click.option(
    "--label/--no-label",
    default=None,
    help="Prefix each line of output with the rank that wrote it; the default on a terminal with several ranks.",
)
@click.option("--dry-run", is_flag=True, help="Print the command instead of running it.")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    count: int | None,
    hosts: str | None,
    hostfile: str | None,
    servers: int,
    min_ranks: int | None,
    restarts: int,
    preload: str | None,
    transport: str,
    jax: bool,
    bind: str,
    grace: float,
    label: bool | None,
    dry_run: bool,
    program: tuple[str, ...],
) -> int:
    """Start PROGRAM as a job of N ranks.

    By default this is an MPI job, with the launcher of the MPI library in use and the flags it needs. With --transport
    tcp, with --min-ranks, or without MPI, the ranks are processes that find each other by themselves.

    A .py file is run with this Python. The exit status is the program's. The environment of every rank has RANK,
    WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    Ctrl-C, SIGTERM and SIGHUP end all ranks, which get a SIGTERM. Ranks also get SIGUSR1, SIGUSR2, SIGTSTP (Ctrl-Z) and
    SIGCONT.

    With --min-ranks, a failed rank does not end the job while at least M ranks survive. Each failure is reported in a
    line. The exit status is 0 if at least M ranks end with 0, else that of the rank whose failure left fewer.

    With --restart as well, a failed process is restarted, and joins the job again by gradientflow.join() in PROGRAM.

    With --preload torch,torch._dynamo processes have these modules when they start or restart: they are forked from a
    process that has imported them. PROGRAM is a .py file, or python -m MODULE. The modules must start no threads, and
    use no GPU, when they are imported.

    With --servers, S more processes run PROGRAM up to gradientflow.init(), which serves the N ranks as parameter
    servers until all have closed, and then ends them.

    With --jax, PROGRAM is an unchanged JAX program: GradientFlow performs psum and similar calls, and
    jax.distributed.initialize() needs no arguments.
    """
    if (outer := ranks_of_this_job()) is not None:
        raise LaunchError(f"this is already a rank of a job of {outer}: start the program itself, without 'run'")
    if hostfile is not None:
        if hosts is not None:
            raise LaunchError("--hosts and --hostfile both say where to start the ranks: leave one out")
        hosts = read_hostfile(hostfile)
    ranks = ranks_to_start(count, hosts, servers)
    if not 0 <= grace <= _LONGEST_GRACE:
        raise LaunchError(f"--grace takes a number of seconds from 0 to {_LONGEST_GRACE}, not {grace:g}")
    if label is None:
        label = ranks + servers > 1 and sys.stdout.isatty() and sys.stderr.isatty()
    check_restarts(restarts, min_ranks)
    if min_ranks is not None:
        transport = transport_without_mpi(transport, "--min-ranks", WHY_NOT_MPI)
        if jax or servers > 0:
            raise LaunchError("a job with --servers or --jax needs all its ranks: leave --min-ranks out")
        check_min_ranks(min_ranks, ranks)
    command = executable(program, elsewhere=hosts is not None)
    if jax:
        if servers > 0:
            raise LaunchError("--jax starts ranks that all compute: leave --servers out")
        check_jax(needed=program[0].endswith(".py"))
        command = jax_program(command)
    modules = _modules(preload, command) if preload else []
    if modules:
        transport = transport_without_mpi(transport, "--preload", "MPI's launcher starts ranks itself")
    launcher = find_launcher_or_tcp(transport)
    if launcher is None:
        check_count(ranks + servers, hosts)
        check_hosts(hosts)
        job = tcp_job(ranks, command, hosts, servers, label=label, bind=bind, min_ranks=min_ranks, restarts=restarts)
        job = replace(job, preload=modules, grace=grace)
        if dry_run:
            click.echo("\n".join(command_lines(job)))
            return 0
        return run_job(Job(command_over_tcp(job), {}, reads_input=True, grace=grace))
    command = rank_program(command, hosts, servers, bind=bind, transport=transport)
    command = mpirun_command(launcher, ranks, command, hosts, servers, label=label)
    environment = launch_environment(launcher, hosts)
    if dry_run:
        click.echo(" ".join([*(f"{name}={value}" for name, value in environment.items()), shlex.join(command)]))
        return 0
    check_hosts(hosts)
    here = ranks + servers if ranks + servers > 1 and hosts is None and not in_allocation() else 0
    return run_job(Job(command, environment, reads_input=True, is_mpi=True, ranks_here=here, label=label, grace=grace))


def executable(program: tuple[str, ...], *, elsewhere: bool) -> list[str]:
    """Return the command of a program, with the interpreter before a Python file; raise early for mistyped names."""
    name = program[0]
    if name.endswith(".py"):
        if not elsewhere and not Path(name).is_file():
            raise LaunchError(f"there is no file {name}")
        return [sys.executable, *program]
    if not elsewhere and shutil.which(name) is None:
        raise LaunchError(f"there is no program {name}, neither on the PATH nor as a path to an executable file")
    return list(program)


def _modules(preload: str, command: Sequence[str]) -> list[str]:
    """Return the names of modules to preload; raise if ranks of the command cannot be forked."""
    modules = [name.strip() for name in preload.split(",") if name.strip()]
    wrong = [name for name in modules if not all(part.isidentifier() for part in name.split("."))]
    if wrong or not modules:
        raise LaunchError(f"--preload takes names of modules, separated by commas, not {preload!r}")
    options = [word for word in command[1:2] if word.startswith("-") and word not in ("-m", "-c")]
    python, found = Path(sys.executable), Path(shutil.which(command[0]) or "/")
    is_python = found.parent == python.parent and found.samefile(python)
    if not is_python or len(command) < 2 or options:
        raise LaunchError("--preload takes a .py file, or python -m MODULE, with this Python: others cannot be forked")
    return modules
