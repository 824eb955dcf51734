"""Pictures of a running job for ``gradientflow top``: a row a rank, sentences about calls that hang, stacks."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.text import Text

from gradientflow.annotations import JsonObject
from gradientflow.launch.tracebacks import named
from gradientflow.tables import FittedTable, fitted_tables, plain_table
from gradientflow.watch.job import JobState, RankState

_BARS = "▁▂▃▄▅▆▇█"
_HEADINGS = ("steps/s", "step\nms", "last steps", "exposed\n%", "sent\nMB/s", "residual", "memory\nMB")
_UNKNOWN = "-"
_INNERMOST = 2  # frames of a stack that are shown in a picture


def job_table(ranks: Sequence[RankState]) -> FittedTable:
    """Return the table of some ranks of a job.

    All rows are lines of one row of the table, because rich takes a tenth of a millisecond for a cell.
    """
    has_hosts = len({each.host for each in ranks if each.host}) > 1
    rows = [[_name(each, has_hosts), *_figures(each), _waits(each)] for each in ranks]
    columns = [(heading, cells) for heading, *cells in zip(("rank", *_HEADINGS, "waits"), *rows, strict=True)]
    columns = [
        (heading, cells)
        for heading, cells in columns
        if heading == "rank" or any(each.strip(_UNKNOWN) for each in cells)
    ]
    names, figures = [columns[0][0]], [heading for heading, _ in columns[1:] if heading != "waits"]
    table = plain_table(names, figures)
    if len(columns) > len(names) + len(figures):
        table.add_column("waits", no_wrap=True)
    styles = [_style(each) for each in ranks]
    table.add_row(*(Text("\n").join(map(Text, cells, styles)) for _, cells in columns))
    return table


def picture(job: JobState, console: Console, below: Sequence[str], keys: str) -> RenderableType:
    """Return a picture no larger than the terminal: head, table, sentences, further lines, keys."""
    lines = [*sentences_about(job), *below]
    room = console.height - 3  # head, an empty line, keys
    lines = lines[: max(room // 2, room - len(job.ranks) - 4)]
    number, parts = min(len(job.ranks), max(1, room - len(lines))), []
    while True:
        parts = list(fitted_tables(job_table(_most_notable(job.ranks, number)), console))
        further = len(lines) + (number < len(job.ranks))
        excess = len(parts) * (number + 3) + further + bool(further) - room  # a heading has two lines
        if excess <= 0 or number == 1:
            break
        number = max(1, number - -(-excess // len(parts)))
    if left := len(job.ranks) - number:
        lines = [f"and {left} more ranks, which neither wait longer nor are slower", *lines]
    shown: list[RenderableType] = [Text(head(job), style="bold", no_wrap=True, overflow="ellipsis"), Text()]
    for part in parts:
        shown += [part, Text()]
    return Group(
        *shown,
        *(Text(each, no_wrap=True, overflow="ellipsis") for each in lines),
        *([Text()] if lines else []),
        Text(keys, style="dim", no_wrap=True),
    )


def _most_notable(ranks: Sequence[RankState], number: int) -> list[RankState]:
    """Return so many ranks in order, silent and slow ranks among them."""
    chosen = sorted(ranks, key=lambda each: (not each.silence, not each.is_slow, -int(each.seconds), each.rank))
    return sorted(chosen[:number], key=lambda each: each.rank)


def head(job: JobState) -> str:
    """Return the line about the whole job."""
    hosts = {each.host for each in job.ranks if each.host}
    where = f"on {len(hosts)} hosts" if len(hosts) > 1 else f"on {next(iter(hosts), 'this machine')}"
    found = f"{len(job.ranks)} of {job.size} ranks" if len(job.ranks) != job.size else f"{job.size} ranks"
    return f"job {job.name}: {job.program or 'a program'}, {found} {where}, for {_duration(job.age)}"


def sentences_about(job: JobState) -> list[str]:
    """Return sentences about ranks that hold up other ranks, and ranks that give no answer."""
    said = []
    for rank, waiting in job.late.items():
        longest = max(waiting, key=lambda each: each.seconds)
        who = named(each.rank for each in waiting).decode()
        verb = "waits" if len(waiting) == 1 else "wait"
        said.append(f"{who} {verb} for rank {rank} in {_call(longest)}, for {_duration(longest.seconds)}")
    said += [f"rank {each.rank} (process {each.pid}) {each.silence}" for each in job.ranks if each.silence]
    if slow := [each.rank for each in job.ranks if each.is_slow]:
        said.append(f"* other ranks mostly wait for {named(slow).decode()}")
    return said


def stack_lines(answers: Sequence[tuple[int, JsonObject | None]], *, whole: bool) -> list[str]:
    """Return the stacks of ranks, equal ones once; only the program's innermost frames, unless `whole`."""
    same: dict[tuple[str, ...], list[int]] = {}
    for rank, said in answers:
        if said is not None and said.get("stacks"):
            lines = [line for each in said["stacks"] for line in _thread(each)] if whole else _short(said["stacks"][0])
            same.setdefault(tuple(lines), []).append(rank)
    return [line for lines, ranks in same.items() for line in (f"{named(sorted(ranks)).decode()}:", *lines)]


def _thread(said: JsonObject) -> list[str]:
    frames = [f"    {each['file']}:{each['line']} in {each['function']}: {each['code']}" for each in said["frames"]]
    return [f"  thread {said['thread']}", *frames]


def _short(said: JsonObject) -> list[str]:
    frames = [each for each in said["frames"] if not each["is_ours"]] or said["frames"]
    return [
        f"  {os.path.basename(each['file'])}:{each['line']} in {each['function']}: {each['code']}"
        for each in frames[-_INNERMOST:]
    ]


def _name(each: RankState, has_hosts: bool) -> str:
    return f"{each.rank}{'*' if each.is_slow else ''} {each.host if has_hosts else ''}".strip()


def _figures(each: RankState) -> list[str]:
    return [
        _number(each.steps_per_second, 1, 1),
        _number(each.step_seconds, 1e3, 1),
        sparkline(each.history),
        _number(each.exposed, 100, 0),
        _number(each.bytes_per_second, 1e-6, 1),
        _UNKNOWN if each.residual is None else f"{each.residual:.3g}",
        _number(each.memory or None, 1e-6, 0),
    ]


def _number(value: float | None, factor: float, digits: int) -> str:
    return _UNKNOWN if value is None else f"{value * factor:,.{digits}f}"


def sparkline(values: Sequence[float], width: int = 10) -> str:
    """Return the last values as bars, the largest at full height."""
    shown = values[-width:]
    top = max(shown, default=0.0)
    return "".join(_BARS[min(7, int(8 * each / top))] if top > 0 else _BARS[0] for each in shown)


def _call(each: RankState) -> str:
    return f"{each.call} at {each.line}" if each.line else each.call


def _waits(each: RankState) -> str:
    if each.silence:
        return "no answer"
    if not each.call:
        return ""
    seconds = f" {each.seconds:.0f} s" if each.seconds >= 1 else ""
    return (f"for {named(each.waits_for).decode()}" if each.waits_for else each.call.split(" ")[0]) + seconds


def _style(each: RankState) -> str:
    return "red" if each.silence else "yellow" if each.is_slow else ""


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


__all__ = ["head", "job_table", "picture", "sentences_about", "sparkline", "stack_lines"]
