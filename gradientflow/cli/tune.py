"""``gradientflow tune``: measure the link of a job, and choose a strategy by predictions and measurements."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import click
import numpy as np

import gradientflow as gf
from gradientflow.cli.again import start_again
from gradientflow.cli.predictions import computation_from, figures_of, input_options, strategies_from
from gradientflow.cli.transport import transport_option
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError
from gradientflow.json_option import JsonOutput, json_option
from gradientflow.launch import ranks_of_this_job
from gradientflow.machine_load import LoadMeter
from gradientflow.model import Computation, Costs, Fit, Prediction, measure_link, predict
from gradientflow.paced import step_seconds
from gradientflow.settings_file import NAME, VARIABLE, SettingsFile, read_settings_file, write_settings_file
from gradientflow.strategies import Strategy, as_strategy
from gradientflow.strategies.comparison import CANDIDATES
from gradientflow.strategies.parsing import names_code
from gradientflow.strategies.predict.ranking import Ranked, advice, better, effect_of, fastest, is_lossless
from gradientflow.strategies.predict.step_table import step_table
from gradientflow.tables import FittedTable, plain_table, print_table
from gradientflow.terminal import open_console, print_text

_BLOCKS = 3
_LEAST_STEPS = 5
_SECONDS = 2.0  # rough duration of a block


@click.command()
@click.option(
    "-n",
    "--ranks",
    type=int,
    metavar="N",
    help="Number of ranks to start; by default the slots of --hosts. Not needed inside a job.",
)
@click.option("--hosts", metavar="A:SLOTS,B:SLOTS", help="Hosts of the ranks (default: this machine).")
@transport_option("without MPI")
@input_options(CANDIDATES)
@click.option(
    "--measure",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Number of strategies of each effect to measure, the best by prediction.",
)
@click.option(
    "-o",
    "--output",
    default=NAME,
    show_default=True,
    metavar="FILE.toml",
    help="File for the link and the best lossless strategy.",
)
@json_option
def tune(
    ranks: int | None,
    hosts: str | None,
    transport: str,
    model: str | None,
    step: str | None,
    backward: str | None,
    trace: str | None,
    strategies: str,
    lossless: bool,
    measure: int,
    output: str,
    json_output: JsonOutput | None,
) -> int:
    """Measure the link between ranks, predict the step of each strategy, and measure the best.

    The measured steps are real exchanges of gradients of the model's shapes; its computation is a timed wait.
    Programs in the folder of gradientflow.toml that name no strategy then use the best whose result is exact. The last
    line names the strategy to take in place of the file's, or of dense.
    """
    if not os.access(Path(output).parent, os.W_OK) or Path(output).is_dir():
        raise ArgumentError(f"{output} cannot be written")
    before = read_settings_file(output) if Path(output).is_file() else SettingsFile()
    computation, what = computation_from(model, step, backward, trace)
    chosen = strategies_from(strategies, 1000, lossless)
    known = before.strategy is not None and not names_code(before.strategy)  # a file is not to run code here
    present = str(as_strategy(before.strategy if known else "dense"))
    for name in dict.fromkeys((present, "dense")):
        if name not in map(str, chosen):
            chosen.append(as_strategy(name))
    for each in chosen:
        each.check_traffic()
    inside = ranks_of_this_job()
    if inside is None:
        return start_again(sys.argv[1:], ranks, hosts, transport)
    if ranks not in (None, inside):
        raise ArgumentError(f"-n {ranks} was given, but this job has {inside} ranks: leave -n out inside a job")
    with gf.init() as comm:
        console = open_console(quiet=comm.rank > 0)
        fit = measure_link(comm)
        where = fit.measurement.cluster
        costs = Costs(where, fit.link)
        predictions = [predict(each, computation, costs) for each in chosen]
        order = np.argsort([each.step.seconds for each in predictions], kind="stable")
        comm.broadcast(order)  # the last bits of the fits may differ between ranks
        between = len(where.nodes) > 1
        print_text(console, f"{where}: {fit.link if between else 'the memory of one host'}")
        print_table(_points(fit), console)
        timed = ", and measured with a timed wait for computation" if measure else ""
        print_text(console, f"\n{what}: predicted{timed}")
        meter = LoadMeter(comm)
        rows = [(predictions[index], chosen[index]) for index in order.tolist()]
        measured = _measure(comm, computation, rows, measure, (present, "dense"))
        remark = fit.measurement.remark or meter.remark()
        if comm.rank == 0:
            print_table(step_table(predictions, chosen, measured), console)
            candidates = [
                Ranked(strategy, measured.get(str(strategy), each.step.seconds))
                for strategy, each in zip(chosen, predictions, strict=True)
                if not measured or str(strategy) in measured
            ]
            there = next(each for each in candidates if str(each.strategy) == present)
            exact = [each for each in candidates if is_lossless(each.strategy)]
            best = better(exact, there) or (there if there in exact else fastest(exact))
            strategy = None if best is None else str(best.strategy)
            sentences = advice(candidates, there)
            facts = f"{where} over {where.transport}, {what}, {time.strftime('%Y-%m-%d %H:%M')}"
            remarks = [facts, remark, *sentences]
            link = asdict(fit.link) if between else before.link
            write_settings_file(output, replace(before, strategy=strategy, link=link), remarks)
            for paragraph in filter(None, (remark, _outcome(output, strategy, between), "\n".join(sentences))):
                print_text(console, f"\n{paragraph}")
            if json_output:
                entries = [
                    {**figures_of(each), "measured_seconds": measured.get(each.strategy)} for each in predictions
                ]
                points = [
                    {"bytes": point.call.count * 4, "seconds": point.seconds, "residual": residual}
                    for point, residual in zip(fit.measurement.points, fit.residuals, strict=True)
                ]
                found = {"what": what, "cluster": str(where), "link": asdict(fit.link), "points": points}
                json_output.write({**found, "predictions": entries, "advice": sentences, "remark": remark})
    return 0


def _points(fit: Fit) -> FittedTable:
    table = plain_table((), ("allreduce, bytes", "measured us", "fitted", "difference"))
    for point, residual in zip(fit.measurement.points, fit.residuals, strict=True):
        fitted = point.seconds * (1 + residual)
        table.add_row(
            f"{point.call.count * 4:,}", f"{point.seconds * 1e6:,.0f}", f"{fitted * 1e6:,.0f}", f"{residual:+.0%}"
        )
    return table


def _measure(
    comm: Communicator,
    computation: Computation,
    rows: Sequence[tuple[Prediction, Strategy]],
    number: int,
    always: Container[str],
) -> dict[str, float]:
    """Return the median steps of the first `number` strategies of each effect, and of `always`. Collective."""
    seen: Counter[str] = Counter()
    measured = {}
    for prediction, strategy in rows:
        seen[effect_of(strategy)] += 1
        if not number or (seen[effect_of(strategy)] > number and str(strategy) not in always):
            continue
        period = strategy.profile().period
        wanted = np.array([round(_SECONDS / max(prediction.step.seconds, 1e-3) / period) * period])
        comm.broadcast(wanted)
        steps = min(max(_LEAST_STEPS, int(wanted[0]), period), 100 * period)
        measured[str(strategy)] = statistics.median(step_seconds(comm, str(strategy), computation, steps, _BLOCKS))
    return measured


def _outcome(output: str, strategy: str | None, between: bool) -> str:
    """Return words for the effect of the written file, with a link if ranks are on several hosts."""
    link = f"The link is in {output}: gradientflow simulate --link-from {output}"
    if not between:
        link = (
            "All ranks are on one host, so no link was measured; for several, gradientflow simulate --link 1gbit,50us"
        )
    if strategy is None:
        return link
    where = "in this folder" if output == NAME else f"with {VARIABLE}={output}"
    return f"{link}\nPrograms that are started {where} and name no strategy use {strategy}, which {output} has, too."


__all__ = ["tune"]
