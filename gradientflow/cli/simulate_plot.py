"""Picture of step times over hosts. Needs matplotlib, which only the plot modules import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.ticker import LogLocator

from gradientflow.cli.picture import picture
from gradientflow.model import Prediction

_MARKERS = "osv^D<>PX*"


def save_steps(path: str, results: Mapping[int, Sequence[Prediction]], title: str) -> None:
    """Draw the step time of each strategy, and the step time without communication, over the number of hosts.

    Parameters
    ----------
    path : str
        File of the picture; the ending chooses the format.
    results : mapping of int to sequence of Prediction
        Predictions by the number of hosts, with the same strategies each time.
    title : str
        Title: the simulated model and hosts.
    """
    hosts = list(results)
    with picture(path, 9, 5.5, dpi=130) as figure:
        axes = figure.subplots()
        colors = mpl.colormaps["tab20"].colors  # type: ignore[attr-defined]
        rows = sorted(zip(*results.values(), strict=True), key=lambda row: -row[-1].step.seconds)
        for place, row in enumerate(rows):
            axes.plot(
                hosts,
                [each.step.seconds * 1e3 for each in row],
                label=row[0].strategy,
                color=colors[place % len(colors)],
                marker=_MARKERS[place % len(_MARKERS)],
                markersize=4,
                linewidth=1.2,
            )
        alone = [predictions[0].alone_seconds * 1e3 for predictions in results.values()]
        axes.plot(hosts, alone, "--", color="black", linewidth=1, label="without communication")
        axes.set_xscale("log", base=2)
        axes.set_xticks(hosts, [f"{number:,}" for number in hosts])
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 7)))
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.minorticks_off()
        axes.set_xlabel("hosts")
        axes.set_ylabel("step, milliseconds")
        axes.set_title(title, loc="left", fontsize=9)
        figure.legend(loc="outside right upper", frameon=False, fontsize=8)
