"""``python tests/chaos join``: the command, and its table."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict

import click

from gradientflow.bench.core.plan import parse_sizes
from gradientflow.bench.core.table import empty_table
from gradientflow.json_option import JsonOutput, json_option
from gradientflow.machine import cpu_model, format_size
from gradientflow.netlab import bytes_per_second
from gradientflow.strategies import as_strategy
from gradientflow.tables import FittedTable, print_table

from .job import Join, run

_REPLAYED = ("dense", "local_sgd", "diloco")


@click.command(short_help="Measure how long a process takes to join a job.")
@click.option("-n", "--ranks", default=3, show_default=True, help="How many ranks to start, on each host.")
@click.option("--hosts", default=0, help="How many hosts to make by netlab, which needs root (default: none).")
@click.option("--rate", default="1gbit", show_default=True, metavar="RATE", help="What each of these hosts can send.")
@click.option("--size", default="100M", show_default=True, metavar="BYTES", help="Bytes of weights and momentum.")
@click.option("--joins", default=5, show_default=True, help="How many processes join, one after the other.")
@click.option("--hours", default=0.0, help="Go on for at least so long.")
@click.option("--strategy", default="dense", show_default=True, help="Or local_sgd or diloco, without a delay.")
@json_option
def join(
    ranks: int,
    hosts: int,
    rate: str,
    size: str,
    joins: int,
    hours: float,
    strategy: str,
    json_output: JsonOutput | None,
) -> int:
    """Measure how long a process takes to join a job, and how long the others stand still meanwhile.

    Ranks train arrays over TCP by SGD with momentum: half of the bytes are weights. The last rank is killed, and
    started again. Some steps later weights and momentum of all ranks are compared with a replay; if any differ, the
    exit status is 1.
    """
    sizes = parse_sizes(size)
    if ranks * max(hosts, 1) < 2 or joins < 1:
        raise click.UsageError("a join takes 2 ranks or more, and there is 1 or more")
    if len(sizes) != 1 or sizes[0] % 8:
        raise click.UsageError(f"--size takes one number of bytes, a multiple of 8, not {size}")
    chosen = as_strategy(strategy)
    is_plain = (getattr(chosen, "delay", 0), getattr(chosen, "fragments", 1)) == (0, 1)
    if chosen.name not in _REPLAYED or not is_plain:
        raise click.UsageError(
            f"there is a replay of {', '.join(_REPLAYED)}, without delay and fragments, not of {chosen!r}"
        )
    found: list[Join] = []
    end = time.monotonic() + 3600 * hours
    while not found or time.monotonic() < end:
        found += run(ranks, hosts, rate, sizes[0], joins, chosen)
    click.echo(
        f"{cpu_model()}: {format_size(sizes[0])} of weights and momentum, {chosen!r}, {_place(ranks, hosts, rate)}"
    )
    print_table(_table(found))
    if hosts and (speed := bytes_per_second(rate)) is not None:
        click.echo(f"the bytes alone take {sizes[0] / speed:.2f} s at {rate}")
    if json_output is not None:
        figures = {"cpu": cpu_model(), "ranks": ranks, "hosts": hosts, "rate": rate if hosts else None}
        joined = [asdict(each) for each in found]
        json_output.write({**figures, "bytes": sizes[0], "joins": joined})
    return 1 if any(each.wrong for each in found) else 0


def _place(ranks: int, hosts: int, rate: str) -> str:
    return f"{hosts} hosts with {ranks} each at {rate}" if hosts else f"{ranks} ranks on this machine"


def _table(found: Sequence[Join]) -> FittedTable:
    table = empty_table()
    for heading in ("", "starts\ns", "is let in\ns", "gets state\ns", "together\ns", "first step\ns", "others wait\ns"):
        table.add_column(heading, justify="right")
    for number, each in enumerate(found, 1):
        table.add_row(str(number), *(["WRONG"] if each.wrong else map("{:.2f}".format, _figures(each))))
    table.add_section()
    right = [_figures(each) for each in found if not each.wrong]
    for name, choose in (("median", statistics.median), ("worst", max)):
        table.add_row(name, *(f"{choose(column):.2f}" for column in zip(*right, strict=True)))
    return table


def _figures(each: Join) -> tuple[float, ...]:
    return each.ready, each.let_in, each.state, each.total, each.first, each.others
