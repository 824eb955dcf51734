"""Pictures of results. They need matplotlib, which only this file imports."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gradientflow.annotations import JsonObject

from .environment import environment_lines
from .table import AnyResult

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

OUR_COLORS = ("#0b5fa5", "#2a9d8f", "#7a4fb5", "#5f8a3c", "#946b2d", "#17becf", "#c05a9a", "#6b7280")
PEER_COLORS = {"mpi": "#d1495b", "gloo": "#e28413", "nccl": "#76b900"}
OTHER_COLOR = "#555555"

_CHARACTERS_PER_INCH = 14

Draw = Callable[["Figure", Sequence[AnyResult]], str]


def save_plot(path: str, draw: Draw, results: Sequence[AnyResult], environment: JsonObject) -> None:
    """Draw results and write the picture, with the environment above it.

    Parameters
    ----------
    path : str
        The picture's file; the ending chooses the format.
    draw : callable
        Takes an empty figure and the results, draws them, and returns a sentence that describes the picture.
    results : sequence
        All results, also wrong ones; possibly none.
    environment : mapping
        The environment of the measurement.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(layout="constrained")
        remark = draw(figure, results)
        where = f"{environment_lines(environment)[0]}; {environment['mpi']}"
        if "torch" in environment:
            where += f", PyTorch {environment['torch']}"
        width = round(_CHARACTERS_PER_INCH * figure.get_figwidth())
        lines = [f"{where}. {remark}", environment.get("warning", "")]
        figure.suptitle("\n".join(part for line in lines for part in textwrap.wrap(line, width)), fontsize=8)
        figure.savefig(path, dpi=140)


def plain_numbers(
    axis: Axis, *, steps: Sequence[int] = (1, 2, 5), show: Callable[[float], str] = "{:g}".format
) -> None:
    """Label a logarithmic axis with plain numbers instead of powers.

    Parameters
    ----------
    axis : matplotlib axis
        Axis of either direction.
    steps : sequence of int
        The labels within a decade.
    show : callable
        Writes a number.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=steps, numticks=30))
    axis.set_major_formatter(FuncFormatter(lambda value, _: show(value)))
    axis.set_minor_formatter(NullFormatter())
