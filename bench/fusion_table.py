"""The table of ``gradientflow bench fusion``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .contestants import OURS
from .fusion import COPY_FUSION, PER_TENSOR
from .fusion_results import FusionResult
from .plan import format_size
from .shapes import MODELS
from .table import bandwidth, empty_table, percentage, print_fitting, ratios_text


def print_fusion_table(results: Sequence[FusionResult], console: Console, *, with_cpu: bool = False) -> None:
    """Print all results, one block for each model.

    Parameters
    ----------
    results : sequence of FusionResult
        In the order to show them in.
    console : Console
        Where to; it may be a terminal or a file.
    with_cpu : bool
        Whether to show processor times.
    """
    print_fitting(lambda without: fusion_table(results, without, with_cpu=with_cpu), _DISPENSABLE, console)


def fusion_legend(results: Sequence[FusionResult], *, with_cpu: bool = False) -> str:
    """Explain the columns of the table of these results."""
    text = (
        "Times of a step are those of the slowest rank; call is the median with all gradients written before, filled "
        "that of writing them one by one and averaging them, timed together. copied is what a rank copies for fusion "
        "in a step."
    )
    if any(result.link_share is not None for result in results):
        text += " link is the least time that the links need for what has to be sent, over call."
    if with_cpu:
        text += " cpu is the processor time of a step, of all ranks together."
    if any(result.backend != OURS for result in results):
        text += " The last columns are the time of copy fusion over the peer's allreduce, over ours."
    return text


def fusion_table(results: Sequence[FusionResult], without: Sequence[str] = (), *, with_cpu: bool = False) -> Table:
    """Lay out the results.

    Parameters
    ----------
    results : sequence of FusionResult
        In the order to show them in.
    without : sequence of str
        Headings of columns to leave out.
    with_cpu : bool
        Whether to show processor times.

    Returns
    -------
    Table
        With a column of ratios for each peer, and one for the wire where there is a choice.
    """
    peers = [peer for peer in dict.fromkeys(result.backend for result in results) if peer != OURS]
    wired = any(result.wire != result.dtype for result in results)
    columns = [
        column
        for column in _COLUMNS
        if column.heading not in without
        and (with_cpu or column.heading != "cpu")
        and (column.heading != "link" or any(result.link_share is not None for result in results))
    ]
    table = empty_table()
    for heading in ("model", "", "", *(["wire"] if wired else [])):
        table.add_column(heading, no_wrap=True)
    for heading in ("threshold", *(f"{column.heading}\n{column.unit}" for column in columns)):
        table.add_column(heading, justify="right", no_wrap=True)
    for peer in peers:
        table.add_column(f"copy {peer} / ours\ncall  filled", justify="right", no_wrap=True)
    for model in dict.fromkeys(result.model for result in results):
        block = [result for result in results if result.model == model]
        fused = {result.backend: result for result in block if result.method == COPY_FUSION}
        for number, result in enumerate(block):
            cells = [
                MODELS[model].title if number == 0 else "",
                _method(result),
                "ours" if result.backend == OURS else result.backend,
                *([result.wire] if wired else []),
                _threshold(result),
            ]
            shown: list[Text | str] = [column.show(column.value(result)) for column in columns]
            if result.wrong:
                shown = [Text("WRONG", style="bold red"), *[""] * (len(columns) - 1)]
            ratios = [_ratios(result, fused.get(peer)) for peer in peers]
            table.add_row(*cells, *shown, *ratios, end_section=number == len(block) - 1)
    return table


@dataclass(frozen=True)
class _Column:
    heading: str
    unit: str
    value: Callable[[FusionResult], float | None]
    show: Callable[[float | None], str]


def _milliseconds(microseconds: float | None) -> str:
    return "-" if microseconds is None else f"{microseconds / 1e3:#.4g}".rstrip(".")


def _mebibytes(count: float | None) -> str:
    return "0" if not count else f"{count / 2**20:.1f}"


_COLUMNS = (
    _Column("call", "ms", lambda result: result.median_us, _milliseconds),
    _Column("min", "ms", lambda result: result.min_us, _milliseconds),
    _Column("p95", "ms", lambda result: result.p95_us, _milliseconds),
    _Column("filled", "ms", lambda result: result.refill_median_us, _milliseconds),
    _Column("algbw", "GB/s", lambda result: result.algbw_GBps, bandwidth),
    _Column("busbw", "GB/s", lambda result: result.busbw_GBps, bandwidth),
    _Column("link", "%", lambda result: result.link_share, percentage),
    _Column("cpu", "ms", lambda result: result.cpu_us, _milliseconds),
    _Column("calls", "", lambda result: result.calls, lambda calls: f"{calls:.0f}"),
    _Column("copied", "MiB", lambda result: result.bytes_copied, _mebibytes),
)
_DISPENSABLE = ("min", "busbw", "p95", "algbw", "link", "calls")  # in this order


def _method(result: FusionResult) -> str:
    """Name the method, and the memory where there is a choice."""
    name = result.method.replace("-", " ")
    return f"{name}, {result.memory}" if result.method == PER_TENSOR else name


def _threshold(result: FusionResult) -> str:
    threshold = result.threshold_bytes
    return "" if threshold is None else threshold if isinstance(threshold, str) else format_size(threshold)


def _ratios(result: FusionResult, peer: FusionResult | None) -> Text:
    if result.backend != OURS or peer is None:
        return Text("")
    return ratios_text((result.median_us, peer.median_us), (result.refill_median_us, peer.refill_median_us))
