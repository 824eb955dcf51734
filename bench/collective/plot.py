"""Plot of bandwidth against size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

from gradientflow.machine import format_size

from ..core.peers import OURS
from ..core.plot import OTHER_COLOR, OUR_COLORS, PEER_COLORS, plain_numbers
from ..core.table import grouped
from .columns import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A color for each algorithm and memory of ours, a line style for each wire.
_OUR_MARKERS = ("o", "^", "D", "v")  # the next one each time the colors repeat
_WIRE_STYLES = {"float16": "-.", "bfloat16": ":", "float8_e4m3": "--"}
_LEGEND_COLUMNS = 3


class _Style(TypedDict, total=False):
    color: str
    marker: str
    linestyle: str
    linewidth: float


def draw(figure: Figure, results: Sequence[Result]) -> str:
    """Draw all contestants of a collective over size: the call alone, and beside it the call with writing values."""
    right = [result for result in results if result.median_us]
    collective = right[0].collective if right else ""
    lines = list(grouped(right, lambda result: (result.key, result.transport)).values())
    figure.set_size_inches(11, 4.8 + 0.2 * math.ceil(len(lines) / _LEGEND_COLUMNS))
    alone, filled = figure.subplots(1, 2, sharex=True, sharey=True)
    ours = list(dict.fromkeys((result.algorithm, result.memory) for result in right if result.backend == OURS))
    several = len({result.transport for result in right} - {None}) > 1
    for line in lines:
        label, style = _appearance(line[0], ours)
        label += f", {line[0].transport}" if several and line[0].transport else ""
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
        plain_numbers(axes.xaxis, show=lambda size: format_size(int(size)))
        axes.set_xticks(sorted({result.bytes for result in right}))
        plain_numbers(axes.yaxis, steps=_steps(right))
        axes.grid(visible=True, which="major", alpha=0.3)
    alone.set_ylabel("algorithm bandwidth, GB/s")
    if right:
        handles = alone.get_legend_handles_labels()
        options = {"fontsize": 8, "frameon": False, "handlelength": 3.5, "columnspacing": 1}
        figure.legend(*handles, loc="outside lower center", ncols=_LEGEND_COLUMNS, **options)
    return "Medians of the slowest rank's times."


def _appearance(result: Result, ours: list[tuple[str, str]]) -> tuple[str, _Style]:
    """Choose the name and the style of a result's line."""
    if result.backend != OURS:
        color = PEER_COLORS.get(result.backend, OTHER_COLOR)
        return result.backend, {"color": color, "marker": "s", "linestyle": "--"}
    turn, number = divmod(ours.index((result.algorithm, result.memory)), len(OUR_COLORS))
    wire = f", {result.wire}" if result.wire != result.dtype else ""
    return f"GradientFlow, {result.memory}, {result.algorithm}{wire}", {
        "color": OUR_COLORS[number],
        "marker": _OUR_MARKERS[turn % len(_OUR_MARKERS)],
        "linestyle": _WIRE_STYLES.get(result.wire if wire else "", "-"),
        "linewidth": 2.0,
    }


def _steps(results: Sequence[Result]) -> tuple[int, ...]:
    """Choose the labels within a decade: more if the figures span few decades."""
    rates = [result.bytes / result.median_us for result in results if result.median_us]
    return (1, 2, 5) if rates and max(rates) < 1e3 * min(rates) else (1,)
