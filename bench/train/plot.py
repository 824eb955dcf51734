"""Picture of the curves of training, and of the times of steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..core.plot import plain_numbers
from ..core.table import grouped
from .colors import colors_of
from .entry import NONE, Entry
from .results import TrainResult, milliseconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LOGARITHMIC_FROM = 4  # least ratio of the largest loss to the smallest
_DARK = "#333333"
_EXPOSED = 0.35  # opacity of the part of a step that is not computation


def draw(figure: Figure, results: Sequence[TrainResult]) -> str:
    """Draw, for each model, the held-out loss over time and the steps; or loss and accuracy.

    Loss and accuracy are drawn over steps, or with stragglers over time.
    """
    right = [result for result in results if result.figures is not None]
    models = grouped(right, lambda result: result.model)
    timed = any(result.entry == Entry(NONE) for result in right)
    most = max(map(len, models.values()), default=1)
    colors = colors_of(result.entry for result in results)
    figure.set_size_inches(12, max(len(models), 1) * (1.8 + 0.28 * most) + 0.5)
    for row, (model, block) in enumerate(models.items()):
        left = figure.add_subplot(len(models), 2, 2 * row + 1)
        other = figure.add_subplot(len(models), 2, 2 * row + 2)
        left.set_title(f"{model}, {block[0].parameters / 1e6:.2f} million parameters: loss")
        if timed:
            _draw_curves(left, block, colors, "seconds", "loss")
            _draw_steps(other, block, colors)
        else:
            across = "seconds" if any(_is_delayed(result) for result in block) else "step"
            _draw_curves(left, block, colors, across, "loss")
            _draw_curves(other, block, colors, across, "accuracy")
            other.set_title("accuracy")
        _scale_losses(left, block)
        left.legend(fontsize=7, frameon=False)
    return "Held-out samples; medians of the slowest rank's times."


def _is_delayed(result: TrainResult) -> bool:
    return result.figures is not None and result.figures.waiting_percent is not None


def _draw_curves(
    axes: Axes, results: Sequence[TrainResult], colors: Mapping[Entry, str], across: str, upwards: str
) -> None:
    for result in results:
        for number, run in enumerate(result.runs):
            axes.plot(
                [getattr(point, across) for point in run.curve],
                [getattr(point, upwards) for point in run.curve],
                color=colors[result.entry],
                linestyle="--" if result.entry.is_reference else "-",
                linewidth=1.2,
                label=result.entry.name if number == 0 else None,
            )
    axes.set_xlabel("seconds of training" if across == "seconds" else "steps")
    axes.grid(visible=True, alpha=0.3)


def _scale_losses(axes: Axes, results: Sequence[TrainResult]) -> None:
    losses = [point.loss for result in results for run in result.runs for point in run.curve]
    if max(losses) > _LOGARITHMIC_FROM * min(losses) > 0:
        axes.set_yscale("log")
        plain_numbers(axes.yaxis)


def _draw_steps(axes: Axes, results: Sequence[TrainResult], colors: Mapping[Entry, str]) -> None:
    """Draw the steps as bars, paler beyond the step without communication; a line extends to the 95th percentile."""
    figures = [result.figures for result in results if result.figures is not None]
    alone = next(each.step_median_ms for each, it in zip(figures, results, strict=True) if it.entry == Entry(NONE))
    places, shades = range(len(results)), [colors[result.entry] for result in results]
    axes.barh(places, [each.step_median_ms for each in figures], color=shades, alpha=_EXPOSED)
    axes.barh(places, [min(each.step_median_ms, alone) for each in figures], color=shades)
    for place, each in enumerate(figures):
        axes.plot([each.step_median_ms, each.step_p95_ms], [place, place], color=_DARK, linewidth=0.8, marker="|")
        text = f"{milliseconds(each.step_median_ms)}, p95 {milliseconds(each.step_p95_ms)}"
        at = max(each.step_median_ms, each.step_p95_ms), place
        axes.annotate(text, at, (4, 0), textcoords="offset points", va="center", fontsize=7)
    axes.set_yticks(places, [result.entry.name for result in results])
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set_xlabel("ms a step; paler: beyond computing alone; the line: to the 95th percentile")
    axes.set_title("step")
