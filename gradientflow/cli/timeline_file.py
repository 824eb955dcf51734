"""Timeline files written with ``GRADIENTFLOW_TIMELINE``: reading, joining on one clock, and adding up times.

These files are in the trace event format of Chrome and Perfetto. Each rank writes an array with one event per line. The
array of a killed process has no end, and its last line may be incomplete.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradientflow.annotations import JsonObject
from gradientflow.errors import ArgumentError

Event = JsonObject
Interval = tuple[float, float]  # microseconds

# Names written by the core.
WAIT = "wait for gradients"
_GRADIENTS = "of a gradient pool"  # part of the name of every allreduce of a pool
_CLOCK = "clock"
_METADATA = "M"
_SPAN = "X"


class TimelineError(ArgumentError):
    """Files cannot be used; the message is one sentence for the user."""


@dataclass(frozen=True)
class RankTimeline:
    """Timeline of one rank.

    Attributes
    ----------
    path : str
        The file.
    rank : int
        The rank.
    host, run : str
        Host of the rank, and its job.
    offset_us : float
        Microseconds to add to the times of this rank for times on rank 0's clock.
    events : list of dict
        All events, in the order of writing.
    """

    path: str
    rank: int
    host: str
    run: str
    offset_us: float
    events: list[Event]

    def spans(self) -> Iterable[Event]:
        """Yield the events that have a duration."""
        return (event for event in self.events if event["ph"] == _SPAN)

    def tracks(self) -> dict[int, str]:
        """Return the names of rows by the rows' numbers."""
        return {
            event["tid"]: event["args"]["name"]
            for event in self.events
            if event["ph"] == _METADATA and event["name"] == "thread_name"
        }


@dataclass(frozen=True)
class Summary:
    """Times of one rank, in microseconds.

    Attributes
    ----------
    rank : int
        The rank.
    host : str
        Host of the rank.
    recorded : float
        Time from the first event to the last.
    calls, nbytes, bytes_sent : int
        Number of allreduces of gradient pools, bytes that they reduced, and bytes that this rank sent in their
        messages.
    communication : float
        Time during which at least one such allreduce was under way.
    waiting : float
        Time that the program waited for gradients.
    other : float
        Time during which other collectives were under way.
    """

    rank: int
    host: str
    recorded: float
    calls: int
    nbytes: int
    bytes_sent: int
    communication: float
    waiting: float
    other: float

    @property
    def hidden(self) -> float | None:
        """Share of communication that the program did not wait for; None if there was no communication."""
        return max(0.0, 1 - self.waiting / self.communication) if self.communication else None


def read_timelines(paths: Sequence[str]) -> list[RankTimeline]:
    """Read the files of the ranks of a job, or a single file into which they were merged.

    Parameters
    ----------
    paths : sequence of str
        The files.

    Returns
    -------
    list of RankTimeline
        Timelines in the order of ranks.
    """
    timelines = [timeline for path in paths for timeline in _timelines_of(path, read_events(path))]
    first_of_rank: dict[int, RankTimeline] = {}
    for timeline in timelines:
        other = first_of_rank.setdefault(timeline.rank, timeline)
        if other is not timeline:
            raise TimelineError(f"{other.path} and {timeline.path} are both of rank {timeline.rank}")
        if timeline.run != timelines[0].run:
            raise TimelineError(f"{timelines[0].path} and {timeline.path} are of different runs")
    return [first_of_rank[rank] for rank in sorted(first_of_rank)]


def merged_events(timelines: Iterable[RankTimeline]) -> list[Event]:
    """Join the events of ranks on the clock of rank 0.

    Parameters
    ----------
    timelines : iterable of RankTimeline
        A timeline of each rank.

    Returns
    -------
    list of dict
        Names of rows first, then all events by time.
    """
    events = [_on_common_clock(event, timeline) for timeline in timelines for event in timeline.events]
    return sorted(events, key=lambda event: (event["ph"] != _METADATA, event.get("ts", 0.0)))


def write_merged(path: str, events: Sequence[Event]) -> None:
    """Write events as one object ``{"displayTimeUnit": "ms", "traceEvents": [...]}``, one event a line."""
    lines = ",\n".join(json.dumps(event) for event in events)
    try:
        Path(path).write_text(f'{{"displayTimeUnit": "ms", "traceEvents": [\n{lines}\n]}}\n', encoding="utf-8")
    except OSError as error:
        raise TimelineError(f"{path} cannot be written: {error.strerror}") from error


def summarize(timeline: RankTimeline) -> Summary:
    """Add up the times of one rank.

    Parameters
    ----------
    timeline : RankTimeline
        Timeline of the rank.

    Returns
    -------
    Summary
        The sums. Times that overlap count once.
    """
    all_calls = [span for span in timeline.spans() if is_communication(span)]
    gradients_under_way = [span for span in all_calls if _GRADIENTS in span["name"]]
    calls = [span for span in all_calls if not _is_on_device(span)]
    of_gradients = [span for span in calls if _GRADIENTS in span["name"]]
    moments = [moment for event in timeline.events if "ts" in event for moment in interval_of(event)]
    return Summary(
        rank=timeline.rank,
        host=timeline.host,
        recorded=max(moments, default=0.0) - min(moments, default=0.0),
        calls=len(of_gradients),
        nbytes=sum(span["args"]["bytes"] for span in of_gradients),
        bytes_sent=sum(span["args"].get("bytes_sent", 0) for span in of_gradients),
        communication=covered(map(interval_of, gradients_under_way)),
        waiting=covered(interval_of(span) for span in timeline.spans() if span["name"] == WAIT),
        other=covered(interval_of(span) for span in all_calls if _GRADIENTS not in span["name"]),
    )


def is_communication(span: Event) -> bool:
    """Return True if a span is a collective."""
    return "bytes" in span["args"] or _is_on_device(span)


def _is_on_device(span: Event) -> bool:
    """Return True if a span is a device's part of a call, whose host part is a separate span."""
    return bool(span["args"].get("on_device"))


def interval_of(event: Event) -> Interval:
    """Return the begin and end of an event."""
    return event["ts"], event["ts"] + event.get("dur", 0.0)


def covered(intervals: Iterable[Interval]) -> float:
    """Return the length of the union of intervals."""
    length, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        length += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return length


def _on_common_clock(event: Event, timeline: RankTimeline) -> Event:
    event = {**event, "pid": timeline.rank}
    if "ts" in event:
        event["ts"] = round(event["ts"] + timeline.offset_us, 3)
    if "id" in event:  # viewers would join events with the same id on different ranks
        event["id"] = f"{timeline.rank}.{event['id']}"
    if event["ph"] == _METADATA and event["name"] == _CLOCK:
        event["args"] = {**event["args"], "offset_us": 0.0}
    return event


def _timelines_of(path: str, events: Sequence[Event]) -> list[RankTimeline]:
    """Return the timelines in a file: of a single rank, or of all ranks of a job."""
    clocks = {event["pid"]: event["args"] for event in events if event["ph"] == _METADATA and event["name"] == _CLOCK}
    if not clocks:
        raise TimelineError(f"{path} is no timeline of GradientFlow: it does not say how the rank's clock stands")
    return [
        RankTimeline(
            path,
            rank=clock["rank"],
            host=clock.get("host", ""),
            run=str(clock.get("run", "")),
            offset_us=clock["offset_us"],
            events=[event for event in events if event["pid"] == process],
        )
        for process, clock in clocks.items()
    ]


def read_events(path: str) -> list[Event]:
    """Read the events of a file in the trace event format, written by GradientFlow or by PyTorch's profiler.

    Raises
    ------
    TimelineError
        If the file cannot be read, or has no events.
    """
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise TimelineError(f"{path} cannot be read: {error.strerror}") from error
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise TimelineError(f"{path} is no timeline: it is nested too deep") from error
    except ValueError:
        content = _events_until_cut_off(path, text)
    if isinstance(content, Mapping):
        content = content.get("traceEvents")
    if not isinstance(content, list):
        raise TimelineError(f"{path} is no timeline: it holds no events")
    for number, event in enumerate(content):
        if not _is_event(event):
            raise TimelineError(f"{path} is no timeline: entry {number + 1} is not an event")
    return content


def _events_until_cut_off(path: str, text: str) -> object:
    """Read an array that has no end, and whose last line may be incomplete."""
    if not text.startswith("["):
        raise TimelineError(f"{path} is no timeline: it is not JSON")
    for rest in (text, text.rpartition("\n")[0]):
        with contextlib.suppress(ValueError):
            return json.loads(rest.rstrip().removesuffix(",") + "]")
    raise TimelineError(f"{path} is damaged: more than its last line is incomplete")


def _is_event(event: object) -> bool:
    if not isinstance(event, dict) or not all(name in event for name in ("ph", "name", "pid")):
        return False
    if event["ph"] == _METADATA:
        return isinstance(event.get("args"), dict)
    if event["ph"] == _SPAN and not (_is_time(event.get("dur")) and isinstance(event.get("args"), dict)):
        return False
    return _is_time(event.get("ts")) and "tid" in event


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
