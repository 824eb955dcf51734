"""Plot of the times of the searches over the number of workers, in the form of the thesis' Figure 6.9."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..core.table import grouped
from .columns import ZiplineResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(figure: Figure, results: Sequence[ZiplineResult]) -> str:
    """Draw the time of each search over the number of workers, for each lookahead."""
    right = [result for result in results if result.median_us is not None]
    lookaheads = grouped(right, lambda result: result.lookahead)
    algorithms = list(dict.fromkeys(result.algorithm for result in right))
    figure.set_size_inches(2 + 4 * max(len(lookaheads), 1), 4.2)
    panels = figure.subplots(1, max(len(lookaheads), 1), sharey=True, squeeze=False)[0]
    for axes, (lookahead, found) in zip(panels, lookaheads.items(), strict=False):
        for algorithm, line in grouped(found, lambda result: result.algorithm).items():
            points = sorted((result.workers, result.median_us) for result in line)
            color = f"C{algorithms.index(algorithm)}"
            axes.plot(*zip(*points, strict=True), "o-", color=color, linewidth=1.4, markersize=4, label=algorithm)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("workers")
        axes.set_title(f"{lookahead} predicted pushes of each")
        axes.grid(visible=True, alpha=0.3)
    if lookaheads:
        panels[0].set_ylabel("microseconds")
        panels[0].legend(fontsize=8, frameon=False)
    return "Medians."
