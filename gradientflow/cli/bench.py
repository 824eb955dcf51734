"""``gradientflow bench``: measure collectives beside other libraries.

Outside an MPI job the command checks its options, starts itself again under mpirun, and passes on what the ranks cannot
see for themselves: whether its own output goes to a terminal, and how wide that is.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from gradientflow.bench.collectives import COLLECTIVES
from gradientflow.bench.plan import (
    ALGORITHMS,
    DEFAULT_SIZES,
    DTYPES,
    MEMORIES,
    OPS,
    PEERS,
    WIRES,
    Plan,
    PlanError,
    parse_list,
    parse_sizes,
)
from gradientflow.bench.session import check_job
from gradientflow.cli.bench_rank import Output, run_rank
from gradientflow.cli.job import Job, run_job
from gradientflow.cli.library import built_with
from gradientflow.launch import find_launcher, launch_environment, module_command, mpirun_command, ranks_of_this_job

_PLOT_FORMATS = (".png", ".pdf", ".svg")

_SIZED_OPTIONS = (
    click.Option(["--sizes"], default=DEFAULT_SIZES, show_default=True, metavar="LIST", help="bytes; K, M, G allowed"),
    click.Option(
        ["--memory"],
        default=",".join(MEMORIES),
        show_default=True,
        metavar="LIST",
        help="pool: node memory, array: ordinary memory",
    ),
    click.Option(
        ["--algorithm"], default="auto", show_default=True, metavar="LIST", help=f"of {', '.join(ALGORITHMS)}"
    ),
    click.Option(["--dtype"], default="float32", show_default=True, metavar="NAME", help=", ".join(DTYPES)),
    click.Option(["--plot", "plot_path"], metavar="FILE.png", help="draw bandwidth against size (needs matplotlib)"),
)
_REDUCING_OPTIONS = (click.Option(["--op"], default="sum", show_default=True, metavar="NAME", help=", ".join(OPS)),)
_WIRE_OPTION = click.Option(
    ["--wire"],
    metavar="LIST",
    help=f"what values are rounded to between nodes, of {', '.join(WIRES)}  [default: the dtype]",
)
_OPTIONS = (
    click.Option(["-n", "--ranks"], type=int, metavar="N", help="ranks to start; not needed under mpirun"),
    click.Option(["--hosts"], metavar="A:SLOTS,B:SLOTS", help="where to start them (default: this machine)"),
    click.Option(
        ["--compare"], default="mpi", show_default=True, metavar="LIST", help=f"of {', '.join(PEERS)}, or '' for none"
    ),
    click.Option(["--iterations"], type=int, metavar="N", help="timed calls of each contestant (default: what fits)"),
    click.Option(["--seconds"], type=float, default=1.0, show_default=True, help="to spend on each size, roughly"),
    click.Option(["--cpu", "with_cpu"], is_flag=True, help="show processor times in the table"),
    click.Option(["--json", "json_path"], metavar="FILE", help="write figures and environment here"),
    click.Option(["--columns"], default="0,0", hidden=True, help="widths of the terminals behind stdout and stderr"),
)


@click.group()
def bench() -> None:
    """Measure ours and other libraries side by side in one run.

    Every result is checked, element by element; if one is wrong, the exit status is 1.
    """


class _CollectiveCommand(click.Command):
    """Measure one collective, with the options that mean something for it."""

    def __init__(self, name: str) -> None:
        sized = () if name == "barrier" else _SIZED_OPTIONS
        reducing = _REDUCING_OPTIONS if COLLECTIVES[name].reduces else ()
        wire = (_WIRE_OPTION,) if name == "allreduce" else ()
        super().__init__(name, params=[*sized, *reducing, *wire, *_OPTIONS], help=f"Measure {name}.")

    def invoke(self, ctx: click.Context) -> int:
        """Measure; the result is the exit status."""
        return _measure(_plan(str(self.name), ctx.params), ctx.params)


for _name in COLLECTIVES:
    bench.add_command(_CollectiveCommand(_name))


def _measure(plan: Plan, options: Mapping[str, Any]) -> int:
    ranks, hosts = options["ranks"], options["hosts"]
    json_path, plot_path = options["json_path"], options.get("plot_path")
    _check_files(json_path, plot_path)
    inside = ranks_of_this_job()
    if inside is not None:
        if ranks not in (None, inside):
            raise PlanError(f"-n {ranks} was given, but this MPI job has {inside} ranks: leave -n out under mpirun")
        out, err = (int(width) for width in options["columns"].split(","))
        return run_rank(plan, Output(_as_typed(sys.argv[1:]), json_path, plot_path, out, err, options["with_cpu"]))
    if ranks is None:
        raise PlanError("say how many ranks to start, for example -n 2")
    check_job(plan, ranks, on_this_machine=hosts is None)
    launcher = find_launcher(built_with())
    arguments = [*sys.argv[1:], "--columns", f"{_columns(sys.stdout.fileno())},{_columns(sys.stderr.fileno())}"]
    command = mpirun_command(launcher, ranks, module_command("gradientflow.cli", arguments), hosts)
    return run_job(Job(command, launch_environment(launcher)))


def _plan(name: str, options: Mapping[str, Any]) -> Plan:
    """Make the plan of a command from its options; a barrier has fewer."""
    plan = Plan(
        collective=name,
        sizes=(0,) if name == "barrier" else parse_sizes(options["sizes"]),
        memories=parse_list(options.get("memory", "array")),
        algorithms=parse_list(options.get("algorithm", "auto")),
        peers=parse_list(options["compare"]),
        dtype=options.get("dtype", "float32"),
        op=options.get("op", "sum"),
        wires=parse_list(options.get("wire") or ""),
        iterations=options["iterations"],
        seconds=options["seconds"],
    )
    plan.check_peers()
    return plan


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
