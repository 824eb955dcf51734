"""``gradientflow why``: from the last calls of all ranks to the rank that did something else."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from gradientflow.annotations import JsonObject
from gradientflow.errors import ArgumentError
from gradientflow.json_option import JsonOutput, json_option
from gradientflow.recorder.diagnosis import (
    Diagnosis,
    Report,
    calls_of,
    diagnose,
    latest_job,
    place_text,
    ranks_text,
)
from gradientflow.tables import FittedTable, plain_table, print_table

_LONGEST = 34  # characters of the description of a call


@click.command()
@click.argument("dumps", metavar="DUMP...", nargs=-1, required=True)
@click.option("--last", type=click.IntRange(1), default=5, show_default=True, help="Number of calls in the table.")
@json_option
def why(dumps: Sequence[str], last: int, json_output: JsonOutput | None) -> None:
    """Say which rank of a failed job did something else than all others, first, and at which line.

    DUMP is a folder that the error names, or a file of a rank in it. Copy the files of all hosts into one folder.
    """
    reports = latest_job(_read(dumps))
    found = diagnose(reports)
    click.echo(found.sentence)
    click.echo(found.advice)
    click.echo()
    print_table(_table(reports, found, last))
    size = max(int(report.head["size"]) for report in reports)
    if absent := sorted(set(range(size)) - {report.rank for report in reports}):
        click.echo(f"\nNo report of {ranks_text(absent)} of {size}.")
    if json_output is not None:
        json_output.write({**asdict(found), "advice": found.advice, "reports": [report.head for report in reports]})


def _read(dumps: Sequence[str]) -> list[Report]:
    files = [
        file for name in dumps for file in (sorted(Path(name).glob("*.jsonl")) if Path(name).is_dir() else [Path(name)])
    ]
    reports = []
    for file in files:
        try:
            lines: list[JsonObject] = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError) as error:
            raise ArgumentError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from error
        if not lines or not all(isinstance(line, dict) for line in lines) or lines[0].get("gradientflow") != "calls":
            raise ArgumentError(f"{file} is not a report of a rank's calls")
        try:
            reports.append(Report.of(lines))
        except (KeyError, TypeError, ValueError) as error:
            raise ArgumentError(f"{file} is damaged: {error!r}") from error
    if not reports:
        raise ArgumentError(f"there is no report of a rank in {', '.join(dumps)}")
    return reports


def _table(reports: Sequence[Report], found: Diagnosis, last: int) -> FittedTable:
    """Return the last calls of the communicator in question, or of each rank, with equal calls of ranks in one row."""
    table = plain_table(["call", "rank", "kind", "line", "state"])
    if found.communicator is None:
        for report in reports:
            for call in report.calls[-last:]:
                _add(table, call["call"], [report.rank], call)
        return table
    calls = calls_of(reports, found.communicator)
    for sequence in sorted(calls)[-last:]:
        alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for rank, call in calls[sequence].items():
            alike[call["text"], call["file"], call["line"], call["state"]].append(rank)
        for ranks in alike.values():
            _add(table, sequence, ranks, calls[sequence][ranks[0]])
    return table


def _add(table: FittedTable, number: int, ranks: Sequence[int], call: JsonObject) -> None:
    text = call["text"] if len(call["text"]) <= _LONGEST else call["text"][: _LONGEST - 1] + "…"
    table.add_row(str(number), ", ".join(map(str, ranks)), text, place_text(call), call["state"])
