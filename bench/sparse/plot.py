"""Plot of step time and bytes against density."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gradientflow.machine import format_size

from ..core.peers import OURS
from ..core.plot import OTHER_COLOR, OUR_COLORS, PEER_COLORS
from ..core.table import grouped
from .columns import SparseResult
from .contestants import CSC

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(figure: Figure, results: Sequence[SparseResult]) -> str:
    """Draw, for each model, step time and bytes sent by a rank against density; dense ones are horizontal lines."""
    right = [result for result in results if result.median_us]
    models = grouped(right, lambda result: result.model)
    figure.set_size_inches(12, 4 * max(len(models), 1) + 0.5)
    for row, (model, block) in enumerate(models.items()):
        times, sent = (figure.add_subplot(len(models), 2, 2 * row + side) for side in (1, 2))
        times.set_title(f"{model}, {block[0].parameters / 1e6:.2f} million parameters: a step, ms")
        _draw(times, block, lambda result: (result.refill_median_us or 0.0) / 1e3)
        times.legend(fontsize=7, frameon=False)
        is_sent = any(_megabytes(result) for result in block)
        sent.set_title("sent by a rank in a step, 10^6 bytes" if is_sent else "nothing is sent inside a node")
        _draw(sent, block, _megabytes)
    return "Writing the gradients and exchanging them; medians of the slowest rank's times."


def _megabytes(result: SparseResult) -> float:
    sent = result.bytes_sent if result.bytes_sent is not None else result.bytes_reported
    return (sent or 0) / 1e6


def _draw(axes: Axes, results: Sequence[SparseResult], height: Callable[[SparseResult], float]) -> None:
    sparse = [result for result in results if result.method == CSC]
    lines = grouped(sparse, lambda result: (result.chunk_size, result.wire))
    for number, ((chunk_size, wire), found) in enumerate(lines.items()):
        line = sorted(found, key=lambda result: result.density or 0.0)
        axes.plot(
            [result.density or 0.0 for result in line],
            [height(result) for result in line],
            marker="o",
            markersize=3,
            color=OUR_COLORS[number % len(OUR_COLORS)],
            label=f"chunks of {format_size(chunk_size)}, {wire}",
        )
    dense = {(result.backend, result.wire): result for result in results if result.method != CSC and height(result)}
    for (backend, wire), result in dense.items():
        axes.axhline(
            height(result),
            color="#222222" if backend == OURS else PEER_COLORS.get(backend, OTHER_COLOR),
            linestyle="--" if wire == result.dtype else ":",
            linewidth=1,
            label=f"dense, {'ours' if backend == OURS else backend}, {wire}",
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda density, _: f"{density:g}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("density")
    axes.grid(visible=True, alpha=0.3)
