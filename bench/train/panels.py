"""The plots of the page: rows of bars, and curves with a panel for each family, so that lines can be told apart.

Needs matplotlib, which is imported only inside functions.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from ..core.plot import plain_numbers
from .colours import BASELINE, BASELINE_COLOUR, FAMILIES, family
from .entry import Entry
from .results import TrainResult, milliseconds

Curve = tuple[Sequence[float], Sequence[float]]

_PALE = "#dddddd"
_UNKNOWN = "#999999"
_STYLE = {
    "font.size": 9,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",  # the text stays text: it can be searched
    "text.parse_math": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
}
_PANEL = (4.6, 2.9)  # inches
_COLUMNS = 3
_LOGARITHMIC_FROM = 4  # the largest loss over the smallest
_ROOM = 1.6  # length of the horizontal axis over that of the curves, to leave room for names
_NAMES = 0.68  # where names begin, as a share of the width
_LONG = 2.5  # curves longer than this times the median are cut off
_GAP = 0.062  # between labels, as a share of the height of a panel


def short(entry: Entry) -> str:
    """Name a contestant as briefly as possible."""
    return entry.setting if entry.strategy is not None else entry.name


@dataclass(frozen=True)
class _Bars:
    """The quantity of a column of bars. Values below 0 are noise."""

    title: str
    unit: str
    value: Callable[[TrainResult], float | None]
    show: Callable[[float], str]


def draw_rows(results: Sequence[TrainResult], colours: Mapping[Entry, str]) -> str:
    """Draw the figures of one model as bars, as SVG: a row for each contestant, the fastest on top."""
    timed = sorted((result for result in results if result.figures is not None), key=_rate, reverse=True)
    columns = [each for each in _BARS if any(_finite(each.value(result)) for result in timed)]
    with _style():
        figure = _figure(3.0 + 2.35 * len(columns), 0.9 + 0.235 * len(timed))
        axes = figure.subplots(1, max(1, len(columns)), sharey=True, squeeze=False)[0]
        for place, bars in enumerate(columns):
            _draw_bars(axes[place], timed, [_finite(bars.value(result)) for result in timed], bars.show, colours)
            axes[place].set_title(bars.title)
            axes[place].set_xlabel(bars.unit)
        axes[0].set_yticks(range(len(timed)), [short(result.entry) for result in timed])
        for tick, result in zip(axes[0].get_yticklabels(), timed, strict=True):
            tick.set_color(colours[result.entry])
        axes[0].set_ylim(len(timed) - 0.4, -0.6)
        return _svg(figure, "Bars: " + ", ".join(each.title for each in columns))


def _draw_bars(
    axes: Any,
    results: Sequence[TrainResult],
    values: Sequence[float | None],
    show: Callable[[float], str],
    colours: Mapping[Entry, str],
) -> None:
    """Draw a bar for each result, with its value at the end, and a line at the baseline."""
    largest = max((value for value in values if value is not None), default=0.0)
    for place, (result, value) in enumerate(zip(results, values, strict=True)):
        beside: dict[str, Any] = {"xytext": (3, 0), "textcoords": "offset points", "va": "center"}
        if value is None or value < 0:
            text = "not known" if value is None else "0, within the noise"
            axes.annotate(text, (0, place), color=_UNKNOWN, fontsize=7, **beside)
            continue
        alpha = 0.5 if result.entry.is_reference else 0.9
        axes.barh(place, value, color=colours[result.entry], alpha=alpha, height=0.72)
        axes.annotate(show(value), (value, place), fontsize=7.5, **beside)
        if result.entry == BASELINE:
            axes.axvline(value, color=BASELINE_COLOUR, linewidth=0.8, linestyle=":")
    axes.set_xlim(0.0, 1.28 * largest if largest > 0 else 1.0)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(_locator())


def draw_families(
    results: Sequence[TrainResult],
    curves: Callable[[TrainResult], Sequence[Curve]],
    colours: Mapping[Entry, str],
    across: str,
    upwards: str,
    *,
    logarithmic: bool = False,
    decades: bool = False,
    dots: bool = False,
    limits: tuple[float | None, float | None] = (None, None),
) -> str | None:
    """Draw curves as SVG, a panel for each family of contestants, with the others in grey; None without curves.

    Parameters
    ----------
    results : sequence of TrainResult
        The results of one model.
    curves : callable
        Takes a result; gives its curves.
    colours : mapping
        The colour of each contestant.
    across, upwards : str
        The quantities on the horizontal and the vertical axis.
    logarithmic : bool
        Whether the vertical axis may be logarithmic, if values differ much.
    decades : bool
        Whether the horizontal axis is logarithmic.
    dots : bool
        Whether to mark each point.
    limits : tuple
        Limits of the vertical axis; None for those of the values.
    """
    drawn = {result.entry: [_finite_curve(curve) for curve in curves(result)] for result in results}
    drawn = {entry: [curve for curve in found if len(curve[0]) > 1] for entry, found in drawn.items()}
    drawn = {entry: found for entry, found in drawn.items() if found}
    families = [name for name in FAMILIES if any(family(entry) == name for entry in drawn)]
    if not families:
        return None
    values = [value for found in drawn.values() for _, ys in found for value in ys]
    ends = [xs[-1] for found in drawn.values() for xs, _ in found]
    begin = min(min(xs) for found in drawn.values() for xs, _ in found)
    end = max(ends) if decades else min(max(ends), _LONG * median(ends))
    names, right = (_beyond(begin, end, share, decades=decades) for share in (_NAMES, 1))
    is_logarithmic = logarithmic and max(values) > _LOGARITHMIC_FROM * min(values) > 0
    with _style():
        rows = math.ceil(len(families) / _COLUMNS)
        figure = _figure(_COLUMNS * _PANEL[0], rows * _PANEL[1])
        panels = figure.subplots(rows, _COLUMNS, sharex=True, sharey=True, squeeze=False)
        for place, axes in enumerate(panels.flat):
            if place >= len(families):
                axes.set_visible(False)
                continue
            if place + _COLUMNS >= len(families):
                axes.tick_params(labelbottom=True)
                axes.set_xlabel(across)
            if place % _COLUMNS == 0:
                axes.set_ylabel(upwards)
            if is_logarithmic:
                axes.set_yscale("log")
                plain_numbers(axes.yaxis)
            if dots:
                axes.set_xticks(sorted({x for found in drawn.values() for xs, _ in found for x in xs}))
            if decades:
                axes.set_xscale("log")
                plain_numbers(axes.xaxis, steps=(1,))
            axes.set_xlim(begin, right)
            axes.set_ylim(*_with_room(values, limits, is_logarithmic=is_logarithmic))
            axes.grid(visible=True, color="#eeeeee")
            axes.set_title(families[place])
            _draw_family(axes, drawn, families[place], colours, names, dots=dots)
        return _svg(figure, f"Curves: {upwards} against {across}, a panel for each family")


def _draw_family(
    axes: Any,
    drawn: Mapping[Entry, list[Curve]],
    name: str,
    colours: Mapping[Entry, str],
    end: float,
    *,
    dots: bool,
) -> None:
    """Draw all curves, those of a family in colours with names at the end; an arrow marks a curve that is cut off."""
    labels: list[tuple[float, float, str, str]] = []
    for entry, found in drawn.items():
        dashed = entry.is_reference or entry == BASELINE
        own = family(entry) == name and not dashed
        shade = colours[entry] if own or dashed else _PALE
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
            xs, ys = _until(found[0], end)
            last = found[0][0][-1]
            more = f" \N{RIGHTWARDS ARROW} {last:.3g}" if last > end else ""
            labels.append((xs[-1], ys[-1], short(entry) + more, shade))
    _label(axes, labels)


def _label(axes: Any, labels: Sequence[tuple[float, float, str, str]]) -> None:
    """Write names at the right, as close to the ends of the curves as possible without overlapping."""
    axes.figure.canvas.draw_idle()
    to_axes = axes.transLimits if axes.get_yscale() == "linear" else axes.transScale + axes.transLimits
    placed = sorted((float(to_axes.transform((x, y))[1]), x, y, text, shade) for x, y, text, shade in labels)
    heights = [min(max(each[0], 0.02), 0.98) for each in placed]
    for place in range(1, len(heights)):
        heights[place] = max(heights[place], heights[place - 1] + _GAP)
    if heights and heights[-1] > 1.0:
        heights[-1] = 1.0
        for place in range(len(heights) - 2, -1, -1):
            heights[place] = min(heights[place], heights[place + 1] - _GAP)
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
    count = sum(x <= end for x in xs)
    return [*xs[:count], end], [*ys[:count], float(np.interp(end, xs, ys))]


def _beyond(begin: float, end: float, share: float, *, decades: bool) -> float:
    """Give the value at a share of the horizontal axis, which is extended beyond the curves for names."""
    share *= _ROOM
    return float(begin * (end / begin) ** share) if decades else begin + share * (end - begin)


def _with_room(
    values: Sequence[float], limits: tuple[float | None, float | None], *, is_logarithmic: bool
) -> tuple[float, float]:
    low, high = min(values), max(values)
    if is_logarithmic:
        return low / 1.1, high * 1.1
    room = 0.05 * (high - low) or 0.05
    return (low - room if limits[0] is None else limits[0]), (
        high + room if limits[1] is None else max(limits[1], high)
    )


def _rate(result: TrainResult) -> float:
    return 0.0 if result.figures is None else result.figures.samples_per_second


def _megabytes(result: TrainResult) -> float | None:
    figures = result.figures
    if figures is None or result.entry.is_reference:
        return None if figures is None else 0.0
    sent = figures.bytes_reported if figures.bytes_sent is None else figures.bytes_sent
    return None if sent is None else sent / 1e6


def _end(result: TrainResult, name: str, times: float = 1.0) -> float | None:
    values = [getattr(run.curve[-1], name) for run in result.runs if run.curve]
    return times * sum(values) / len(values) if values else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _finite_curve(curve: Curve) -> Curve:
    pairs = [(x, y) for x, y in zip(*curve, strict=True) if math.isfinite(x) and math.isfinite(y)]
    return [x for x, _ in pairs], [y for _, y in pairs]


def _style() -> Any:
    import matplotlib as mpl

    style: Any = _STYLE
    return mpl.rc_context(style)


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure((width, height), layout="constrained")


def _locator() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(4)


_BARS = (
    _Bars("samples a second", "more is better", lambda result: _rate(result) or None, "{:,.0f}".format),
    _Bars(
        "95th percentile of the step",
        "ms, less is better",
        lambda result: None if result.figures is None else result.figures.step_p95_ms,
        milliseconds,
    ),
    _Bars(
        "exposed communication",
        "ms a step, less is better",
        lambda result: None if result.figures is None else result.figures.exposed_ms,
        milliseconds,
    ),
    _Bars("sent by a rank", "MB a step, less is better", _megabytes, "{:.3g}".format),
    _Bars("loss at the end", "less is better", lambda result: _end(result, "loss"), "{:.3g}".format),
    _Bars("accuracy at the end", "%, more is better", lambda result: _end(result, "accuracy", 100), "{:.1f}".format),
)


def _svg(figure: Any, what: str) -> str:
    """Give a figure as an element of a page, without the header of an SVG file."""
    from html import escape

    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Type": None, "Format": None})
    text = file.getvalue()
    return text[text.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{escape(what)}"', 1)


__all__ = ["draw_families", "draw_rows", "short"]
