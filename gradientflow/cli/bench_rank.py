"""One rank of ``gradientflow bench``: measure with the others, and on rank 0 show and write what came out."""

from __future__ import annotations

import signal
import sys
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console

import gradientflow as gf
from gradientflow.bench.environment import describe_environment, environment_lines
from gradientflow.bench.plan import Plan
from gradientflow.bench.results import write_json
from gradientflow.bench.session import Outcome, Session
from gradientflow.bench.table import legend, print_table
from gradientflow.cli.job import die_with_parent
from gradientflow.errors import GradientFlowError

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator


# Drawn between sizes, by nothing that lives on in the background: a thread that redraws would disturb what is measured,
# and a hidden cursor would stay hidden when the job is interrupted.
_CLEAR_LINE = "\r\x1b[K"
_BAR_LENGTH = 30


@dataclass(frozen=True)
class Output:
    """Where the figures go.

    Attributes
    ----------
    arguments : list of str
        The command line, for the record.
    json_path, plot_path : str or None
        Files to write.
    out_columns, err_columns : int
        Widths of the terminals that mpirun forwards standard output and error to; 0 where there is none.
    with_cpu : bool
        Whether the table shows processor times.
    """

    arguments: list[str]
    json_path: str | None
    plot_path: str | None
    out_columns: int
    err_columns: int
    with_cpu: bool


def run_rank(plan: Plan, output: Output) -> int:
    """Measure as one of the job's ranks.

    Parameters
    ----------
    plan : Plan
        The same on all ranks.
    output : Output
        Where the figures go.

    Returns
    -------
    int
        The exit status: 1 where something was wrong. An exception on one rank ends the job.
    """
    die_with_parent(signal.SIGKILL)
    try:
        with gf.init() as comm:
            outcome = _measure(comm, plan, output)
            if comm.rank == 0:
                _report(outcome, describe_environment(comm, output.arguments, outcome.hosts, outcome.load), output)
            return 1 if outcome.wrong else 0
    except Exception as error:
        from mpi4py import MPI

        text = str(error) if isinstance(error, GradientFlowError) else traceback.format_exc()
        print(f"gradientflow: rank {MPI.COMM_WORLD.Get_rank()}: {text}", file=sys.stderr, flush=True)
        MPI.COMM_WORLD.Abort(1)  # the others may be waiting for this rank
        raise


def _measure(comm: Communicator, plan: Plan, output: Output) -> Outcome:
    # To standard output where that is seen: it and standard error overtake each other on their way through mpirun.
    file, columns = (sys.stdout, output.out_columns) if output.out_columns else (sys.stderr, output.err_columns)
    if comm.rank != 0 or columns == 0:
        return Session(comm, plan).run()

    def show(done: int, text: str) -> None:
        bar = "#" * round(_BAR_LENGTH * done / len(plan.sizes))
        file.write(f"{_CLEAR_LINE}[{bar:.<{_BAR_LENGTH}}] {text}"[: columns + len(_CLEAR_LINE) - 1])
        file.flush()

    try:
        return Session(comm, plan, show).run()
    finally:
        file.write(_CLEAR_LINE)
        file.flush()


def _report(outcome: Outcome, environment: dict[str, Any], output: Output) -> None:
    console = _console(sys.stdout, output.out_columns)
    for line in environment_lines(environment):
        console.print(line, highlight=False, soft_wrap=True)
    print_table(outcome.results, console, with_cpu=output.with_cpu)
    console.print(legend(outcome.results, with_cpu=output.with_cpu), highlight=False, markup=False)
    for sentence in outcome.remarks:
        console.print(sentence, style="yellow", highlight=False, markup=False)
    if output.json_path is not None:
        write_json(output.json_path, environment, outcome.results)
    if output.plot_path is not None:
        from gradientflow.bench.plot import save_plot

        save_plot(output.plot_path, outcome.results, environment)


def _console(file: TextIO, columns: int) -> Console:
    # What a rank sees says nothing: Open MPI gives its ranks pseudo-terminals and forwards what they print.
    return Console(file=file, force_terminal=columns > 0, width=columns or None)
