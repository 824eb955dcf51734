"""Bandwidths of the compute kernels, as bars. Needs matplotlib, which only files for pictures import."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .environment import environment_lines
from .kernels_results import KernelResult
from .plan import format_size

_COLOURS = {"float32": "#0b5fa5", "float16": "#2a9d8f", "bfloat16": "#7a4fb5"}
_COPY_COLOUR = "#d1495b"


def save_kernels_plot(path: str, results: Sequence[KernelResult], environment: Mapping[str, Any]) -> None:
    """Draw the bandwidth of each kernel, and of the copy beside it, for each size.

    Parameters
    ----------
    path : str
        The picture's file; the ending chooses the format.
    results : sequence of KernelResult
        Wrong ones are left out.
    environment : mapping
        Where they were measured, for the subtitle.
    """
    right = [result for result in results if result.bandwidth_GBps]
    sizes = list(dict.fromkeys(result.bytes for result in right))
    kernels = list(dict.fromkeys((result.kernel, result.dtype) for result in right))
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(2.5 + 4 * max(len(sizes), 1), 1.6 + 0.24 * len(kernels)), layout="constrained")
        panels = figure.subplots(1, max(len(sizes), 1), sharey=True, squeeze=False)[0]
        for axes, size in zip(panels, sizes, strict=False):
            _draw(axes, size, kernels, [result for result in right if result.bytes == size])
        if sizes:
            panels[0].set_yticks(range(len(kernels)), [f"{name}, {dtype}" for name, dtype in kernels])
            panels[0].invert_yaxis()
            figure.legend(
                *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=1, fontsize=8, frameon=False
            )
        lines = [f"{environment_lines(environment)[0]}. Medians.", environment.get("warning", "")]
        width = 40 + 55 * len(sizes)
        figure.suptitle("\n".join(part for line in lines for part in textwrap.wrap(line, width)), fontsize=8)
        figure.savefig(path, dpi=140)


def _draw(axes: Axes, size: int, kernels: Sequence[tuple[str, str]], results: Sequence[KernelResult]) -> None:
    places = [kernels.index((result.kernel, result.dtype)) for result in results]
    bars = axes.barh(
        places,
        [result.bandwidth_GBps or 0.0 for result in results],
        0.7,
        color=[_COLOURS.get(result.dtype, "#555555") for result in results],
    )
    axes.bar_label(bars, [f"{result.ratio:.2f}" for result in results], padding=2, fontsize=7)
    axes.plot(
        [result.copy_GBps or 0.0 for result in results],
        places,
        "|",
        color=_COPY_COLOUR,
        markersize=9,
        markeredgewidth=1.5,
        label="a plain copy of as many bytes, read and written; the number is the kernel's bandwidth over it",
    )
    axes.margins(x=0.12)
    axes.set_xlabel("GB/s, read and written")
    axes.set_title(f"{format_size(size)} of float32 gradients")
