"""``gradientflow bench survive``: the command, and its table."""

from __future__ import annotations

import json
import secrets
import statistics
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from ..core.table import empty_table
from ..netlab import Netlab
from .job import Event, Job, Outcome

_BAD = ("hang", "wrong")


@click.command()
@click.option("--kills", default=30, show_default=True, help="How many ranks to end, over all jobs.")
@click.option("-n", "--ranks", default=4, show_default=True, help="How many ranks to start, on each host.")
@click.option("--hosts", default=0, help="How many hosts to make by netlab; their links are cut, too (default: none).")
@click.option("--events", default=6, show_default=True, help="At most so many times a job is hit.")
@click.option("--seed", type=int, help="Of all that is drawn by lot (default: a new one).")
@click.option("--json", "json_path", type=click.Path(), help="Write all events here.")
def survive(kills: int, ranks: int, hosts: int, events: int, seed: int | None, json_path: str | None) -> int:
    """Kill ranks at random moments, start them again, and check what the others go on with.

    Ranks add up whole numbers over TCP, let newcomers in, and call comm.recover() after an error. They die while they
    meet, join, recover and at any other moment. In the end their sums must be those of a replay of who contributed to
    which step. The exit status is 1 if a job hangs or a sum is wrong.
    """
    seed = secrets.randbelow(1 << 30) if seed is None else seed
    outcomes: list[Outcome] = []
    while (killed := sum(len(event.victims) for each in outcomes for event in each.events)) < kills:
        number = len(outcomes)
        with Netlab(hosts, "none", ranks) if hosts else nullcontext() as lab:
            outcome = Job(ranks * max(hosts, 1), lab, seed + number).run(events)
        outcomes.append(outcome)
        if outcome.verdict in _BAD:
            click.echo(f"--seed {seed + number}: {outcome.verdict}: {outcome.detail}", err=True)
        if number % 10 == 0:
            click.echo(f"{number + 1} jobs, {killed} of {kills} kills", err=True)
    found = Counter(each.verdict for each in outcomes)
    Console().print(_table(outcomes))
    names = ("right", "stopped", *_BAD)
    back = sum(each.back for each in outcomes)
    click.echo(f"{len(outcomes)} jobs, seed {seed}: " + ", ".join(f"{name} {found[name]}" for name in names))
    click.echo(f"{back} ranks have come back")
    if json_path is not None:
        figures = {"seed": seed, "ranks": ranks, "hosts": hosts, "jobs": [asdict(each) for each in outcomes]}
        Path(json_path).write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return 1 if any(found[name] for name in _BAD) else 0


def _table(outcomes: Sequence[Outcome]) -> Table:
    table = empty_table()
    for heading in ("what ends", "times", "ranks", "recoveries", "hangs", "wrong", "stopped", "median\ns", "worst\ns"):
        table.add_column(heading, justify="right")
    every = [(event, each.verdict) for each in outcomes for event in each.events]
    for name in sorted({event.kind for event, _ in every}):
        table.add_row(name, *_figures([each for each in every if each[0].kind == name]))
    table.add_section()
    for name in sorted({event.moment for event, _ in every}):
        table.add_row(name, *_figures([each for each in every if each[0].moment == name]))
    table.add_section()
    table.add_row("all", *_figures(every))
    return table


def _figures(chosen: Sequence[tuple[Event, str]]) -> list[str]:
    seconds = [event.seconds for event, _ in chosen if event.seconds is not None]
    verdicts = Counter(verdict for _, verdict in chosen)
    return [
        str(len(chosen)),
        str(sum(len(event.victims) for event, _ in chosen)),
        str(len(seconds)),
        *(str(verdicts[name]) for name in (*_BAD, "stopped")),
        f"{statistics.median(seconds):.3f}" if seconds else "",
        f"{max(seconds):.3f}" if seconds else "",
    ]
