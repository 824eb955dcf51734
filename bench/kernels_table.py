"""The table of ``gradientflow bench kernels``."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .kernels_results import KernelResult
from .plan import format_size
from .table import bandwidth, empty_table, microseconds, print_fitting, ratios_text

_FIGURES = ("call\nus", "p95\nus", "moved\nGB/s", "copy\nGB/s", "moved / copy")
_DISPENSABLE = ("p95\nus", "call\nus")


def print_kernels_table(results: Sequence[KernelResult], console: Console) -> None:
    """Print all results, one block for each size.

    Parameters
    ----------
    results : sequence of KernelResult
        In the order to show them in.
    console : Console
        Where to; it may be a terminal or a file.
    """
    print_fitting(lambda without: _lay_out(results, without), _DISPENSABLE, console)


def kernels_legend(results: Sequence[KernelResult]) -> str:
    """Explain the columns of the table of these results."""
    text = (
        "Sizes are bytes of the gradients as float32; with 16-bit floats there are as many. call is the median. moved "
        "counts the bytes that a kernel reads and writes, copy is "
    )
    if any(result.device == "cuda" for result in results):
        return text + (
            "cudaMemcpyAsync on the device on as many bytes, read and written. Times are the device's, of one of many "
            "launches in a row."
        )
    levels = ", ".join(dict.fromkeys(result.simd for result in results))
    return f"{text}memcpy on as many bytes, read and written. One processor core, {levels}."


def _lay_out(results: Sequence[KernelResult], without: Sequence[str]) -> Table:
    table = empty_table()
    table.add_column("size", justify="right", no_wrap=True)
    for heading in ("kernel", "gradients"):
        table.add_column(heading, no_wrap=True)
    headings = [heading for heading in _FIGURES if heading not in without]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for size in dict.fromkeys(result.bytes for result in results):
        block = [result for result in results if result.bytes == size]
        for number, result in enumerate(block):
            before = block[number - 1].kernel if number else ""
            cells = [format_size(size) if number == 0 else "", result.kernel if result.kernel != before else ""]
            figures = _figures(result)
            shown: list[str | Text] = [figures[heading] for heading in headings]
            if result.wrong:
                shown = [Text("WRONG", style="bold red"), *[""] * (len(headings) - 1)]
            table.add_row(*cells, result.dtype, *shown, end_section=number == len(block) - 1)
    return table


def _figures(result: KernelResult) -> dict[str, str | Text]:
    cells: tuple[str | Text, ...] = (
        microseconds(result.median_us),
        microseconds(result.p95_us),
        bandwidth(result.bandwidth_GBps),
        bandwidth(result.copy_GBps),
        ratios_text((result.median_us, result.copy_median_us)),
    )
    return dict(zip(_FIGURES, cells, strict=True))
