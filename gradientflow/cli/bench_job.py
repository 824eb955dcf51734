"""What all of ``gradientflow bench`` has in common: from the command line to the ranks of an MPI job.

Outside an MPI job a command checks its options, starts itself again under mpirun, and passes on what the ranks cannot
see for themselves: whether its own output goes to a terminal, and how wide that is.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from gradientflow.bench.plan import PlanError
from gradientflow.cli.bench_rank import Output
from gradientflow.cli.job import Job, run_job
from gradientflow.cli.library import built_with
from gradientflow.launch import find_launcher, launch_environment, module_command, mpirun_command, ranks_of_this_job

_PLOT_FORMATS = (".png", ".pdf", ".svg")

JOB_OPTIONS = (
    click.Option(["-n", "--ranks"], type=int, metavar="N", help="ranks to start; not needed under mpirun"),
    click.Option(["--hosts"], metavar="A:SLOTS,B:SLOTS", help="where to start them (default: this machine)"),
    click.Option(["--json", "json_path"], metavar="FILE", help="write figures and environment here"),
    click.Option(["--columns"], default="0,0", hidden=True, help="widths of the terminals behind stdout and stderr"),
)


def run_bench(options: Mapping[str, Any], check: Callable[[int, bool], None], work: Callable[[Output], int]) -> int:
    """Measure as one rank inside an MPI job; start one outside.

    Parameters
    ----------
    options : mapping
        The values of `JOB_OPTIONS`, and of ``plot_path`` where the command draws.
    check : callable
        Told the number of ranks, and whether all are on this machine, before a job is started; raises `PlanError`.
    work : callable
        What a rank does; gives the exit status.

    Returns
    -------
    int
        The exit status.
    """
    ranks, hosts = options["ranks"], options["hosts"]
    json_path, plot_path = options["json_path"], options.get("plot_path")
    _check_files(json_path, plot_path)
    inside = ranks_of_this_job()
    if inside is not None:
        if ranks not in (None, inside):
            raise PlanError(f"-n {ranks} was given, but this MPI job has {inside} ranks: leave -n out under mpirun")
        out, err = (int(width) for width in options["columns"].split(","))
        return work(Output(_as_typed(sys.argv[1:]), json_path, plot_path, out, err))
    if ranks is None:
        raise PlanError("say how many ranks to start, for example -n 2")
    check(ranks, hosts is None)
    launcher = find_launcher(built_with())
    arguments = [*sys.argv[1:], "--columns", f"{_columns(sys.stdout.fileno())},{_columns(sys.stderr.fileno())}"]
    command = mpirun_command(launcher, ranks, module_command("gradientflow.cli", arguments), hosts)
    return run_job(Job(command, launch_environment(launcher)))


def output_here(options: Mapping[str, Any]) -> Output:
    """Say where the figures go of what this process measures alone.

    Parameters
    ----------
    options : mapping
        The values of ``json_path`` and ``plot_path``.

    Returns
    -------
    Output
        The files, which can be written, and the terminals of this process.
    """
    json_path, plot_path = options["json_path"], options["plot_path"]
    _check_files(json_path, plot_path)
    columns = (_columns(stream.fileno()) for stream in (sys.stdout, sys.stderr))
    return Output(sys.argv[1:], json_path, plot_path, *columns)


def _check_files(json_path: str | None, plot_path: str | None) -> None:
    """Find out now, and not after the measurement, that its figures cannot be written."""
    for path in (json_path, plot_path):
        if path is not None and not (os.access(Path(path).parent, os.W_OK) and not Path(path).is_dir()):
            raise PlanError(f"{path} cannot be written")
    if plot_path is not None:
        if Path(plot_path).suffix.lower() not in _PLOT_FORMATS:
            raise PlanError(f"--plot draws {', '.join(_PLOT_FORMATS)} files, not {plot_path}")
        if importlib.util.find_spec("matplotlib") is None:
            raise PlanError("--plot needs matplotlib, which is not installed: pip install matplotlib")


def _columns(descriptor: int) -> int:
    """Give the width of the terminal behind a descriptor, 0 where there is none."""
    return os.get_terminal_size(descriptor).columns if os.isatty(descriptor) else 0


def _as_typed(arguments: list[str]) -> list[str]:
    """Leave out what this program added to the command line."""
    return arguments[:-2] if arguments[-2:-1] == ["--columns"] else arguments
