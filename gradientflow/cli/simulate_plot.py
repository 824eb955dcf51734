"""Picture of step times over hosts. Needs matplotlib, which only the plot modules import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator

from gradientflow.cli.picture import picture
from gradientflow.model import Prediction
from gradientflow.spread import spread
from gradientflow.strategies import Strategy
from gradientflow.strategies.predict.ranking import EFFECTS, effect_of, grouped

_COLORS = dict(
    zip(EFFECTS, ("#0b5fa5", "#17a2b8", "#2a9d8f", "#7a4fb5", "#e28413", "#c05a9a", "#5f8a3c", "#946b2d"), strict=True)
)
_GRAY = "#b8b8b8"
_GRAY_NAME = "#777777"
_GAP = 0.031  # distance of names, as a share of the height of the axes
_NARROW, _WIDE = 3.0, 30.0  # ratios of the longest step to the shortest


def save_steps(
    path: str, results: Mapping[int, Sequence[Prediction]], strategies: Sequence[Strategy], title: str
) -> None:
    """Draw the step time of each strategy, and the step time without communication, over the number of hosts.

    The best strategy of each effect has a color, all others are gray. Names are at the ends of the lines.

    Parameters
    ----------
    path : str
        File of the picture; the ending chooses the format.
    results : mapping of int to sequence of Prediction
        Predictions by the number of hosts, with the same strategies each time.
    strategies : sequence of Strategy
        The strategies, in the order of the predictions.
    title : str
        Title: the simulated model and hosts.
    """
    hosts = list(results)
    rows = zip(strategies, zip(*results.values(), strict=True), strict=True)
    groups = grouped((strategy, row[-1].step.seconds, (strategy, row)) for strategy, row in rows)
    with picture(path, 9, 6.2, dpi=130) as figure:
        axes = figure.subplots()
        names: list[tuple[float, str, str]] = []
        for heading, (best, *others) in groups:
            names.append(_draw(axes, hosts, best, _COLORS[effect_of(best[0])], heading))
            names += [_draw(axes, hosts, each, _GRAY) for each in others]
        alone = [predictions[0].alone_seconds * 1e3 for predictions in results.values()]
        axes.plot(hosts, alone, "--", color="black", linewidth=1, zorder=4)
        names.append((alone[-1], "without communication", "black"))
        axes.set_xscale("log", base=2)
        axes.margins(x=0)
        axes.set_xticks(hosts, [f"{number:,}" for number in hosts])
        axes.set_yscale("log")
        _set_ticks(axes)
        axes.grid(visible=True, axis="y", color="#eeeeee")
        axes.set_axisbelow(True)
        axes.set_xlabel("hosts")
        axes.set_ylabel("step, milliseconds")
        axes.set_title(title, loc="left", fontsize=9)
        _name_lines(axes, hosts[-1], names)


def _draw(
    axes: Axes,
    hosts: Sequence[int],
    row: tuple[Strategy, Sequence[Prediction]],
    color: str,
    effect: str = "",
) -> tuple[float, str, str]:
    """Draw a line, thick for the best of an effect, and return its end, its name and the color of the name."""
    strategy, predictions = row
    steps = [each.step.seconds * 1e3 for each in predictions]
    width = 1.8 if effect else 0.9
    axes.plot(hosts, steps, color=color, linewidth=width, marker="o", markersize=2 * width, zorder=3 if effect else 2)
    return (steps[-1], f"{strategy} ({effect})", color) if effect else (steps[-1], str(strategy), _GRAY_NAME)


def _set_ticks(axes: Axes) -> None:
    """Label a logarithmic axis with plain numbers, at least three of them."""
    low, high = axes.get_ylim()
    ratio = high / low
    axes.yaxis.set_major_locator(
        MaxNLocator(6) if ratio < _NARROW else LogLocator(subs=(1, 1.5, 2, 3, 5, 7) if ratio < _WIDE else (1, 2, 5))
    )
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.minorticks_off()


def _name_lines(axes: Axes, end: float, names: Sequence[tuple[float, str, str]]) -> None:
    """Write names beside the ends of lines, in the order of the ends and without overlaps."""
    to_axes = axes.transScale + axes.transLimits
    placed = sorted((float(to_axes.transform((end, value))[1]), value, name, color) for value, name, color in names)
    heights = spread([height for height, *_ in placed], _GAP)
    for height, (_, value, name, color) in zip(heights, placed, strict=True):
        line = {"arrowstyle": "-", "color": color, "linewidth": 0.4, "shrinkA": 0, "shrinkB": 2, "relpos": (0, 0.5)}
        axes.annotate(
            name,
            (end, value),
            (1.03, height),
            textcoords="axes fraction",
            va="center",
            fontsize=7.5,
            color=color,
            arrowprops=line,
        )
