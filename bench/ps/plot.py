"""Plot of the time of an exchange against its size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradientflow.machine import format_size

from ..core.peers import OURS
from ..core.plot import OTHER_COLOR, OUR_COLORS, PEER_COLORS, plain_numbers
from ..core.table import grouped
from .columns import ServerResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(figure: Figure, results: Sequence[ServerResult]) -> str:
    """Draw, for each number of servers, the time of a push and pull against the size."""
    right = [result for result in results if result.median_us]
    numbers = grouped(right, lambda result: result.servers)
    figure.set_size_inches(6 * max(len(numbers), 1), 4.5)
    for place, (servers, here) in enumerate(numbers.items(), 1):
        axes = figure.add_subplot(1, len(numbers), place)
        axes.set_title(f"{here[0].workers} workers, {servers} servers: push and pull, ms")
        ours = list(dict.fromkeys((result.memory, result.wire) for result in here if result.backend == OURS))
        lines = grouped(here, lambda result: (result.backend, result.memory, result.wire))
        for (backend, memory, wire), line in lines.items():
            color = PEER_COLORS.get(backend, OTHER_COLOR)
            axes.plot(
                [result.bytes for result in line],
                [(result.median_us or 0.0) / 1e3 for result in line],
                marker="o",
                markersize=3,
                color=OUR_COLORS[ours.index((memory, wire)) % len(OUR_COLORS)] if backend == OURS else color,
                label=f"ours, {memory}, {wire}" if backend == OURS else backend,
            )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(lambda size, _: format_size(round(size)))
        plain_numbers(axes.yaxis)
        axes.set_xlabel("bytes of gradients, and of weights")
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=7, frameon=False)
    return "Medians of the slowest rank's times."
