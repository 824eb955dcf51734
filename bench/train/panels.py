"""Plots of the page as SVG: rows of bars, and curves with a panel for each family, so that lines differ visibly.

They need matplotlib, which only the plot modules import.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from operator import attrgetter
from statistics import median
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from gradientflow.spread import spread

from ..core.plot import plain_numbers
from .colors import BASELINE_COLOR, FAMILIES, family
from .entry import BASELINE, Entry
from .results import TrainResult, milliseconds

Curve = NDArray[np.float64]  # two rows: the coordinates
Points = Callable[[TrainResult], list[list[tuple[float, float]]]]  # points of each curve of a result

_PALE = "#dddddd"
_UNKNOWN = "#999999"
_STYLE: Any = {
    "font.size": 9,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",  # keeps text as text, which can be searched
    "text.parse_math": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
}
_PANEL = (4.6, 2.9)  # inches
_COLUMNS = 3
_LOGARITHMIC_FROM = 4  # least ratio of the largest loss to the smallest
_ROOM = 1.6  # length of the horizontal axis over that of the curves, to leave room for names
_NAMES = 0.68  # position at which names begin, as a share of the width
_LONG = 2.5  # curves longer than this times the median are cut off
_GAP = 0.062  # distance between labels, as a share of the height of a panel
_AXES = {  # (label, factor) by attribute of a point
    "seconds": ("seconds of training", 1.0),
    "sent": ("megabytes that a rank has sent", 1e-6),
    "loss": ("loss", 1.0),
    "accuracy": ("accuracy, %", 100.0),
}


@mpl.rc_context(_STYLE)
def draw_rows(results: Sequence[TrainResult], colors: Mapping[Entry, str]) -> str:
    """Draw the figures of one model as bars: a row for each contestant, the fastest on top."""
    timed = [result for result in results if result.figures is not None]
    timed.sort(key=attrgetter("figures.samples_per_second"), reverse=True)
    found = [([_finite(bars[-1](result)) for result in timed], bars) for bars in _BARS]
    columns = [(values, bars) for values, bars in found if any(values)]
    figure = Figure((3.0 + 2.35 * len(columns), 0.9 + 0.235 * len(timed)), layout="constrained")
    panels = figure.subplots(1, max(1, len(columns)), sharey=True, squeeze=False)[0]
    for axes, (values, (title, unit, show, _)) in zip(panels, columns, strict=False):
        _draw_bars(axes, timed, values, show, colors)
        axes.set_title(title)
        axes.set_xlabel(unit)
    panels[0].set_yticks(range(len(timed)), [result.entry.short for result in timed])
    for tick, result in zip(panels[0].get_yticklabels(), timed, strict=True):
        tick.set_color(colors[result.entry])
    panels[0].set_ylim(len(timed) - 0.4, -0.6)
    return _svg(figure, "Bars: " + ", ".join(title for _, (title, *_) in columns))


def _draw_bars(
    axes: Axes,
    results: Sequence[TrainResult],
    values: Sequence[float | None],
    show: Callable[[float], str],
    colors: Mapping[Entry, str],
) -> None:
    """Draw a bar for each result, with its value at the end, and a line at the baseline. Values below 0 are noise."""
    beside: dict[str, Any] = {"xytext": (3, 0), "textcoords": "offset points", "va": "center"}
    for place, (result, value) in enumerate(zip(results, values, strict=True)):
        if value is None or value < 0:
            text = "not known" if value is None else "0, within the noise"
            axes.annotate(text, (0, place), color=_UNKNOWN, fontsize=7, **beside)
            continue
        alpha = 0.5 if result.entry.is_reference else 0.9
        axes.barh(place, value, color=colors[result.entry], alpha=alpha, height=0.72)
        axes.annotate(show(value), (value, place), fontsize=7.5, **beside)
        if result.entry == BASELINE:
            axes.axvline(value, color=BASELINE_COLOR, linewidth=0.8, linestyle=":")
    largest = max((value for value in values if value is not None), default=0.0)
    axes.set_xlim(0.0, 1.28 * largest if largest > 0 else 1.0)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(4))


def draw_learnt(results: Sequence[TrainResult], colors: Mapping[Entry, str], across: str, upwards: str) -> str | None:
    """Draw an attribute of `Point`, loss or accuracy, against another; bytes sent on a logarithmic axis."""
    (label, width), (name, height) = _AXES[across], _AXES[upwards]
    decades = across == "sent"

    def points(result: TrainResult) -> list[list[tuple[float, float]]]:
        curves = [] if decades and result.entry.is_reference else [run.curve for run in result.runs]
        pairs = [[(getattr(point, across), getattr(point, upwards)) for point in curve] for curve in curves]
        return [[(width * x, height * y) for x, y in curve if x or not decades] for curve in pairs]

    return _draw_families(results, points, colors, label, name, decades=decades)


def draw_scale(results: Sequence[TrainResult], colors: Mapping[Entry, str]) -> str | None:
    """Draw the scale efficiency against the number of ranks."""

    def points(result: TrainResult) -> list[list[tuple[float, float]]]:
        return [[(each.ranks, each.efficiency) for each in result.scale]]

    return _draw_families(results, points, colors, "ranks", "efficiency", dots=True)


@mpl.rc_context(_STYLE)
def _draw_families(
    results: Sequence[TrainResult],
    points: Points,
    colors: Mapping[Entry, str],
    across: str,
    upwards: str,
    *,
    decades: bool = False,
    dots: bool = False,
) -> str | None:
    """Draw curves, a panel for each family of contestants, with other families in gray; None without curves.

    Parameters
    ----------
    results : sequence of TrainResult
        The results of one model.
    points : callable
        Takes a result; gives the points of its curves.
    colors : mapping
        The color of each contestant.
    across, upwards : str
        The quantities on the horizontal and the vertical axis.
    decades : bool
        True if the horizontal axis is logarithmic.
    dots : bool
        True to mark each point, and begin the vertical axis at 0: the values are shares.
    """
    curves = {result.entry: [_finite_curve(curve) for curve in points(result)] for result in results}
    curves = {entry: kept for entry, found in curves.items() if (kept := [each for each in found if each.shape[1] > 1])}
    families = [name for name in FAMILIES if any(family(entry) == name for entry in curves)]
    if not families:
        return None
    xs, ys = np.concatenate([each for found in curves.values() for each in found], axis=1)
    ends = [each[0, -1] for found in curves.values() for each in found]
    begin, low, high = xs.min(), ys.min(), ys.max()
    end = max(ends) if decades else min(max(ends), _LONG * median(ends))
    is_logarithmic = upwards == "loss" and high > _LOGARITHMIC_FROM * low > 0
    room = 0.05 * (high - low) or 0.05
    limits = (0.0, max(1.0, high)) if dots else (low / 1.1, high * 1.1) if is_logarithmic else (low - room, high + room)

    def beyond(share: float) -> float:
        """Give the value at a share of the horizontal axis, which is longer than the curves."""
        share *= _ROOM
        return float(begin * (end / begin) ** share if decades else begin + share * (end - begin))

    rows = math.ceil(len(families) / _COLUMNS)
    figure = Figure((_COLUMNS * _PANEL[0], rows * _PANEL[1]), layout="constrained")
    panels = figure.subplots(rows, _COLUMNS, sharex=True, sharey=True, squeeze=False).flat
    for place, (name, axes) in enumerate(zip(families, panels, strict=False)):
        if place + _COLUMNS >= len(families):
            axes.tick_params(labelbottom=True)
            axes.set_xlabel(across)
        if place % _COLUMNS == 0:
            axes.set_ylabel(upwards)
        if is_logarithmic:
            axes.set_yscale("log")
            plain_numbers(axes.yaxis)
        if dots:
            axes.set_xticks(np.unique(xs))
        if decades:
            axes.set_xscale("log")
            plain_numbers(axes.xaxis, steps=(1,))
        axes.set_xlim(begin, beyond(1))
        axes.set_ylim(*limits)
        axes.grid(visible=True, color="#eeeeee")
        axes.set_title(name)
        _draw_family(axes, curves, name, colors, beyond(_NAMES), dots=dots)
    for axes in panels:  # panels that are left
        axes.set_visible(False)
    return _svg(figure, f"Curves: {upwards} against {across}, a panel for each family")


def _draw_family(
    axes: Axes,
    curves: Mapping[Entry, list[Curve]],
    name: str,
    colors: Mapping[Entry, str],
    end: float,
    *,
    dots: bool,
) -> None:
    """Draw all curves, a family's in colors with names at the end; an arrow marks a curve that is cut off."""
    labels: list[tuple[float, float, str, str]] = []
    for entry, found in curves.items():
        dashed = entry.is_reference or entry == BASELINE
        own = family(entry) == name and not dashed
        shade = colors[entry] if own or dashed else _PALE
        for curve in found:
            axes.plot(
                *_until(curve, end),
                color=shade,
                linewidth=1.6 if own else 0.9,
                linestyle="--" if dashed else "-",
                marker="o" if dots and own else None,
                markersize=3,
                zorder=3 if own else 2 if dashed else 1,
            )
        if own or dashed:
            x, y = _until(found[0], end)[:, -1]
            last = found[0][0, -1]
            more = f" \N{RIGHTWARDS ARROW} {last:.3g}" if last > end else ""
            labels.append((x, y, entry.short + more, shade))
    _label(axes, labels)


def _label(axes: Axes, labels: Sequence[tuple[float, float, str, str]]) -> None:
    """Write names at the right, as close to the ends of the curves as possible without overlaps."""
    axes.figure.canvas.draw_idle()
    to_axes = axes.transLimits if axes.get_yscale() == "linear" else axes.transScale + axes.transLimits
    placed = sorted((float(to_axes.transform((x, y))[1]), x, y, text, shade) for x, y, text, shade in labels)
    heights = spread([height for height, *_ in placed], _GAP)
    for height, (_, x, y, text, shade) in zip(heights, placed, strict=True):
        axes.annotate(
            text,
            (x, y),
            (_NAMES + 0.01, height),
            textcoords="axes fraction",
            va="center",
            fontsize=7,
            color=shade,
            arrowprops={
                "arrowstyle": "-",
                "color": shade,
                "linewidth": 0.5,
                "alpha": 0.6,
                "shrinkA": 1,
                "shrinkB": 0,
                "relpos": (0, 0.5),
            },
        )


def _until(curve: Curve, end: float) -> Curve:
    """Give a curve up to `end`."""
    xs, ys = curve
    if xs[-1] <= end:
        return curve
    return np.column_stack([curve[:, xs <= end], (end, np.interp(end, xs, ys))])


def _megabytes(result: TrainResult) -> float | None:
    if result.entry.is_reference or result.figures is None:
        return 0.0
    counted, reported = result.figures.bytes_sent, result.figures.bytes_reported
    sent = reported if counted is None else counted
    return None if sent is None else sent / 1e6


def _at_end(result: TrainResult, name: str) -> float | None:
    value = result.at_end(name)
    return None if value is None else _AXES[name][1] * value


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _finite_curve(points: Sequence[tuple[float, float]]) -> Curve:
    curve: Curve = np.array([point for point in points if all(map(math.isfinite, point))]).reshape(-1, 2).T
    return curve


# (title, unit, function that writes a value, function that gives it)
_BARS: tuple[tuple[str, str, Callable[[float], str], Callable[[TrainResult], float | None]], ...] = (
    ("samples a second", "more is better", "{:,.0f}".format, attrgetter("figures.samples_per_second")),
    ("95th percentile of the step", "ms, less is better", milliseconds, attrgetter("figures.step_p95_ms")),
    ("exposed communication", "ms a step, less is better", milliseconds, attrgetter("figures.exposed_ms")),
    ("sent by a rank", "MB a step, less is better", "{:.3g}".format, _megabytes),
    ("loss at the end", "less is better", "{:.3g}".format, partial(_at_end, name="loss")),
    ("accuracy at the end", "%, more is better", "{:.1f}".format, partial(_at_end, name="accuracy")),
)


def _svg(figure: Figure, what: str) -> str:
    """Give a figure as an element of a page, without the header of an SVG file."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Type": None, "Format": None})
    text = file.getvalue()
    return text[text.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{escape(what)}"', 1)
