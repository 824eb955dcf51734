"""Plot of the time of a step on each model, as bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradientflow.machine import format_size

from ..core.peers import OURS
from ..core.plot import OTHER_COLOR
from ..core.shapes import MODELS
from ..core.table import grouped
from .columns import FusionResult
from .contestants import COPY_FUSION, PER_TENSOR, POOL_FUSION

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = {PER_TENSOR: "#7a4fb5", COPY_FUSION: "#d1495b", POOL_FUSION: "#0b5fa5"}
_BAR = 0.4
_COLUMNS = 2


def draw(figure: Figure, results: Sequence[FusionResult]) -> str:
    """Draw, for each model, the time of a step of each contestant: alone, and with writing the gradients."""
    right = [result for result in results if result.median_us]
    models = grouped(right, lambda result: result.model)
    columns = min(_COLUMNS, max(len(models), 1))
    rows = max(-(-len(models) // columns), 1)
    most = max(map(len, models.values()), default=1)
    figure.set_size_inches(6 * columns, rows * (1.2 + 0.3 * most) + 0.5)
    for number, (model, found) in enumerate(models.items(), 1):
        _draw_model(figure.add_subplot(rows, columns, number), model, found)
    return "Medians of the slowest rank's times."


def _draw_model(axes: Axes, model: str, results: Sequence[FusionResult]) -> None:
    places = range(len(results))
    alone = [(result.median_us or 0.0) / 1e3 for result in results]
    filled = [(result.refill_median_us or 0.0) / 1e3 for result in results]
    colors = [_COLORS.get(result.method, OTHER_COLOR) for result in results]
    for times, side, strength in ((alone, -1, 1.0), (filled, 1, 0.4)):
        bars = axes.barh([place + side * _BAR / 2 for place in places], times, _BAR, color=colors, alpha=strength)
        axes.bar_label(bars, [f"{time:.3g}" for time in times], padding=2, fontsize=7)
    axes.set_yticks(places, [_label(result) for result in results])
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel("ms: averaging all gradients; below it, paler, with writing them")
    axes.set_title(
        f"{MODELS[model].title}: {results[0].tensors} tensors, {results[0].parameters / 1e6:.1f} M parameters"
    )


def _label(result: FusionResult) -> str:
    by = "" if result.method == POOL_FUSION else ", ours" if result.backend == OURS else f", {result.backend}"
    memory = f", {result.memory}" if result.method == PER_TENSOR and result.backend == OURS else ""
    threshold = result.threshold_bytes if result.method == POOL_FUSION else None
    size = "" if threshold is None else f", {threshold if isinstance(threshold, str) else format_size(threshold)}"
    wire = f", {result.wire}" if result.wire != result.dtype else ""
    return f"{result.method.replace('-', ' ')}{by}{memory}{size}{wire}"
