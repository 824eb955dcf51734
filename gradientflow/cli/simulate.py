"""``gradientflow simulate``: predict the steps of strategies on hosts that need not exist."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from gradientflow.cli.picture import require_matplotlib
from gradientflow.cli.predictions import computation_from, model_options, table_of
from gradientflow.cli.table import plain_table, print_table
from gradientflow.cli.timeline_file import read_events
from gradientflow.errors import ArgumentError
from gradientflow.model import Cluster, Costs, Link, Prediction, computation_of_events, predict
from gradientflow.model.cluster import TRANSPORTS
from gradientflow.policies import as_stragglers
from gradientflow.strategies import parse_strategies

if TYPE_CHECKING:
    from rich.table import Table

_MOST_RANKS = 1_000_000


@click.command()
@click.option("--hosts", default="4", show_default=True, metavar="N[,N...]", help="How many; several are compared.")
@click.option("--ranks-per-host", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="Of each.")
@click.option("--link", metavar="RATE,LATENCY", help="Of each host, such as 25gbit,20us.")
@click.option("--link-from", metavar="FILE.toml", help="A link that `tune` has measured, in place of --link.")
@model_options
@click.option("--trace", metavar="FILE", help="A recorded step, in place of --model, --step and --backward.")
@click.option(
    "--strategy", "strategies", default="all", show_default=True, metavar="WORDS", help="Separated by semicolons."
)
@click.option("--transport", default="tcp", show_default=True, type=click.Choice(TRANSPORTS), help="Of messages.")
@click.option(
    "--stragglers",
    metavar="WORDS",
    help='How many times as long ranks compute: 1,1,1,2, or "stragglers((1,), jitter=0.2)".',
)
@click.option(
    "--steps", type=click.IntRange(1), default=100, show_default=True, help="Over which random durations are drawn."
)
@click.option("--json", "output", metavar="FILE", help="Write all predictions here.")
@click.option(
    "--plot",
    "picture",
    metavar="FILE.png",
    help="Draw steps over 1 to N hosts; .png, .pdf, .svg.",
)
def simulate(
    hosts: str,
    ranks_per_host: int,
    link: str | None,
    link_from: str | None,
    model: str,
    step: str,
    backward: str | None,
    trace: str | None,
    strategies: str,
    transport: Any,
    stragglers: str | None,
    steps: int,
    output: str | None,
    picture: str | None,
) -> None:
    """Predict how long a step takes with each strategy on a cluster, from a model of its links. Starts no job."""
    if picture:
        require_matplotlib()
    if (link is None) == (link_from is None):
        raise ArgumentError("say what the link is: --link 25gbit,20us, or --link-from FILE of gradientflow tune")
    found = Link.parse(link) if link is not None else Link.load(str(link_from))
    numbers = _numbers(hosts)
    if max(numbers) * ranks_per_host > _MOST_RANKS:
        raise ArgumentError(f"at most {_MOST_RANKS:,} ranks are simulated, not {max(numbers) * ranks_per_host:,}")
    what = f"{model}, {step} a step"
    if trace is None:
        computation = computation_from(model, step, backward)
    else:
        computation = computation_of_events(read_events(trace))
        what = f"{trace}, {computation.seconds * 1e3:.1f} ms a step"
    chosen = parse_strategies(strategies, 10_000)
    slow = as_stragglers(stragglers) if stragglers else None

    def predicted(numbers: Iterable[int]) -> dict[int, list[Prediction]]:
        clusters = {number: Cluster((ranks_per_host,) * number, transport) for number in numbers}
        return {
            number: [predict(each, computation, Costs(cluster, found), slow, steps) for each in chosen]
            for number, cluster in clusters.items()
        }

    results = predicted(numbers)
    console = Console(highlight=False)
    each_host = f"{ranks_per_host} {'rank' if ranks_per_host == 1 else 'ranks'} on each host"
    where = f"{numbers[0]:,} {'host' if numbers[0] == 1 else 'hosts'}, {each_host}" if len(numbers) == 1 else each_host
    console.print(f"{what}, {where}, {found}: predicted, not measured\n", soft_wrap=True)
    print_table(table_of(results[numbers[0]], chosen) if len(numbers) == 1 else _overview(results))
    if output:
        _write(output, results, found, what, ranks_per_host)
    if picture:
        from gradientflow.cli.simulate_plot import save_steps

        drawn = predicted(_up_to(numbers[0])) if len(numbers) == 1 else results
        save_steps(picture, drawn, f"{what}, {each_host}, {found}")


def _numbers(text: str) -> list[int]:
    try:
        found = [int(each) for each in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise ArgumentError(f"--hosts is a number of 1 or more, or several such as 2,4,8, not {text!r}")
    return found


def _up_to(number: int) -> list[int]:
    """Return the powers of two below a number, and the number."""
    return [*(2**power for power in range((number - 1).bit_length())), number]


def _overview(results: dict[int, list[Prediction]]) -> Table:
    table = plain_table(["step ms with so many hosts"], [f"{number:,}" for number in results])
    rows = zip(*results.values(), strict=True)
    for row in sorted(rows, key=lambda each: each[-1].step.seconds):
        table.add_row(row[0].strategy, *(f"{each.step.seconds * 1e3:,.1f}" for each in row))
    return table


def _write(path: str, results: dict[int, list[Prediction]], link: Link, what: str, ranks: int) -> None:
    entries = [
        {
            "hosts": number,
            "ranks": each.ranks,
            "strategy": each.strategy,
            **each.step._asdict(),
            "alone_seconds": each.alone_seconds,
            "memory": each.memory,
        }
        for number, predictions in results.items()
        for each in predictions
    ]
    facts = {"what": what, "ranks_per_host": ranks, "link": asdict(link), "predictions": entries}
    try:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(facts, file, indent=1)
    except OSError as error:
        raise ArgumentError(f"{path} cannot be written: {error}") from error
