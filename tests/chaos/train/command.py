"""``python tests/chaos train``: runs with kills beside undisturbed ones, their table and picture."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Any

import click

from gradientflow.bench.core.job_command import writable
from gradientflow.bench.core.table import empty_table
from gradientflow.json_option import JsonOutput, json_option
from gradientflow.machine import cpu_model
from gradientflow.tables import FittedTable, print_table

from .job import Death, Training, run

_BIN = 1.0  # seconds of training that a point of the throughput stands for
_QUIET, _KILLED = "#555555", "#0b5fa5"

Pair = tuple[Training, Training]  # undisturbed, and with deaths


@click.command(short_help="Train while ranks are killed.")
@click.option("-n", "--ranks", default=2, show_default=True, help="How many ranks to start.")
@click.option("--kill-every", default=15.0, show_default=True, help="Seconds between two deaths.")
@click.option("--seconds", default=60.0, show_default=True, help="How long each run trains.")
@click.option("--strategy", default="dense", show_default=True, help="How ranks are synchronized.")
@click.option("--batch", default=32, show_default=True, help="Samples of a rank in a step.")
@click.option("--rounds", default=1, show_default=True, help="How many rounds of two runs, undisturbed and with kills.")
@click.option("--hours", default=0.0, help="Go on with rounds for at least so long.")
@click.option("--seed", default=0, show_default=True, help="Of the ranks that die in the first round.")
@click.option(
    "--preload",
    default="torch,torch._dynamo",
    show_default=True,
    metavar="MODULES",
    help="Modules that processes have when they start; '' for none.",
)
@json_option
@click.option(
    "--plot", "plot_path", metavar="FILE", callback=writable, help="Draw throughput and loss of the last round."
)
def train(
    ranks: int,
    kill_every: float,
    seconds: float,
    strategy: str,
    batch: int,
    rounds: int,
    hours: float,
    seed: int,
    preload: str,
    json_output: JsonOutput | None,
    plot_path: str | None,
) -> int:
    """Train with PyTorch while ranks are killed and come back, beside undisturbed runs.

    The table has the samples a second of both, and how long a rank takes to come back.
    """
    if kill_every <= 0 or ranks < 2:
        raise click.UsageError("--kill-every takes more than 0 seconds, and -n 2 ranks or more")
    pairs: list[Pair] = []
    end = time.monotonic() + 3600 * hours
    while len(pairs) < rounds or time.monotonic() < end:
        chosen = seed + len(pairs)
        quiet = run(ranks, batch, strategy, seconds, None, chosen, preload)
        pairs.append((quiet, run(ranks, batch, strategy, seconds, kill_every, chosen, preload)))
        click.echo(f"{len(pairs)} rounds", err=True)
    print_table(_table(pairs))
    both = [sum(each.samples_per_second for each in runs) for runs in zip(*pairs, strict=True)]
    click.echo(f"{both[1] / both[0]:.1%} of the samples of the undisturbed runs")
    if json_output is not None:
        figures = {"ranks": ranks, "batch": batch, "kill_every": kill_every, "strategy": strategy, "preload": preload}
        found = [[asdict(each) for each in pair] for pair in pairs]
        json_output.write({**figures, "rounds": found})
    if plot_path is not None:
        _draw(plot_path, pairs[-1], f"{cpu_model()}: {ranks} ranks, a kill every {kill_every:g} s")
    return 0


def _table(pairs: Sequence[Pair]) -> FittedTable:
    table = empty_table()
    rates_of = ("undisturbed\nsamples/s", "with kills\nsamples/s", "%")
    for heading in ("round", *rates_of, "kills", "ready\ns", "processor\ns", "back\ns"):
        table.add_column(heading, justify="right")
    for number, (quiet, killed) in enumerate(pairs, 1):
        rates = quiet.samples_per_second, killed.samples_per_second
        table.add_row(
            str(number),
            *(f"{rate:.0f}" for rate in rates),
            f"{100 * rates[1] / rates[0]:.1f}",
            str(len(killed.deaths)),
            _median(killed.deaths, lambda death: death.ready),
            _median(killed.deaths, lambda death: death.processor),
            _median(killed.deaths, lambda death: death.back),
        )
    return table


def _median(deaths: Sequence[Death], value: Callable[[Death], float | None]) -> str:
    found = [seconds for death in deaths if (seconds := value(death)) is not None]
    return f"{statistics.median(found):.2f}" if found else ""


def _draw(path: str, pair: Pair, title: str) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(9, 5.5), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True)
        for run, color, name in zip(pair, (_QUIET, _KILLED), ("undisturbed", "with kills"), strict=True):
            upper.plot(*_throughput(run), color=color, label=name, linewidth=1.2, drawstyle="steps-post")
            lower.plot(*_loss(run), color=color, label=name, linewidth=1.2)
        for axes in (upper, lower):
            for death in pair[1].deaths:
                axes.axvline(death.at, color="#d1495b", linewidth=0.8, linestyle="--")
            axes.grid(visible=True, alpha=0.3)
        upper.set_ylabel("samples a second")
        upper.set_ylim(bottom=0)
        upper.legend(fontsize=8, frameon=False, loc="lower right")
        lower.set_ylabel("training loss, rank 0")
        lower.set_yscale("log")
        lower.set_xlabel("seconds since the first step; dashed: a rank is killed")
        figure.suptitle(title, fontsize=9)
        figure.savefig(path, dpi=140)


def _throughput(run: Training) -> Any:
    counts = [0.0] * max(1, int(run.seconds / _BIN))
    for at, samples, _, _ in run.points:
        counts[min(int(at / _BIN), len(counts) - 1)] += samples / _BIN
    return [index * _BIN for index in range(len(counts) + 1)], [*counts, counts[-1]]


def _loss(run: Training) -> Any:
    smooth = accumulate((loss for _, _, loss, _ in run.points), lambda before, loss: 0.8 * before + 0.2 * loss)
    return [point[0] for point in run.points], list(smooth)
