"""``gradientflow tune``: measure the link of a job, and choose a strategy by predictions and measurements."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
from rich.console import Console

import gradientflow as gf
from gradientflow.cli.again import start_again
from gradientflow.cli.predictions import computation_from, effect_of, model_options, table_of
from gradientflow.cli.table import plain_table, print_table
from gradientflow.cli.transport import transport_option
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError
from gradientflow.launch import ranks_of_this_job
from gradientflow.machine_load import LoadMeter
from gradientflow.model import Computation, Costs, Fit, Prediction, measure_link, predict
from gradientflow.paced import step_seconds
from gradientflow.settings_file import NAME, VARIABLE, SettingsFile, read_settings_file, write_settings_file
from gradientflow.strategies import Strategy, parse_strategies

if TYPE_CHECKING:
    from rich.table import Table

_BLOCKS = 3
_LEAST_STEPS = 5
_SECONDS = 2.0  # rough duration of a block


@click.command()
@click.option("-n", "--ranks", type=int, metavar="N", help="Ranks to start; not needed inside a job.")
@click.option("--hosts", metavar="A:SLOTS,B:SLOTS", help="Where to start them (default: this machine).")
@transport_option("without MPI")
@model_options
@click.option(
    "--strategy",
    "strategies",
    default="all; dense(wire='float16'); csc(density=0.01)",
    show_default=True,
    metavar="WORDS",
    help="Separated by semicolons.",
)
@click.option(
    "--measure",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Measure so many of the best of each result.",
)
@click.option("-o", "--output", default=NAME, show_default=True, help="Where to write the link and the best strategy.")
def tune(
    ranks: int | None,
    hosts: str | None,
    transport: str,
    model: str,
    step: str,
    backward: str | None,
    strategies: str,
    measure: int,
    output: str,
) -> int:
    """Measure the link between ranks, predict the step of each strategy, and measure the best.

    The measured steps are real exchanges of gradients of the model's shapes; its computation is a timed wait of --step.
    Programs in the folder of gradientflow.toml that name no strategy then use the best whose result is exact.
    """
    if not os.access(Path(output).parent, os.W_OK) or Path(output).is_dir():
        raise ArgumentError(f"{output} cannot be written")
    before = read_settings_file(output) if Path(output).is_file() else SettingsFile()
    computation = computation_from(model, step, backward)
    chosen = parse_strategies(strategies, 1000)
    for each in chosen:
        each.check_traffic()
    inside = ranks_of_this_job()
    if inside is None:
        if ranks is None:
            raise ArgumentError("say how many ranks to start, for example -n 2")
        return start_again(sys.argv[1:], ranks, hosts, transport)
    if ranks not in (None, inside):
        raise ArgumentError(f"-n {ranks} was given, but this job has {inside} ranks: leave -n out inside a job")
    with gf.init() as comm:
        console = Console(highlight=False, quiet=comm.rank > 0)
        fit = measure_link(comm)
        where = fit.measurement.cluster
        costs = Costs(where, fit.link)
        predictions = [predict(each, computation, costs) for each in chosen]
        order = np.argsort([each.step.seconds for each in predictions], kind="stable")
        comm.broadcast(order)  # the last bits of the fits may differ between ranks
        console.print(f"{where}: {fit.link}", soft_wrap=True)
        if comm.rank == 0:
            print_table(_points(fit))
        console.print(
            f"\n{model}, {step} a step: predicted, and measured with a timed wait for computation", soft_wrap=True
        )
        meter = LoadMeter(comm)
        rows = [(predictions[index], chosen[index]) for index in order.tolist()]
        measured = _measure(comm, computation, rows, measure)
        remark = fit.measurement.remark or meter.remark()
        if comm.rank == 0:
            print_table(table_of(predictions, chosen, measured))
            best = _best(chosen, predictions, measured)
            console.print("\nBest of those whose result is")
            console.print(_words_of(best), soft_wrap=True)
            if remark:
                console.print(f"\n{remark}", soft_wrap=True)
            strategy = best["exact"][1] if "exact" in best else before.strategy
            facts = f"{where} over {where.transport}, {model}, {step} a step, {time.strftime('%Y-%m-%d %H:%M')}"
            remarks = [facts, remark, "The best of those whose result is", _words_of(best)]
            write_settings_file(output, replace(before, strategy=strategy, link=asdict(fit.link)), remarks)
            console.print(f"\n{_outcome(output, strategy)}", soft_wrap=True)
    return 0


def _points(fit: Fit) -> Table:
    table = plain_table((), ("allreduce, bytes", "measured us", "fitted", "difference"))
    for point, residual in zip(fit.measurement.points, fit.residuals, strict=True):
        fitted = point.seconds * (1 + residual)
        table.add_row(
            f"{point.call.count * 4:,}", f"{point.seconds * 1e6:,.0f}", f"{fitted * 1e6:,.0f}", f"{residual:+.0%}"
        )
    return table


def _measure(
    comm: Communicator, computation: Computation, rows: Sequence[tuple[Prediction, Strategy]], number: int
) -> dict[str, float]:
    """Measure the first `number` strategies of each effect, and return their median steps. Collective."""
    seen: Counter[str] = Counter()
    measured = {}
    for prediction, strategy in rows:
        seen[effect_of(strategy)] += 1
        if seen[effect_of(strategy)] > number:
            continue
        period = strategy.profile().period
        wanted = np.array([round(_SECONDS / max(prediction.step.seconds, 1e-3) / period) * period])
        comm.broadcast(wanted)
        steps = min(max(_LEAST_STEPS, int(wanted[0]), period), 100 * period)
        measured[str(strategy)] = statistics.median(step_seconds(comm, str(strategy), computation, steps, _BLOCKS))
    return measured


def _best(
    strategies: list[Strategy], predictions: list[Prediction], measured: dict[str, float]
) -> dict[str, tuple[float, str]]:
    """Return the seconds and the name of the best strategy of each effect, the shortest step first."""
    best: dict[str, tuple[float, str]] = {}
    for strategy, prediction in zip(strategies, predictions, strict=True):
        seconds = measured.get(prediction.strategy, prediction.step.seconds)
        effect = effect_of(strategy)
        if effect not in best or seconds < best[effect][0]:
            best[effect] = seconds, prediction.strategy
    return dict(sorted(best.items(), key=lambda item: item[1][0]))


def _words_of(best: dict[str, tuple[float, str]]) -> str:
    return "\n".join(f"  {effect + ':':24} {name}, {seconds * 1e3:,.1f} ms" for effect, (seconds, name) in best.items())


def _outcome(output: str, strategy: str | None) -> str:
    """Return words for the effect of the written file."""
    link = f"The link is in {output}: gradientflow simulate --link-from {output}"
    if strategy is None:
        return link
    where = "in this folder" if output == NAME else f"with {VARIABLE}={output}"
    return f"{link}\nPrograms that are started {where} and name no strategy use {strategy}, which {output} has, too."


__all__ = ["tune"]
