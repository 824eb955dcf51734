"""Output of rank 0: progress of a measurement, and its results."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rich.console import Console

from gradientflow.annotations import JsonObject
from gradientflow.json_option import JsonOutput

from .environment import describe_environment, environment_lines
from .plot import save_plot
from .results import figures_of, write_csv
from .table import AnyResult

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator

    from .command import Bench
    from .session import Observer, RunOutcome

# Drawn between stages, without a background thread: redraws would disturb the measurement, and a hidden cursor would
# stay hidden when the job is interrupted.
_CLEAR_LINE = "\r\x1b[K"
_BAR_LENGTH = 30


@dataclass(frozen=True)
class Output:
    """The destinations of the figures.

    Attributes
    ----------
    arguments : list of str
        The command line, for result files.
    json_output : JsonOutput or None
        Destination of all figures.
    csv_path, plot_path, page_path : str or None
        Files to write.
    out_columns, err_columns : int
        Widths of the terminals to which mpirun forwards standard output and error; 0 if there is none.
    with_cpu : bool
        True to show processor times.
    """

    arguments: list[str]
    json_output: JsonOutput | None
    plot_path: str | None
    out_columns: int
    err_columns: int
    with_cpu: bool = False
    csv_path: str | None = None
    page_path: str | None = None


@contextlib.contextmanager
def progress(comm: Communicator, output: Output, total: int) -> Iterator[Observer | None]:
    """Draw the progress of `total` stages, on rank 0 and if there is a terminal; give the observer that draws."""
    # On standard output if it is a terminal: mpirun does not keep the order of standard output and standard error.
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
    # A rank cannot find out the width by itself: Open MPI gives its ranks pseudo-terminals and forwards their output.
    return Console(file=file, force_terminal=columns > 0, width=columns or None)


def report(comm: Communicator, bench: Bench, outcome: RunOutcome[AnyResult], output: Output) -> None:
    """Show and write, on rank 0, the results of a measurement."""
    if comm.rank != 0:
        return
    environment: JsonObject = {
        **describe_environment(comm, output.arguments, outcome.hosts, outcome.load),
        **outcome.facts,
    }
    console = open_console(sys.stdout, output.out_columns)
    for line in environment_lines(environment):
        console.print(line, highlight=False, soft_wrap=True)
    tables = [(bench.layout, outcome.results), *((bench.others[name], found) for name, found in outcome.others.items())]
    for layout, results in tables:
        layout.print(results, console, with_cpu=output.with_cpu)
        if legend := layout.explain(results, with_cpu=output.with_cpu):
            console.print(legend, highlight=False, markup=False)
    for sentence in outcome.remarks:
        console.print(sentence, style="yellow", highlight=False, markup=False)
    if output.json_output is not None:
        output.json_output.write(figures_of(environment, outcome.results, outcome.others))
    if output.csv_path is not None:
        write_csv(output.csv_path, outcome.results)
    if output.page_path is not None and bench.page is not None:
        Path(output.page_path).write_text(bench.page(outcome.results, environment, outcome.remarks), encoding="utf-8")
    if output.plot_path is not None:
        save_plot(output.plot_path, bench.draw, outcome.results, environment)
