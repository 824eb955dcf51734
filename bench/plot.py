"""Bandwidth against size, as a picture. Needs matplotlib, which only this file imports."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from .contestants import OURS
from .environment import environment_lines
from .plan import format_size
from .results import Result

# A colour for each algorithm and memory of ours, a line style for each wire.
_OUR_COLOURS = ("#0b5fa5", "#2a9d8f", "#7a4fb5", "#5f8a3c", "#946b2d", "#17becf", "#c05a9a", "#6b7280")
_OUR_MARKERS = ("o", "^", "D", "v")  # the next one where the colours begin again
_WIRE_STYLES = {"float16": "-.", "bfloat16": ":"}
_PEER_COLOURS = {"mpi": "#d1495b", "gloo": "#e28413", "nccl": "#76b900"}
_LEGEND_COLUMNS = 3


def save_plot(path: str, results: Sequence[Result], environment: Mapping[str, Any]) -> None:
    """Draw all contestants over size: the call alone, and with writing the values beside it.

    Parameters
    ----------
    path : str
        The picture's file; the ending chooses the format.
    results : sequence of Result
        Of one collective; wrong ones are left out.
    environment : mapping
        Where they were measured, for the subtitle.
    """
    right = [result for result in results if result.median_us]
    collective = right[0].collective if right else ""
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        keys = dict.fromkeys(result.key for result in right)
        lines = [[result for result in right if result.key == key] for key in keys]
        rows = math.ceil(len(lines) / _LEGEND_COLUMNS)
        figure = Figure(figsize=(11, 4.8 + 0.2 * rows), layout="constrained")
        alone, filled = figure.subplots(1, 2, sharex=True, sharey=True)
        ours = list(dict.fromkeys((result.algorithm, result.memory) for result in right if result.backend == OURS))
        for line in lines:
            label, style = _appearance(line[0], ours)
            sizes = [result.bytes for result in line]
            for axes, times in (
                (alone, [result.median_us or 0.0 for result in line]),
                (filled, [result.refill_median_us or 0.0 for result in line]),
            ):
                rates = [size / (time * 1e3) for size, time in zip(sizes, times, strict=True)]
                axes.plot(sizes, rates, label=label, markersize=4.5, **style)
        for axes, title in ((alone, f"{collective} alone"), (filled, f"writing fresh values and {collective}")):
            axes.set_title(title)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xlabel("bytes")
            axes.set_xticks(sorted({result.bytes for result in right}))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: format_size(int(size))))
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.yaxis.set_major_locator(LogLocator(subs=_steps(right), numticks=30))
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))
            axes.grid(visible=True, which="major", alpha=0.3)
        alone.set_ylabel("algorithm bandwidth, GB/s")
        if right:
            figure.legend(
                *alone.get_legend_handles_labels(),
                loc="outside lower center",
                ncols=_LEGEND_COLUMNS,
                fontsize=8,
                frameon=False,
                handlelength=3.5,
                columnspacing=1,
            )
        where = f"{environment_lines(environment)[0]}; {environment['mpi']}"
        title_lines = [
            f"{where}. Medians of the slowest rank's times.",
            *textwrap.wrap(environment.get("warning", ""), 150),
        ]
        figure.suptitle("\n".join(title_lines), fontsize=9)
        figure.savefig(path, dpi=140)


def _appearance(result: Result, ours: list[tuple[str, str]]) -> tuple[str, dict[str, Any]]:
    """Choose the name and the look of the line that a result is on."""
    if result.backend != OURS:
        colour = _PEER_COLOURS.get(result.backend, "#555555")
        return result.backend, {"color": colour, "marker": "s", "linestyle": "--"}
    turn, number = divmod(ours.index((result.algorithm, result.memory)), len(_OUR_COLOURS))
    wire = f", {result.wire}" if result.wire != result.dtype else ""
    return f"GradientFlow, {result.memory}, {result.algorithm}{wire}", {
        "color": _OUR_COLOURS[number],
        "marker": _OUR_MARKERS[turn % len(_OUR_MARKERS)],
        "linestyle": _WIRE_STYLES.get(result.wire if wire else "", "-"),
        "linewidth": 2.0,
    }


def _steps(results: Sequence[Result]) -> tuple[int, ...]:
    """Choose the labels within a decade: more of them where the figures span few decades."""
    rates = [result.bytes / result.median_us for result in results if result.median_us]
    return (1, 2, 5) if rates and max(rates) < 1e3 * min(rates) else (1,)
