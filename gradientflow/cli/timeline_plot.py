"""Picture of a stretch of a timeline. Needs matplotlib, which only the plot modules import."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from gradientflow.cli.picture import picture
from gradientflow.cli.timeline_file import (
    WAIT,
    Event,
    RankTimeline,
    TimelineError,
    interval_of,
    is_communication,
    merged_events,
)

_COMMUNICATION = "communication"
_READY = "tensor ready"
_COLORS = {
    _COMMUNICATION: "#e28413",
    WAIT: "#d1495b",
    "forward": "#2a9d8f",
    "backward": "#0b5fa5",
    "step": "#5f8a3c",
}
_FURTHER_COLORS = ("#7a4fb5", "#946b2d", "#17becf", "#c05a9a", "#6b7280")
_HEIGHT = 0.8
_WIDTH_OF_LETTER = 0.01  # share of the picture's width; a bar too short for its name shows no name
_LEAST_WITH_EDGE = 0.003


def save_timeline(path: str, timelines: Sequence[RankTimeline], begin: float, end: float | None) -> None:
    """Draw the events of a stretch of time, with a row for each thread and communicator of each rank.

    Parameters
    ----------
    path : str
        File of the picture; the ending chooses the format.
    timelines : sequence of RankTimeline
        Timelines of the ranks of one job.
    begin, end : float, float or None
        Begin and end of the stretch, in milliseconds after the first event; an `end` of None is the end of the last
        event.
    """
    events = [event for event in merged_events(timelines) if event["ph"] in ("X", "i")]
    origin = min((event["ts"] for event in events), default=0.0)
    shown = [event for event in events if _overlaps(event, origin, begin, end)]
    if not shown:
        raise TimelineError("nothing happened in this stretch of time")
    names = {(timeline.rank, track): name for timeline in timelines for track, name in timeline.tracks().items()}
    rows = sorted({_row(event) for event in shown}, key=lambda row: (row[0], _is_of_communicator(shown, row), row[1]))
    colors = _colors(shown)
    with picture(path, 10, 1.2 + 0.42 * len(rows), dpi=110) as figure:
        axes = figure.add_subplot()
        stretch = begin, max((interval_of(event)[1] - origin) / 1e3 for event in shown) if end is None else end
        axes.set_xlim(*stretch)
        for number, row in enumerate(rows):
            _draw_row(axes, number, [event for event in shown if _row(event) == row], origin, stretch, colors)
        axes.set_yticks(range(len(rows)), [f"rank {row[0]}, {names.get(row, row[1])}" for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlabel("ms")
        kinds = dict.fromkeys(_kind(event) for event in shown if event["ph"] == "X")
        patches = [Patch(color=colors[kind], label=kind) for kind in kinds]
        if any(event["ph"] == "i" for event in shown):
            patches.append(Patch(color="black", label=_READY))
        figure.legend(handles=patches, loc="outside upper center", ncols=7, frameon=False, fontsize=8)


def _draw_row(
    axes: Axes,
    number: int,
    events: Sequence[Event],
    origin: float,
    stretch: tuple[float, float],
    colors: dict[str, str],
) -> None:
    ticks = [(event["ts"] - origin) / 1e3 for event in events if event["ph"] == "i"]
    axes.vlines(ticks, number - 0.55, number - 0.25, colors="black", linewidth=0.7, zorder=3)
    for event, depth in _nested([event for event in events if event["ph"] == "X"]):
        begin, end = ((time - origin) / 1e3 for time in interval_of(event))
        begin, end = max(begin, stretch[0]), min(end, stretch[1])
        height = _HEIGHT / (1 + 0.5 * depth)
        share = (end - begin) / (stretch[1] - stretch[0])
        color = colors[_kind(event)]
        edge = "white" if share > _LEAST_WITH_EDGE else color
        axes.barh(number, end - begin, height, left=begin, color=color, edgecolor=edge, linewidth=0.4)
        if depth == 0 and not is_communication(event) and share > _WIDTH_OF_LETTER * (len(event["name"]) + 2):
            axes.text(begin, number, f" {event['name']}", ha="left", va="center", color="white", fontsize=8)


def _nested(spans: Sequence[Event]) -> Iterator[tuple[Event, int]]:
    """Yield every span with the number of spans around it, outer spans first."""
    around: list[float] = []
    for span in sorted(spans, key=lambda span: (span["ts"], -span["dur"])):
        begin, end = interval_of(span)
        while around and around[-1] <= begin:
            around.pop()
        yield span, len(around)
        around.append(end)


def _overlaps(event: Event, origin: float, begin: float, end: float | None) -> bool:
    first, last = ((time - origin) / 1e3 for time in interval_of(event))
    return last >= begin and (end is None or first <= end)


def _row(event: Event) -> tuple[int, int]:
    return event["pid"], event["tid"]


def _is_of_communicator(events: Sequence[Event], row: tuple[int, int]) -> bool:
    return any(event["ph"] == "X" and is_communication(event) for event in events if _row(event) == row)


def _kind(event: Event) -> str:
    return _COMMUNICATION if is_communication(event) else str(event["name"])


def _colors(events: Sequence[Event]) -> dict[str, str]:
    colors = dict(_COLORS)
    for event in events:
        if event["ph"] == "X" and (kind := _kind(event)) not in colors:
            colors[kind] = _FURTHER_COLORS[(len(colors) - len(_COLORS)) % len(_FURTHER_COLORS)]
    return colors
