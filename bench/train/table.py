"""The table of ``gradientflow bench train``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradientflow.bench.table import empty_table, print_fitting

from .plan import NONE, Entry
from .results import Figures, Run, TrainResult

_BASELINE = Entry("ddp-gloo")


def print_table(results: Sequence[TrainResult], console: Console) -> None:
    """Print all results, one block for each model.

    Parameters
    ----------
    results : sequence of TrainResult
        In the order to show them in.
    console : Console
        Where to; it may be a terminal or a file.
    """
    print_fitting(lambda without: results_table(results, without), _DISPENSABLE, console)


def legend(results: Sequence[TrainResult]) -> str:
    """Explain the columns of the table of these results."""
    text = "Times are those of the slowest rank; step is the median."
    if any(result.entry == Entry(NONE) for result in results):
        text += (
            " exposed is the step less that of none in the same turns. speed-up is over the samples per second of one "
            "rank of none."
        )
    if any(_least_exposed(result, results) is not None for result in results):
        text += " least is the time that the links need for the gradients less the backward pass of none."
    if any(result.figures is not None and result.figures.bookkeeping_ms is not None for result in results):
        text += " chunks is what the slowest rank spends with the chunks of sparse communication, whatever runs beside."
    if any(run.distance is not None for result in results for run in result.runs):
        text += (
            " distance is how far the parameters ended from those of single, over how far those have moved; that of "
            "single-accumulated is what rounding makes of it."
        )
    text += " loss and accuracy are of held-out samples, after the last step"
    several = any(len(result.runs) > 1 for result in results)
    return text + (": the mean over the seeds, and the range." if several else ".")


def results_table(results: Sequence[TrainResult], without: Sequence[str] = ()) -> Table:
    """Lay out the results.

    Parameters
    ----------
    results : sequence of TrainResult
        In the order to show them in.
    without : sequence of str
        Headings of columns to leave out.

    Returns
    -------
    Table
        With the columns of which anything is known.
    """
    columns = [
        column
        for column in _COLUMNS
        if column.heading not in without and any(column.text(result, results) for result in results)
    ]
    table: Table = empty_table()
    for heading in ("model", "contestant", "setting"):
        table.add_column(heading, no_wrap=True)
    for column in columns:
        table.add_column(f"{column.heading}\n{column.unit}", justify="right", no_wrap=True)
    for model in dict.fromkeys(result.model for result in results):
        block = [result for result in results if result.model == model]
        for number, result in enumerate(block):
            cells: list[Text | str] = [column.text(result, block) or "-" for column in columns]
            if result.wrong:
                cells = [Text("WRONG", style="bold red"), *[""] * (len(columns) - 1)]
            names = (model if number == 0 else "", result.entry.contestant, result.entry.setting)
            table.add_row(*names, *cells, end_section=number == len(block) - 1)
    return table


@dataclass(frozen=True)
class _Column:
    heading: str
    unit: str
    text: Callable[[TrainResult, Sequence[TrainResult]], str]  # of a result among those of its model


def _figure(heading: str, unit: str, value: Callable[[Figures], float | None], show: Callable[[float], str]) -> _Column:
    def text(result: TrainResult, block: Sequence[TrainResult]) -> str:
        found = None if result.figures is None else value(result.figures)
        return "" if found is None else show(found)

    return _Column(heading, unit, text)


def _final(heading: str, unit: str, value: Callable[[Run], float | None], show: Callable[[float], str]) -> _Column:
    def text(result: TrainResult, block: Sequence[TrainResult]) -> str:
        values = [found for run in result.runs if (found := value(run)) is not None]
        if not values:
            return ""
        mean = show(float(np.mean(values)))
        return mean if len(values) == 1 else f"{mean} ({show(min(values))}..{show(max(values))})"

    return _Column(heading, unit, text)


def _least_exposed(result: TrainResult, block: Sequence[TrainResult]) -> float | None:
    none = next((other.figures for other in block if other.entry == Entry(NONE) and other.model == result.model), None)
    if result.link_ms is None or none is None:
        return None
    return max(0.0, result.link_ms - none.backward_median_ms)


def _least_text(result: TrainResult, block: Sequence[TrainResult]) -> str:
    least = _least_exposed(result, block)
    return "" if least is None else milliseconds(least)


def _over_baseline(result: TrainResult, block: Sequence[TrainResult]) -> str:
    baseline = next(
        (other.figures for other in block if other.entry == _BASELINE and other.model == result.model), None
    )
    if baseline is None or result.figures is None or result.entry.is_reference:
        return ""
    return f"{baseline.step_median_ms / result.figures.step_median_ms:.2f}x"


def _bookkeeping_share(figures: Figures) -> float | None:
    return None if figures.bookkeeping_ms is None else 100 * figures.bookkeeping_ms / figures.step_median_ms


def milliseconds(value: float) -> str:
    """Write a time with three significant digits or so."""
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def megabytes(value: float) -> str:
    """Write bytes as 10^6 bytes."""
    return f"{value / 1e6:.3f}"


_COLUMNS = (
    _figure("step", "ms", lambda figures: figures.step_median_ms, milliseconds),
    _figure("p95", "ms", lambda figures: figures.step_p95_ms, milliseconds),
    _figure("backward", "ms", lambda figures: figures.backward_median_ms, milliseconds),
    _figure("exposed", "ms", lambda figures: figures.exposed_ms, milliseconds),
    _Column("least", "ms", _least_text),
    _figure("chunks", "ms", lambda figures: figures.bookkeeping_ms, milliseconds),
    _figure("chunks", "%", _bookkeeping_share, lambda share: f"{share:.1f}"),
    _figure("samples", "/s", lambda figures: figures.samples_per_second, lambda value: f"{value:.0f}"),
    _figure("speed-up", "", lambda figures: figures.speedup, lambda value: f"{value:.2f}x"),
    _Column("over", "ddp-gloo", _over_baseline),
    _figure("sent", "MB", lambda figures: figures.bytes_sent, megabytes),
    _figure("reported", "MB", lambda figures: figures.bytes_reported, megabytes),
    _final("loss", "", lambda run: run.curve[-1].loss if run.curve else None, lambda value: f"{value:.4f}"),
    _final(
        "accuracy", "%", lambda run: 100 * run.curve[-1].accuracy if run.curve else None, lambda value: f"{value:.2f}"
    ),
    _final("distance", "", lambda run: run.distance, lambda value: f"{value:.1e}"),
)
_DISPENSABLE = ("backward", "reported", "p95", "least", "accuracy", "speed-up")  # in this order
