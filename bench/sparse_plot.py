"""Step time and bytes against density. Needs matplotlib, which only files for pictures import."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from .contestants import OURS
from .environment import environment_lines
from .plan import format_size
from .sparse import CSC
from .sparse_results import SparseResult

_COLOURS = ("#0b5fa5", "#2a9d8f", "#7a4fb5", "#5f8a3c", "#946b2d", "#17becf")
_PEERS = {OURS: "#222222", "mpi": "#d1495b", "gloo": "#e28413"}


def save_sparse_plot(path: str, results: Sequence[SparseResult], environment: Mapping[str, Any]) -> None:
    """Draw, for each model, the time of a step and the bytes that a rank sends, against density; dense ones are level.

    Parameters
    ----------
    path : str
        The picture's file; the ending chooses the format.
    results : sequence of SparseResult
        Wrong ones are left out.
    environment : mapping
        Where they were measured, for the subtitle.
    """
    right = [result for result in results if result.median_us]
    models = list(dict.fromkeys(result.model for result in right))
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(12, 4 * max(len(models), 1) + 0.5), layout="constrained")
        for row, model in enumerate(models):
            block = [result for result in right if result.model == model]
            times, sent = (figure.add_subplot(len(models), 2, 2 * row + side) for side in (1, 2))
            times.set_title(f"{model}, {block[0].parameters / 1e6:.2f} million parameters: a step, ms")
            _draw(times, block, lambda result: (result.refill_median_us or 0.0) / 1e3)
            times.legend(fontsize=7, frameon=False)
            is_sent = any(_megabytes(result) for result in block)
            sent.set_title("sent by a rank in a step, 10^6 bytes" if is_sent else "nothing is sent inside a node")
            _draw(sent, block, _megabytes)
        where = f"{environment_lines(environment)[0]}; {environment['mpi']}"
        lines = [
            f"{where}. Writing the gradients and exchanging them; medians of the slowest rank's times.",
            environment.get("warning", ""),
        ]
        figure.suptitle("\n".join(part for line in lines for part in textwrap.wrap(line, 170)), fontsize=8)
        figure.savefig(path, dpi=140)


def _megabytes(result: SparseResult) -> float:
    sent = result.bytes_sent if result.bytes_sent is not None else result.bytes_reported
    return (sent or 0) / 1e6


def _draw(axes: Axes, results: Sequence[SparseResult], height: Callable[[SparseResult], float]) -> None:
    sparse = [result for result in results if result.method == CSC]
    lines = list(dict.fromkeys((result.chunk_size, result.wire) for result in sparse))
    for number, (chunk_size, wire) in enumerate(lines):
        line = sorted(
            (result for result in sparse if (result.chunk_size, result.wire) == (chunk_size, wire)),
            key=lambda result: result.density or 0.0,
        )
        axes.plot(
            [result.density or 0.0 for result in line],
            [height(result) for result in line],
            marker="o",
            markersize=3,
            color=_COLOURS[number % len(_COLOURS)],
            label=f"chunks of {format_size(chunk_size)}, {wire}",
        )
    dense = {(result.backend, result.wire): result for result in results if result.method != CSC and height(result)}
    for (backend, wire), result in dense.items():
        axes.axhline(
            height(result),
            color=_PEERS.get(backend, "#888888"),
            linestyle="--" if wire == result.dtype else ":",
            linewidth=1,
            label=f"dense, {'ours' if backend == OURS else backend}, {wire}",
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda density, _: f"{density:g}"))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("density")
    axes.grid(visible=True, alpha=0.3)
