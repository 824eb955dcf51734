"""One rank of ``gradientflow bench``: measure with the others, and on rank 0 show and write what came out."""

from __future__ import annotations

import contextlib
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    """

    arguments: list[str]
    json_path: str | None
    plot_path: str | None
    out_columns: int
    err_columns: int


def run_rank(plan: Plan, output: Output, *, with_cpu: bool) -> int:
    """Measure collectives as one of the job's ranks.

    Parameters
    ----------
    plan : Plan
        The same on all ranks.
    output : Output
        Where the figures go.
    with_cpu : bool
        Whether the table shows processor times.

    Returns
    -------
    int
        The exit status: 1 where something was wrong.
    """

    def work(comm: Communicator) -> int:
        with progress(comm, output, len(plan.sizes)) as show:
            outcome = Session(comm, plan, show).run()

        def print_figures(console: Console) -> None:
            print_table(outcome.results, console, with_cpu=with_cpu)
            console.print(legend(outcome.results, with_cpu=with_cpu), highlight=False, markup=False)

        def draw(path: str, environment: Mapping[str, Any]) -> None:
            from gradientflow.bench.plot import save_plot

            save_plot(path, outcome.results, environment)

        report(comm, outcome, output, print_figures, draw)
        return 1 if outcome.wrong else 0

    return run_in_job(work)


def run_in_job(work: Callable[[Communicator], int]) -> int:
    """Do a rank's work; an exception on one rank ends the job.

    Parameters
    ----------
    work : callable
        Takes the communicator of all ranks, and gives the exit status.

    Returns
    -------
    int
        The exit status.
    """
    die_with_parent(signal.SIGKILL)
    try:
        with gf.init() as comm:
            return work(comm)
    except Exception as error:
        from mpi4py import MPI

        text = str(error) if isinstance(error, GradientFlowError) else traceback.format_exc()
        print(f"gradientflow: rank {MPI.COMM_WORLD.Get_rank()}: {text}", file=sys.stderr, flush=True)
        MPI.COMM_WORLD.Abort(1)  # the others may be waiting for this rank
        raise


@contextlib.contextmanager
def progress(comm: Communicator, output: Output, total: int) -> Iterator[Callable[[int, str], None] | None]:
    """Draw, on rank 0 and where there is a terminal, how far the work is.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    output : Output
        Tells of the terminals.
    total : int
        How much there is to do.

    Yields
    ------
    callable or None
        To be told how much is done, and what comes now; None where nothing is drawn.
    """
    # To standard output where that is seen: it and standard error overtake each other on their way through mpirun.
    file, columns = (sys.stdout, output.out_columns) if output.out_columns else (sys.stderr, output.err_columns)
    if comm.rank != 0 or columns == 0:
        yield None
        return

    def show(done: int, text: str) -> None:
        bar = "#" * round(_BAR_LENGTH * done / total)
        file.write(f"{_CLEAR_LINE}[{bar:.<{_BAR_LENGTH}}] {text}"[: columns + len(_CLEAR_LINE) - 1])
        file.flush()

    try:
        yield show
    finally:
        file.write(_CLEAR_LINE)
        file.flush()


def open_console(file: TextIO, columns: int) -> Console:
    """Make a console whose terminal, if any, is this many columns wide."""
    # What a rank sees says nothing: Open MPI gives its ranks pseudo-terminals and forwards what they print.
    return Console(file=file, force_terminal=columns > 0, width=columns or None)


def report(
    comm: Communicator,
    outcome: Outcome[Any],
    output: Output,
    print_figures: Callable[[Console], None],
    save_plot: Callable[[str, Mapping[str, Any]], None],
    others: Mapping[str, Sequence[Any]] | None = None,
) -> None:
    """Show and write, on rank 0, what came out of a measurement.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    outcome : Outcome
        What came out.
    output : Output
        Where the figures go.
    print_figures : callable
        Prints the table and what explains it.
    save_plot : callable
        Told the picture's file, and where the figures were measured.
    others : mapping, optional
        Further results, by the names that they have in the file.
    """
    if comm.rank != 0:
        return
    environment = {
        **describe_environment(comm, output.arguments, outcome.hosts, outcome.load),
        **outcome.device,
    }
    console = open_console(sys.stdout, output.out_columns)
    for line in environment_lines(environment):
        console.print(line, highlight=False, soft_wrap=True)
    print_figures(console)
    for sentence in outcome.remarks:
        console.print(sentence, style="yellow", highlight=False, markup=False)
    if output.json_path is not None:
        write_json(output.json_path, environment, outcome.results, others)
    if output.plot_path is not None:
        save_plot(output.plot_path, environment)
