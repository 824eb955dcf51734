"""``gradientflow timeline``: join the timelines of a job's ranks, and read them."""

from __future__ import annotations

from pathlib import Path

import click

from gradientflow.cli.picture import require_matplotlib
from gradientflow.cli.timeline_file import (
    Summary,
    TimelineError,
    merged_events,
    read_timelines,
    summarize,
    write_merged,
)
from gradientflow.tables import plain_table, print_table

_FILES = click.argument("files", nargs=-1, required=True, metavar="FILE...")


@click.group()
def timeline() -> None:
    """Join the timelines of a job's ranks, and read them.

    With GRADIENTFLOW_TIMELINE=trace.json every rank writes a timeline: trace.rank0.json, trace.rank1.json and so on.
    """


@timeline.command()
@_FILES
@click.option("-o", "--output", required=True, metavar="FILE", help="File for the merged timeline.")
def merge(files: tuple[str, ...], output: str) -> None:
    """Join the files of all ranks on one clock, for ui.perfetto.dev or chrome://tracing."""
    if any(Path(output).resolve() == Path(file).resolve() for file in files):
        raise TimelineError(f"{output} is one of the files to merge: name another one to write to")
    write_merged(output, merged_events(read_timelines(files)))


@timeline.command()
@_FILES
def summary(files: tuple[str, ...]) -> None:
    """Print, for each rank, the time of gradients under way, and the part of it that the program waited for."""
    table = plain_table(("rank", "host"), _HEADINGS)
    for of_rank in read_timelines(files):
        found = summarize(of_rank)
        table.add_row(str(found.rank), found.host, *_figures(found))
    print_table(table)


@timeline.command()
@_FILES
@click.option("-o", "--output", required=True, metavar="FILE.png", help="File for the picture: .png, .pdf or .svg.")
@click.option(
    "--from", "begin", type=float, default=0.0, metavar="MS", help="Begin of the picture, after the first event."
)
@click.option("--to", "end", type=float, metavar="MS", help="End of the picture.")
def plot(files: tuple[str, ...], output: str, begin: float, end: float | None) -> None:
    """Draw a stretch of time: the program's work, and the communication under way meanwhile."""
    require_matplotlib()
    from gradientflow.cli.timeline_plot import save_timeline

    save_timeline(output, read_timelines(files), begin, end)


_HEADINGS = (
    "recorded\nms",
    "allreduces\nof gradients",
    "reduced\nMiB",
    "sent\nMiB",
    "under way\nms",
    "waited for\nms",
    "hidden\n%",
    "other calls\nms",
)


def _figures(found: Summary) -> list[str]:
    return [
        f"{found.recorded / 1e3:.1f}",
        str(found.calls),
        f"{found.nbytes / 2**20:.1f}",
        f"{found.bytes_sent / 2**20:.1f}",
        f"{found.communication / 1e3:.2f}",
        f"{found.waiting / 1e3:.2f}",
        "-" if found.hidden is None else f"{100 * found.hidden:.0f}",
        f"{found.other / 1e3:.2f}",
    ]
