"""``gradientflow simulate``: predict the steps of strategies on hosts that need not be there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

import click

from gradientflow.cli.picture import require_matplotlib
from gradientflow.cli.predictions import (
    computation_from,
    figures_of,
    input_options,
    strategies_from,
)
from gradientflow.errors import ArgumentError
from gradientflow.json_option import JsonOutput, json_option
from gradientflow.model import Cluster, Costs, Link, Prediction, predict
from gradientflow.model.cluster import TRANSPORTS
from gradientflow.policies import as_stragglers
from gradientflow.strategies import Dense, Strategy
from gradientflow.strategies.predict.ranking import Ranked, advice
from gradientflow.strategies.predict.step_table import grouped_table, milliseconds, step_table
from gradientflow.tables import FittedTable, print_table
from gradientflow.terminal import open_console, print_text

_MOST_RANKS = 1_000_000


@click.command()
@click.option(
    "--hosts",
    default="4",
    show_default=True,
    metavar="N[,N...]",
    help="Number of hosts; several, such as 2,4,8, are compared.",
)
@click.option(
    "--ranks-per-host", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="Ranks on each host."
)
@click.option(
    "--cores-per-rank",
    type=click.FloatRange(0, min_open=True),
    metavar="N",
    help="Processor cores of each rank; below 1, ranks wait for each other's work (default: one, or the link's).",
)
@click.option("--link", metavar="RATE,LATENCY", help="Link of each host, such as 25gbit,20us.")
@click.option("--link-from", metavar="FILE.toml", help="File with a link that `tune` has measured, in place of --link.")
@input_options("all")
@click.option(
    "--transport", default="tcp", show_default=True, type=click.Choice(TRANSPORTS), help="Carrier of messages."
)
@click.option(
    "--stragglers",
    metavar="WORDS",
    help='Relative computing times of the ranks: 1,1,1,2, or "stragglers((1,), jitter=0.2)".',
)
@click.option(
    "--steps",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Steps over which random computing times are drawn.",
)
@json_option
@click.option(
    "--plot",
    "picture",
    metavar="FILE.png",
    help="Picture of the steps over the number of hosts; .png, .pdf or .svg.",
)
def simulate(
    hosts: str,
    ranks_per_host: int,
    cores_per_rank: float | None,
    link: str | None,
    link_from: str | None,
    model: str | None,
    step: str | None,
    backward: str | None,
    trace: str | None,
    strategies: str,
    lossless: bool,
    transport: Any,
    stragglers: str | None,
    steps: int,
    json_output: JsonOutput | None,
    picture: str | None,
) -> None:
    """Predict the steps of strategies on hosts that need not be there.

    The last line names the strategy to take in place of dense, if any is faster.
    """
    if picture:
        require_matplotlib()
    if (link is None) == (link_from is None):
        raise ArgumentError("say what the link is: --link 25gbit,20us, or --link-from FILE of gradientflow tune")
    found = Link.parse(link) if link is not None else Link.load(str(link_from))
    numbers = _numbers(hosts)
    if max(numbers) > 1 and found.per_byte == found.latency == 0:
        raise ArgumentError(
            f"{link_from} has no link between hosts, since all ranks that measured it were on one: "
            "tune on several hosts, or say --link 25gbit,20us"
        )
    if max(numbers) * ranks_per_host > _MOST_RANKS:
        raise ArgumentError(f"at most {_MOST_RANKS:,} ranks are simulated, not {max(numbers) * ranks_per_host:,}")
    computation, what = computation_from(model, step, backward, trace)
    chosen = strategies_from(strategies, 10_000, lossless)
    slow = as_stragglers(stragglers) if stragglers else None

    def costs(number: int) -> Costs:
        cluster = Cluster((ranks_per_host,) * number, transport)
        cores = found.cores if cores_per_rank is None else cores_per_rank * cluster.ranks
        return Costs(cluster, replace(found, cores=cores))

    def predicted(numbers: Iterable[int]) -> dict[int, list[Prediction]]:
        costs_of = {number: costs(number) for number in numbers}
        return {
            number: [predict(each, computation, those, slow, steps) for each in chosen]
            for number, those in costs_of.items()
        }

    results = predicted(numbers)
    dense = Ranked(Dense(), predict(Dense(), computation, costs(numbers[-1]), slow, steps).step.seconds)
    candidates = [
        Ranked(strategy, each.step.seconds) for strategy, each in zip(chosen, results[numbers[-1]], strict=True)
    ]
    sentences = advice(candidates, dense)
    console = open_console()
    each_host = f"{ranks_per_host} {'rank' if ranks_per_host == 1 else 'ranks'} on each host"
    where = f"{_hosts(numbers[0])}, {each_host}" if len(numbers) == 1 else each_host
    print_text(console, f"{what}, {where}, {found}: predicted, not measured\n")
    print_table(step_table(results[numbers[0]], chosen) if len(numbers) == 1 else _overview(results, chosen), console)
    print_text(console)
    for sentence in sentences:
        print_text(console, sentence if len(numbers) == 1 else f"{_hosts(numbers[-1])}: {sentence}")
    if json_output:
        entries = [{"hosts": number, **figures_of(each)} for number, those in results.items() for each in those]
        facts = {"what": what, "ranks_per_host": ranks_per_host, "link": asdict(found)}
        json_output.write({**facts, "predictions": entries, "advice": sentences})
    if picture:
        from gradientflow.cli.simulate_plot import save_steps

        drawn = predicted(_up_to(numbers[0])) if len(numbers) == 1 else results
        save_steps(picture, drawn, chosen, f"{what}, {each_host}, {found}")


def _hosts(number: int) -> str:
    return f"{number:,} {'host' if number == 1 else 'hosts'}"


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


def _overview(results: dict[int, list[Prediction]], strategies: list[Strategy]) -> FittedTable:
    rows = zip(strategies, zip(*results.values(), strict=True), strict=True)
    return grouped_table(
        "step ms with so many hosts",
        [f"{number:,}" for number in results],
        [(strategy, each[-1], [milliseconds(one) for one in each]) for strategy, each in rows],
    )
