"""The table of results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.box import Box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .contestants import OURS
from .plan import format_size
from .results import Result

_MIN_PLAIN_WIDTH = 100

# A rule below the headings and an empty line between sizes, in characters that every terminal and file can hold.
_RULE = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)


def print_table(results: Sequence[Result], console: Console) -> None:
    """Print all results, one block for each size.

    Parameters
    ----------
    results : sequence of Result
        In the order to show them in.
    console : Console
        Where to; it may be a terminal or a file.
    """
    table = results_table(results)
    if console.is_terminal:
        for count in range(len(_DISPENSABLE) + 1):
            table = results_table(results, without=_DISPENSABLE[:count])
            if _width(table, console) <= console.width:
                break
    else:
        # Nobody can widen a pipe: take the width the table needs, so that nothing is cut or wrapped.
        console.width = max(_MIN_PLAIN_WIDTH, _width(table, console))
    console.print(table)


def legend(results: Sequence[Result]) -> str:
    """Explain the columns of the table of these results."""
    text = "Times are those of the slowest rank; call is the median."
    if any(result.bytes for result in results):
        text += (
            " filled is the median of writing fresh values into the buffer and the call, timed together: what a "
            "training step pays."
        )
    if any(result.backend != OURS for result in results):
        text += " The last columns are the peer's time over ours: below 1 we are slower."
    return text


def results_table(results: Sequence[Result], without: Sequence[str] = ()) -> Table:
    """Lay out the results.

    Parameters
    ----------
    results : sequence of Result
        In the order to show them in.
    without : sequence of str
        Headings of columns to leave out.

    Returns
    -------
    Table
        With a column of ratios for each peer, and one for the algorithm where there is a choice.
    """
    peers = [peer for peer in dict.fromkeys(result.backend for result in results) if peer != OURS]
    sized = any(result.bytes for result in results)
    columns = [column for column in _COLUMNS if column.heading not in without and (sized or not column.sized)]
    chosen = {result.algorithm for result in results if result.backend == OURS} - {"auto"}
    table = Table(box=_RULE, show_edge=False, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("size", justify="right", no_wrap=True)
    for heading in ("", "memory", "algorithm") if chosen else ("", "memory"):
        table.add_column(heading, no_wrap=True)
    headings = [f"{column.heading}\n{column.unit}" for column in columns]
    for heading in (*headings, *(f"{peer} / ours\n{'call  filled' if sized else 'call'}" for peer in peers)):
        table.add_column(heading, justify="right", no_wrap=True)
    for size in dict.fromkeys(result.bytes for result in results):
        block = [result for result in results if result.bytes == size]
        by_backend = {result.backend: result for result in block}
        for number, result in enumerate(block):
            cells: list[str] = [
                _size(result) if number == 0 else "",
                _OUR_NAME if result.backend == OURS else result.backend,
            ]
            cells += [result.memory, result.algorithm] if chosen else [result.memory]
            figures: list[Text | str] = [column.show(getattr(result, column.field)) for column in columns]
            if result.wrong:
                figures = [Text("WRONG", style="bold red"), *[""] * (len(columns) - 1)]
            ratios = [_ratios(result, by_backend.get(peer), sized) for peer in peers]
            table.add_row(*cells, *figures, *ratios, end_section=number == len(block) - 1)
    return table


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """Give how many times as fast we are; None where either was not measured."""
    return theirs / ours if ours and theirs else None


def microseconds(value: float | None) -> str:
    """Write a time with three or four significant digits and no exponent."""
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def bandwidth(value: float | None) -> str:
    """Write a bandwidth with three significant digits and no exponent."""
    if not value:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}" if value >= 1e-3 else f"{value:.6f}"


@dataclass(frozen=True)
class _Column:
    heading: str
    unit: str
    field: str
    show: Callable[[float | None], str]
    sized: bool = False  # has no meaning for a barrier


_COLUMNS = (
    _Column("call", "us", "median_us", microseconds),
    _Column("min", "us", "min_us", microseconds),
    _Column("p95", "us", "p95_us", microseconds),
    _Column("filled", "us", "refill_median_us", microseconds, sized=True),
    _Column("algbw", "GB/s", "algbw_GBps", bandwidth, sized=True),
    _Column("busbw", "GB/s", "busbw_GBps", bandwidth, sized=True),
)
_DISPENSABLE = ("min", "busbw", "p95")  # in this order, where a terminal is too narrow for all
_OUR_NAME = "ours"


def _width(table: Table, console: Console) -> int:
    return console.measure(table, options=console.options.update(width=400)).maximum


def _ratios(result: Result, peer: Result | None, sized: bool) -> Text:
    if result.backend != OURS or peer is None:
        return Text("")
    pairs = [(result.median_us, peer.median_us)]
    if sized:
        pairs.append((result.refill_median_us, peer.refill_median_us))
    parts: list[tuple[str, str] | str] = []
    for ours, theirs in pairs:
        times = ratio(ours, theirs)
        shown = "-" if times is None else f"{times:.{2 if times < 9.95 else 1 if times < 99.5 else 0}f}x"
        parts += [" ", (f"{shown:>6}", "" if times is None else "green" if times >= 1 else "red")]
    return Text.assemble(*parts[1:])


def _size(result: Result) -> str:
    return format_size(result.bytes) if result.bytes else "-"
