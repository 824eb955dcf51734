"""``python tests/chaos survive``: the command, and its table."""

from __future__ import annotations

import secrets
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict

import click

from gradientflow.bench.core.table import empty_table
from gradientflow.json_option import JsonOutput, json_option
from gradientflow.netlab import Netlab
from gradientflow.tables import FittedTable, print_table

from .groups import GROUPS
from .job import Event, Job, Outcome

_BAD = ("hang", "wrong")


@click.command(short_help="Kill ranks at random moments.")
@click.option("--kills", default=30, show_default=True, help="How many ranks to end, over all jobs.")
@click.option("--hours", default=0.0, help="Go on for at least so long.")
@click.option("-n", "--ranks", default=4, show_default=True, help="How many ranks to start, on each host.")
@click.option("--hosts", default=0, help="How many hosts to make by netlab; their links are cut, too (default: none).")
@click.option("--events", default=6, show_default=True, help="At most so many times a job is hit.")
@click.option(
    "--strategy",
    "strategies",
    multiple=True,
    metavar="NAMES",
    help=f"What ranks do, in turns, separated by semicolons or repeated: {', '.join(GROUPS)}  [default: all]",
)
@click.option("--seed", type=int, help="Of all that is drawn by lot (default: a new one).")
@json_option
def survive(
    kills: int,
    hours: float,
    ranks: int,
    hosts: int,
    events: int,
    strategies: Sequence[str],
    seed: int | None,
    json_output: JsonOutput | None,
) -> int:
    """Kill ranks at random moments, start them again, and check what the others go on with.

    Ranks train on whole numbers over TCP with a strategy and on_failure="continue", and newcomers join them; or they
    add up whole numbers, and call comm.recover() themselves. They die while they meet, join, recover and at any other
    moment. In the end their weights must be those of a replay of who contributed to which step. The exit status is 1 if
    a job hangs or a weight is wrong.
    """
    names = _names(strategies)
    if ranks * max(hosts, 1) < 2 or events < 1:
        raise click.UsageError("a job has 2 ranks or more, and is hit at most --events times, 1 or more")
    seed = secrets.randbelow(1 << 30) if seed is None else seed
    outcomes: list[Outcome] = []
    end = time.monotonic() + 3600 * hours
    while (killed := sum(map(_killed, outcomes))) < kills or time.monotonic() < end:
        number = len(outcomes)
        with Netlab(hosts, "none", ranks) if hosts else nullcontext() as lab:
            name = names[number % len(names)]
            outcome = Job(ranks * max(hosts, 1), name, lab, seed + number).run(events)
        outcomes.append(outcome)
        if outcome.verdict in _BAD:
            click.echo(f"--seed {seed + number} --strategy {name}: {outcome.verdict}: {outcome.detail}", err=True)
        if number % 10 == 0:
            click.echo(f"{number + 1} jobs, {killed} of {kills} kills", err=True)
    found = Counter(each.verdict for each in outcomes)
    print_table(_table(outcomes))
    verdicts = ("right", "stopped", *_BAD)
    back = sum(each.back for each in outcomes)
    click.echo(f"{len(outcomes)} jobs, seed {seed}: " + ", ".join(f"{name} {found[name]}" for name in verdicts))
    click.echo(f"{back} ranks have come back")
    if json_output is not None:
        figures = {"seed": seed, "ranks": ranks, "hosts": hosts, "jobs": [asdict(each) for each in outcomes]}
        json_output.write(figures)
    return 1 if any(found[name] for name in _BAD) else 0


def _killed(outcome: Outcome) -> int:
    return sum(len(event.victims) for event in outcome.events)


def _names(words: Sequence[str]) -> list[str]:
    """Give the names of groups, each once; without any, all."""
    names = list(dict.fromkeys(name.strip() for each in words for name in each.split(";") if name.strip()))
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        raise click.UsageError(f"--strategy takes {', '.join(GROUPS)}, not {unknown[0]}")
    return names or list(GROUPS)


def _table(outcomes: Sequence[Outcome]) -> FittedTable:
    table = empty_table()
    counts = ("times", "ranks", "recov-\neries", "hangs", "wrong", "stopped")
    for heading in ("what ends", *counts, "median\ns", "worst\ns"):
        table.add_column(heading, justify="right")
    every = [(event, each.verdict) for each in outcomes for event in each.events]
    for strategy in dict.fromkeys(each.strategy for each in outcomes):
        chosen = [each for each in outcomes if each.strategy == strategy]
        table.add_row(strategy, *_figures([(event, each.verdict) for each in chosen for event in each.events]))
    table.add_section()
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
