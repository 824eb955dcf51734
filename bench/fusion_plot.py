"""Times of a step on each model, as bars. Needs matplotlib, which only files for pictures import."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .contestants import OURS
from .environment import environment_lines
from .fusion import COPY_FUSION, PER_TENSOR, POOL_FUSION
from .fusion_results import FusionResult
from .plan import format_size
from .shapes import MODELS

_COLOURS = {PER_TENSOR: "#7a4fb5", COPY_FUSION: "#d1495b", POOL_FUSION: "#0b5fa5"}
_BAR = 0.4
_COLUMNS = 2


def save_fusion_plot(path: str, results: Sequence[FusionResult], environment: Mapping[str, Any]) -> None:
    """Draw, for each model, the time of a step of each contestant: alone, and with writing the gradients.

    Parameters
    ----------
    path : str
        The picture's file; the ending chooses the format.
    results : sequence of FusionResult
        Wrong ones are left out.
    environment : mapping
        Where they were measured, for the subtitle.
    """
    right = [result for result in results if result.median_us]
    models = list(dict.fromkeys(result.model for result in right))
    columns = min(_COLUMNS, max(len(models), 1))
    rows = max(-(-len(models) // columns), 1)
    most = max((sum(result.model == model for result in right) for model in models), default=1)
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(6 * columns, rows * (1.2 + 0.3 * most) + 0.5), layout="constrained")
        for number, model in enumerate(models):
            axes = figure.add_subplot(rows, columns, number + 1)
            _draw_model(axes, model, [result for result in right if result.model == model])
        where = f"{environment_lines(environment)[0]}; {environment['mpi']}"
        lines = [f"{where}. Medians of the slowest rank's times.", environment.get("warning", "")]
        width = 75 * columns
        figure.suptitle("\n".join(part for line in lines for part in textwrap.wrap(line, width)), fontsize=8)
        figure.savefig(path, dpi=140)


def _draw_model(axes: Axes, model: str, results: Sequence[FusionResult]) -> None:
    places = range(len(results))
    alone = [(result.median_us or 0.0) / 1e3 for result in results]
    filled = [(result.refill_median_us or 0.0) / 1e3 for result in results]
    colours = [_COLOURS.get(result.method, "#555555") for result in results]
    for times, side, strength in ((alone, -1, 1.0), (filled, 1, 0.4)):
        bars = axes.barh([place + side * _BAR / 2 for place in places], times, _BAR, color=colours, alpha=strength)
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
