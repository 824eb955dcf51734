"""The table of ``gradientflow bench sparse``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .contestants import OURS
from .plan import format_size
from .sparse import CSC, DENSE
from .sparse_results import SparseResult
from .table import empty_table, percentage, print_fitting, ratios_text


def print_sparse_table(results: Sequence[SparseResult], console: Console, *, with_cpu: bool = False) -> None:
    """Print all results, one block for each model and chunk size.

    Parameters
    ----------
    results : sequence of SparseResult
        In the order to show them in.
    console : Console
        Where to; it may be a terminal or a file.
    with_cpu : bool
        Whether to show processor times.
    """
    print_fitting(lambda without: sparse_table(results, without, with_cpu=with_cpu), _DISPENSABLE, console)


def sparse_legend(results: Sequence[SparseResult], *, with_cpu: bool = False) -> str:
    """Explain the columns of the table of these results."""
    text = (
        "Times of a step are those of the slowest rank; call is the median with all gradients written before, filled "
        "that of writing them one by one, exchanging them as they come and waiting for the rest."
    )
    if any(result.method == CSC for result in results):
        text += (
            " chunks is what the slowest rank spends with gathering, holding back, scattering and choosing chunks, "
            "while backpropagation and communication go on or not; % of filled."
        )
    if any(result.bytes_sent is not None for result in results):
        text += " sent is what a rank sends in a step, as the network interface counts it."
    if any(result.bytes_reported for result in results):
        text += " reported is the same as the library says, norms included."
    if any(result.link_share is not None for result in results):
        text += " link is the least time that the links need for the gradients that are sent, over call."
    if with_cpu:
        text += " cpu is the processor time of a step, of all ranks together."
    return text + " The last columns are the time of the dense exchange, over this one's."


def sparse_table(results: Sequence[SparseResult], without: Sequence[str] = (), *, with_cpu: bool = False) -> Table:
    """Lay out the results.

    Parameters
    ----------
    results : sequence of SparseResult
        In the order to show them in.
    without : sequence of str
        Headings of columns to leave out.
    with_cpu : bool
        Whether to show processor times.

    Returns
    -------
    Table
        With the columns of which anything is known, and one of ratios for each dense way.
    """
    dense = list(dict.fromkeys(result.backend for result in results if result.method == DENSE))
    wired = any(result.wire != result.dtype for result in results)
    columns = [
        column
        for column in _COLUMNS
        if column.heading not in without
        and (with_cpu or column.heading != "cpu")
        and any(column.value(result) for result in results)
    ]
    table = empty_table()
    for heading in ("model", "chunk", "", "density", *(["wire"] if wired else [])):
        table.add_column(heading, no_wrap=True)
    for column in columns:
        table.add_column(f"{column.heading}\n{column.unit}", justify="right", no_wrap=True)
    for backend in dense:
        name = "dense" if backend == OURS else backend
        table.add_column(f"{name} / this\ncall  filled", justify="right", no_wrap=True)
    for model, chunk_size in dict.fromkeys((result.model, result.chunk_size) for result in results):
        block = [result for result in results if (result.model, result.chunk_size) == (model, chunk_size)]
        for number, result in enumerate(block):
            cells = [
                *((model, format_size(chunk_size)) if number == 0 else ("", "")),
                result.method if result.backend == OURS else result.backend,
                "" if result.density is None else f"{result.density:g}",
                *([result.wire] if wired else []),
            ]
            shown: list[Text | str] = [column.show(column.value(result)) for column in columns]
            if result.wrong:
                shown = [Text("WRONG", style="bold red"), *[""] * (len(columns) - 1)]
            ratios = [_ratios(result, _dense_beside(result, backend, block)) for backend in dense]
            table.add_row(*cells, *shown, *ratios, end_section=number == len(block) - 1)
    return table


@dataclass(frozen=True)
class _Column:
    heading: str
    unit: str
    value: Callable[[SparseResult], float | None]
    show: Callable[[float | None], str]


def _milliseconds(microseconds: float | None) -> str:
    return "-" if microseconds is None else f"{microseconds / 1e3:#.4g}".rstrip(".")


def _megabytes(count: float | None) -> str:
    return "-" if count is None else f"{count / 1e6:.3f}"


_COLUMNS = (
    _Column("call", "ms", lambda result: result.median_us, _milliseconds),
    _Column("min", "ms", lambda result: result.min_us, _milliseconds),
    _Column("p95", "ms", lambda result: result.p95_us, _milliseconds),
    _Column("filled", "ms", lambda result: result.refill_median_us, _milliseconds),
    _Column("chunks", "ms", lambda result: result.bookkeeping_us, _milliseconds),
    _Column("chunks", "% of filled", lambda result: result.bookkeeping_share, percentage),
    _Column("link", "%", lambda result: result.link_share, percentage),
    _Column("sent", "MB", lambda result: result.bytes_sent, _megabytes),
    _Column("reported", "MB", lambda result: result.bytes_reported, _megabytes),
    _Column("cpu", "ms", lambda result: result.cpu_us, _milliseconds),
)
_DISPENSABLE = ("min", "p95", "link", "reported", "chunks")  # in this order


def _dense_beside(result: SparseResult, backend: str, block: Sequence[SparseResult]) -> SparseResult | None:
    """Find what a result is compared with: of ours what travels is rounded alike."""
    for other in block:
        if other.method == DENSE and other.backend == backend and (backend != OURS or other.wire == result.wire):
            return other
    return None


def _ratios(result: SparseResult, dense: SparseResult | None) -> Text:
    if result.backend != OURS or dense is None or dense == result:
        return Text("")
    return ratios_text((result.median_us, dense.median_us), (result.refill_median_us, dense.refill_median_us))
