"""Picture of the pushes, waiting and barriers of each policy. Needs matplotlib, which only plot modules import."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from gradientflow.cli.picture import picture
from gradientflow.errors import ArgumentError
from gradientflow.policies import Simulation

_COMPUTES = "#2a9d8f"
_WAITS = "#d9d9d9"
_PUSH = "#0b3c5d"
_BARRIER = "#d1495b"
_MOST_ROWS = 64  # largest number of rows of a policy; further workers are left out


def save_replay(path: str, runs: Mapping[str, Simulation], begin: float, end: float | None) -> None:
    """Draw a stretch of time for each policy, a row for each worker.

    Parameters
    ----------
    path : str
        File of the picture; the ending chooses the format.
    runs : mapping of str to Simulation
        Simulations with their events, by the name of the policy.
    begin, end : float, float or None
        Begin and end of the stretch, in seconds; an `end` of None is the end of the longest run.
    """
    last = max(run.seconds for run in runs.values()) if end is None else end
    if last <= begin:
        raise ArgumentError(f"the picture ends at {last:g} s, before it begins at {begin:g} s")
    rows = [min(len(run.pushes), _MOST_ROWS) for run in runs.values()]
    with picture(path, 10, 0.9 + sum(0.5 + 0.24 * number for number in rows), dpi=130) as figure:
        panels = figure.subplots(len(runs), sharex=True, squeeze=False, height_ratios=[2 + each for each in rows])
        for axes, (name, run), number in zip(panels[:, 0], runs.items(), rows, strict=True):
            _draw(axes, run, number, begin, last)
            axes.set_title(name, loc="left", fontsize=9)
        axes.set_xlim(begin, last)
        axes.set_xlabel("seconds")
        figure.legend(
            handles=[
                Patch(color=_COMPUTES, label="computes"),
                Patch(color=_WAITS, label="waits"),
                Line2D([], [], color=_PUSH, marker="o", markersize=3, linestyle="", label="push"),
                Line2D([], [], color=_BARRIER, label="barrier"),
            ],
            loc="outside upper center",
            ncols=4,
            frameon=False,
        )


def _draw(axes: Axes, run: Simulation, rows: int, begin: float, end: float) -> None:
    free, pushed = [0.0] * len(run.pushes), [0.0] * len(run.pushes)
    computes: list[list[tuple[float, float]]] = [[] for _ in range(rows)]
    waits: list[list[tuple[float, float]]] = [[] for _ in range(rows)]
    pushes: tuple[list[float], list[int]] = ([], [])

    def add(spans: list[list[tuple[float, float]]], worker: int, first: float, last: float) -> None:
        if worker < rows and first < last and last > begin and first < end:
            spans[worker].append((first, last - first))

    for event in run.events:
        if event.kind == "push":
            add(computes, event.worker, free[event.worker], event.seconds)
            pushed[event.worker] = free[event.worker] = event.seconds
            if event.worker < rows and begin <= event.seconds <= end:
                pushes[0].append(event.seconds)
                pushes[1].append(event.worker)
        for worker in event.answer.release:
            add(waits, worker, pushed[worker], event.seconds)
            free[worker] = event.seconds
    for row in range(rows):
        axes.broken_barh(waits[row], (row - 0.3, 0.6), color=_WAITS)
        axes.broken_barh(computes[row], (row - 0.15, 0.3), color=_COMPUTES)
    axes.plot(*pushes, "o", color=_PUSH, markersize=3)
    axes.vlines(
        [time for time in run.barriers if begin <= time <= end], -0.5, rows - 0.5, color=_BARRIER, linewidth=1.0
    )
    axes.set_yticks(range(rows), [f"worker {row}" for row in range(rows)] if rows <= 8 else map(str, range(rows)))
    axes.set_ylim(rows - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
