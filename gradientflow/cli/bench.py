"""``gradientflow bench``: measure ours and other libraries side by side.

A bench measures several ranks. Outside an MPI job its command checks the options and starts itself again under mpirun.
It tells the ranks the width of the terminal that its own output goes to, if any, because ranks cannot see the terminal.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

import gradientflow as gf
from gradientflow.bench.core.case import COLLECTIVES
from gradientflow.bench.core.command import Bench
from gradientflow.bench.core.packages import check_packages
from gradientflow.bench.core.plan import AUTO, PlanError, check_writable, without_mpi
from gradientflow.bench.core.report import Output, progress, report
from gradientflow.cli.again import start_again
from gradientflow.cli.job import die_with_parent
from gradientflow.cli.lazy import LazyCommand
from gradientflow.errors import GradientFlowError
from gradientflow.job import asked_transport
from gradientflow.json_option import JsonOption
from gradientflow.launch import rank_of_this_process, ranks_of_this_job, ranks_to_start
from gradientflow.meeting import find_plan

_PLOT_FORMATS = (".png", ".pdf", ".svg")
_LEFT_OUT = ", and without MPI's columns"
_FILES = frozenset({"csv_path", "plot_path", "page_path"})
_COMMON_WIDTH = 80

_RANKS = (
    click.Option(
        ["-n", "--ranks"],
        type=int,
        metavar="N",
        help="Number of ranks to start (default: one for each slot; under mpirun, its ranks).",
    ),
    click.Option(["--hosts"], metavar="A:SLOTS,B:SLOTS", help="Hosts to start ranks on (default: this machine)."),
)
_CSV = click.Option(["--csv", "csv_path"], metavar="FILE", help="File for figures, one line for each result.")
_COLUMNS = click.Option(["--columns"], hidden=True, help="Widths of the terminals behind stdout and stderr.")

# Summaries of the benches. Benches of collectives share a folder of gradientflow.bench; every other bench has its own.
_BENCHES = {
    **{name: f"Measure {name}." for name in COLLECTIVES},
    "fusion": (
        "Measure one allreduce for each tensor, fusion by copying, and the gradient pool, on gradients of whole models."
    ),
    "kernels": "Measure the compute kernels, on one core or on a CUDA device, beside plain copies of as many bytes.",
    "ps": "Measure pushing gradients to parameter servers and pulling weights, beside MPI and torch.distributed.rpc.",
    "sparse": "Measure coarse-grained sparse communication beside dense exchanges of the same gradients.",
    "train": "Train a perceptron, convolutional networks and a character LSTM on real data, beside DDP.",
    "zipline": "Compare the searches for the next barrier of ElasticBSP: results and times.",
}

# Benches with a command of their own, which starts the jobs that it needs.
_OWN = {
    "first": "Measure training without settings, beside DDP over Gloo.",
    "jax": "Measure unchanged programs of JAX beside gloo, and calls in jit.",  # a process of JAX has one library
    "model": "Predict steps on emulated hosts, then measure them.",
    "torch": "Measure calls of PyTorch's process group beside Gloo and the communicator.",
}


@click.group()
def bench() -> None:
    """Measure ours and other libraries side by side in one run.

    Every result is checked, element by element; if one is wrong, the exit status is 1.
    """


class BenchCommand(click.Command):
    """Command of a bench; its result is the exit status.

    Parameters
    ----------
    what : Bench
        The bench.
    summary : str
        Description for the help.
    """

    def __init__(self, what: Bench, summary: str) -> None:
        self._bench = what
        params = [*what.options, *(_RANKS if what.in_job else ()), JsonOption(), _CSV, _COLUMNS]
        super().__init__(what.name, params=params, help=summary)

    def invoke(self, ctx: click.Context) -> int:
        """Measure, as a rank inside an MPI job or as a process that needs no job; otherwise start a job."""
        options, named = ctx.params, {option.name for option in self._bench.options} - _FILES - {"with_cpu"}
        plan = self._bench.plan(**{name: options[name] for name in named if options[name] is not None})
        check_packages(f"bench {self.name}", *self._bench.packages)
        for peer in {"gloo", "rpc"}.intersection(plan.peers):
            check_packages(f"--compare {peer}", "torch")
        _check_files(options)
        inside, ranks = ranks_of_this_job(), options.get("ranks")
        if not self._bench.in_job:
            if inside not in (None, 1):
                raise PlanError(f"bench {self.name} measures one process: start it without mpirun")
            plan.check_job(1, on_this_machine=True)
            return self._measure(plan, _output(options, _columns()))
        if inside is not None:
            if ranks not in (None, inside):
                raise PlanError(f"-n {ranks} was given, but this MPI job has {inside} ranks: leave -n out under mpirun")
            if not _is_of_mpi():
                if options["columns"] is None and without_mpi(plan) != plan and not rank_of_this_process():
                    click.echo(f"gradientflow: over TCP{_LEFT_OUT}", err=True)
                plan = without_mpi(plan)
            return self._measure_in_job(plan, _output(options, [0, 0]))
        ranks = ranks_to_start(ranks, options["hosts"])
        plan.check_job(ranks, on_this_machine=options["hosts"] is None)
        needs_mpi = "mpi" in (asked_transport(), *getattr(plan, "transports", ()))
        arguments = [*sys.argv[1:], "--columns", ",".join(map(str, _columns()))]
        return start_again(arguments, ranks, options["hosts"], "mpi" if needs_mpi else AUTO, _LEFT_OUT)

    def _measure(self, plan: Any, output: Output) -> int:
        transports = getattr(plan, "transports", (AUTO,))
        with gf.init(transport=None if AUTO in transports else transports[0]) as comm:
            with progress(comm, output, plan.stages) as show:
                outcome = self._bench.session(comm, plan, show).run()
            report(comm, self._bench, outcome, output)
        return 1 if outcome.wrong else 0

    def _measure_in_job(self, plan: object, output: Output) -> int:
        """Measure as a rank of a job; an exception on one rank ends the job."""
        die_with_parent(signal.SIGKILL)
        try:
            return self._measure(plan, output)
        except Exception as error:
            text = str(error) if isinstance(error, GradientFlowError) else traceback.format_exc()
            print(f"gradientflow: rank {rank_of_this_process()}: {text}", file=sys.stderr, flush=True)
            mpi: Any = sys.modules.get("mpi4py.MPI")
            if mpi is not None:
                mpi.COMM_WORLD.Abort(1)  # other ranks may wait for this rank
            return 1


def _load(name: str) -> BenchCommand:
    folder = "collective" if name in COLLECTIVES else name
    benches: tuple[Bench, ...] = importlib.import_module(f"gradientflow.bench.{folder}.command").BENCHES
    return BenchCommand(next(what for what in benches if what.name == name), _BENCHES[name])


for _name, _summary in _BENCHES.items():
    bench.add_command(LazyCommand(_name, _summary, partial(_load, _name)))


def _load_own(name: str) -> click.Command:
    found: click.Command = getattr(importlib.import_module(f"gradientflow.bench.{name}.command"), name)
    return found


for _name, _summary in _OWN.items():
    bench.add_command(LazyCommand(_name, _summary, partial(_load_own, _name)))


def _moved(name: str) -> click.Command:
    def say() -> None:
        raise click.UsageError(f"bench {name} has moved to the sources: python tests/chaos {name}")

    settings = {"ignore_unknown_options": True}
    arguments = click.Argument(["arguments"], nargs=-1, expose_value=False)
    return click.Command(
        name, context_settings=settings, callback=say, params=[arguments], add_help_option=False, hidden=True
    )


for _name in ("join", "survive"):
    bench.add_command(_moved(_name))


def _is_of_mpi() -> bool:
    """Return True if this rank belongs to an MPI job."""
    return find_plan(os.environ, transport=asked_transport()).by_mpi


def _output(options: Mapping[str, Any], columns: list[int]) -> Output:
    """Return the outputs for the figures. The last arguments of a rank may be the widths of the terminals."""
    arguments = sys.argv[1:]
    if options["columns"] is not None:
        arguments, columns = arguments[:-2], [int(width) for width in options["columns"].split(",")]
    with_cpu = options.get("with_cpu", False)
    out_columns, err_columns = columns
    files = {name: options.get(name) for name in (*_FILES, "json_output")}
    return Output(arguments, out_columns=out_columns, err_columns=err_columns, with_cpu=with_cpu, **files)


def _check_files(options: Mapping[str, Any]) -> None:
    """Raise before the measurement if its figures cannot be written."""
    for path in filter(None, (options.get(name) for name in (*_FILES, "resume"))):
        check_writable(path)
    plot_path = options.get("plot_path")
    if plot_path is not None and Path(plot_path).suffix.lower() not in _PLOT_FORMATS:
        raise PlanError(f"--plot draws {', '.join(_PLOT_FORMATS)} files, not {plot_path}")
    for name, option, packages in (
        ("plot_path", "--plot", ("matplotlib",)),
        ("page_path", "--report", ("matplotlib", "jinja2")),
    ):
        if options.get(name) is not None:
            check_packages(option, *packages)


def _columns() -> list[int]:
    """Return the widths of the terminals of standard output and error; 0 for a stream that is no terminal."""
    descriptors = (stream.fileno() for stream in (sys.stdout, sys.stderr))
    # Pseudo-terminals opened by programs often do not know their width.
    return [os.get_terminal_size(number).columns or _COMMON_WIDTH if os.isatty(number) else 0 for number in descriptors]
