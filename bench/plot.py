"""Bandwidth against size, as a picture. Needs matplotlib, which only this file imports."""

from __future__ import annotations

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

_OUR_COLOURS = ("#0b5fa5", "#2a9d8f", "#7a4fb5", "#4c78a8", "#5f8a3c", "#946b2d")
_PEER_COLOURS = {"mpi": "#d1495b", "gloo": "#e28413", "nccl": "#76b900"}


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
        figure = Figure(figsize=(11, 4.8), layout="constrained")
        alone, filled = figure.subplots(1, 2, sharex=True, sharey=True)
        ours = 0
        for key in dict.fromkeys(result.key for result in right):
            line = [result for result in right if result.key == key]
            if key[0] == OURS:
                style = {"color": _OUR_COLOURS[ours % len(_OUR_COLOURS)], "marker": "o", "linewidth": 2.0}
                ours += 1
            else:
                style = {"color": _PEER_COLOURS.get(key[0], "#555555"), "marker": "s", "linestyle": "--"}
            label = f"GradientFlow, {key[2]}, {key[1]}" if key[0] == OURS else key[0]
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
            alone.legend(frameon=False)
        where = f"{environment_lines(environment)[0]}; {environment['mpi']}"
        lines = [f"{where}. Medians of the slowest rank's times.", *textwrap.wrap(environment.get("warning", ""), 150)]
        figure.suptitle("\n".join(lines), fontsize=9)
        figure.savefig(path, dpi=140)


def _steps(results: Sequence[Result]) -> tuple[int, ...]:
    """Choose the labels within a decade: more of them where the figures span few decades."""
    rates = [result.bytes / result.median_us for result in results if result.median_us]
    return (1, 2, 5) if rates and max(rates) < 1e3 * min(rates) else (1,)
