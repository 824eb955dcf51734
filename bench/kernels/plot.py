"""Plot of the bandwidths of the compute kernels, as bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradientflow.machine import format_size

from ..core.plot import OTHER_COLOR
from ..core.table import grouped
from .columns import KernelResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = {"float32": "#0b5fa5", "float16": "#2a9d8f", "bfloat16": "#7a4fb5"}
_COPY_COLOR = "#d1495b"


def draw(figure: Figure, results: Sequence[KernelResult]) -> str:
    """Draw the bandwidth of each kernel, and of the copy, for each size."""
    right = [result for result in results if result.bandwidth_GBps]
    sizes = grouped(right, lambda result: result.bytes)
    kernels = list(dict.fromkeys((result.kernel, result.dtype) for result in right))
    figure.set_size_inches(2.5 + 4 * max(len(sizes), 1), 1.6 + 0.24 * len(kernels))
    panels = figure.subplots(1, max(len(sizes), 1), sharey=True, squeeze=False)[0]
    for axes, (size, found) in zip(panels, sizes.items(), strict=False):
        _draw(axes, size, kernels, found)
    if sizes:
        panels[0].set_yticks(range(len(kernels)), [f"{name}, {dtype}" for name, dtype in kernels])
        panels[0].invert_yaxis()
        handles = panels[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=1, fontsize=8, frameon=False)
    return "Medians."


def _draw(axes: Axes, size: int, kernels: Sequence[tuple[str, str]], results: Sequence[KernelResult]) -> None:
    places = [kernels.index((result.kernel, result.dtype)) for result in results]
    bars = axes.barh(
        places,
        [result.bandwidth_GBps or 0.0 for result in results],
        0.7,
        color=[_COLORS.get(result.dtype, OTHER_COLOR) for result in results],
    )
    axes.bar_label(bars, [f"{result.ratio:.2f}" for result in results], padding=2, fontsize=7)
    axes.plot(
        [result.copy_GBps or 0.0 for result in results],
        places,
        "|",
        color=_COPY_COLOR,
        markersize=9,
        markeredgewidth=1.5,
        label="a plain copy of as many bytes, read and written; the number is the kernel's bandwidth over it",
    )
    axes.margins(x=0.12)
    axes.set_xlabel("GB/s, read and written")
    axes.set_title(f"{format_size(size)} of float32 gradients")
