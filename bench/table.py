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


def print_table(results: Sequence[Result], console: Console, *, with_cpu: bool = False) -> None:
    """Print all results, one block for each size.

    Parameters
    ----------
    results : sequence of Result
        In the order to show them in.
    console : Console
        Where to; it may be a terminal or a file.
    with_cpu : bool
        Whether to show processor times.
    """
    print_fitting(lambda without: results_table(results, without, with_cpu=with_cpu), _DISPENSABLE, console)


def print_fitting(lay_out: Callable[[Sequence[str]], Table], dispensable: Sequence[str], console: Console) -> None:
    """Print a table with as many of its columns as fit.

    Parameters
    ----------
    lay_out : callable
        Makes the table; told which columns to leave out.
    dispensable : sequence of str
        Headings of columns to leave out, in this order, where a terminal is too narrow for all.
    console : Console
        Where to; it may be a terminal or a file.
    """
    table = lay_out(())
    least = _MIN_PLAIN_WIDTH  # nobody can widen a pipe
    if console.is_terminal:
        least = console.width
        for count in range(len(dispensable) + 1):
            table = lay_out(dispensable[:count])
            if _width(table, console) <= least:
                break
    # A terminal that is still too narrow breaks lines, but cuts none.
    console.width = max(least, _width(table, console))
    console.print(table)


def legend(results: Sequence[Result], *, with_cpu: bool = False) -> str:
    """Explain the columns of the table of these results."""
    text = "Times are those of the slowest rank; call is the median."
    if any(result.bytes for result in results):
        text += (
            " filled is the median of writing fresh values into the buffer and the call, timed together: what a "
            "training step pays."
        )
    if any(result.device == "cuda" for result in results):
        text += " Both end when the device is done; launch is how long the call keeps the host before that."
        if any(result.backend in ("mpi", "gloo") for result in results):
            text += " mpi and gloo copy to pinned memory of the host, call, and copy back."
    if any(result.link_share is not None for result in results):
        text += " link is the least time that the links need for what has to be sent, over call."
    if with_cpu:
        text += " cpu is the processor time of a call: of all ranks together, and for each byte and rank."
    if any(result.backend != OURS for result in results):
        text += " The last columns are the peer's time over ours: below 1 we are slower."
    return text


def results_table(results: Sequence[Result], without: Sequence[str] = (), *, with_cpu: bool = False) -> Table:
    """Lay out the results.

    Parameters
    ----------
    results : sequence of Result
        In the order to show them in.
    without : sequence of str
        Headings of columns to leave out.
    with_cpu : bool
        Whether to show processor times.

    Returns
    -------
    Table
        With a column of ratios for each peer, and one each for algorithm and wire where there is a choice.
    """
    peers = [peer for peer in dict.fromkeys(result.backend for result in results) if peer != OURS]
    sized = any(result.bytes for result in results)
    columns = [
        column
        for column in _COLUMNS
        if column.heading not in without
        and (sized or not column.sized)
        and (with_cpu or column.heading != "cpu")
        and (column.heading != "link" or any(result.link_share is not None for result in results))
        and (column.heading != "launch" or any(result.launch_us is not None for result in results))
    ]
    ours = [result for result in results if result.backend == OURS]
    names = ["memory"]
    names += ["algorithm"] if any(result.algorithm != "auto" for result in ours) else []
    names += ["wire"] if any(result.wire != result.dtype for result in ours) else []
    table = empty_table()
    table.add_column("size", justify="right", no_wrap=True)
    for heading in ("", *names):
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
            cells += [getattr(result, name) for name in names]
            figures: list[Text | str] = [column.show(column.value(result)) for column in columns]
            if result.wrong:
                figures = [Text("WRONG", style="bold red"), *[""] * (len(columns) - 1)]
            ratios = [_ratios(result, by_backend.get(peer), sized) for peer in peers]
            table.add_row(*cells, *figures, *ratios, end_section=number == len(block) - 1)
    return table


def empty_table() -> Table:
    """Make a table without columns, in the style of all."""
    return Table(box=_RULE, show_edge=False, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """Give how many times as fast we are; None where either was not measured."""
    return theirs / ours if ours and theirs else None


def ratios_text(*pairs: tuple[float | None, float | None]) -> Text:
    """Write how many times as fast we are, for each pair of our time and theirs."""
    parts: list[tuple[str, str] | str] = []
    for ours, theirs in pairs:
        times = ratio(ours, theirs)
        shown = "-" if times is None else f"{times:.{2 if times < 9.95 else 1 if times < 99.5 else 0}f}x"
        parts += [" ", (f"{shown:>6}", "" if times is None else "green" if times >= 1 else "red")]
    return Text.assemble(*parts[1:])


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


def percentage(value: float | None) -> str:
    """Write a share in per cent."""
    return "-" if value is None else f"{100 * value:.0f}"


@dataclass(frozen=True)
class _Column:
    heading: str
    unit: str
    value: Callable[[Result], float | None]
    show: Callable[[float | None], str]
    sized: bool = False  # has no meaning for a barrier


def _cpu_per_byte(result: Result) -> float | None:
    return None if result.cpu_us is None else result.cpu_us * 1e3 / (result.bytes * result.ranks)


_COLUMNS = (
    _Column("call", "us", lambda result: result.median_us, microseconds),
    _Column("min", "us", lambda result: result.min_us, microseconds),
    _Column("p95", "us", lambda result: result.p95_us, microseconds),
    _Column("launch", "us", lambda result: result.launch_us, microseconds),
    _Column("filled", "us", lambda result: result.refill_median_us, microseconds, sized=True),
    _Column("algbw", "GB/s", lambda result: result.algbw_GBps, bandwidth, sized=True),
    _Column("busbw", "GB/s", lambda result: result.busbw_GBps, bandwidth, sized=True),
    _Column("link", "%", lambda result: result.link_share, percentage, sized=True),
    _Column("cpu", "us", lambda result: result.cpu_us, microseconds),
    _Column("cpu", "ns/B", _cpu_per_byte, bandwidth, sized=True),
)
_DISPENSABLE = ("min", "busbw", "p95", "algbw", "link")  # in this order, where a terminal is too narrow for all
_OUR_NAME = "ours"


def _width(table: Table, console: Console) -> int:
    return console.measure(table, options=console.options.update(width=400)).maximum


def _ratios(result: Result, peer: Result | None, sized: bool) -> Text:
    if result.backend != OURS or peer is None:
        return Text("")
    return ratios_text(
        (result.median_us, peer.median_us), *([(result.refill_median_us, peer.refill_median_us)] if sized else [])
    )


def _size(result: Result) -> str:
    return format_size(result.bytes) if result.bytes else "-"
