"""``gradientflow bench model``: fit on few emulated hosts, predict other clusters, then measure these."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import click
import numpy as np
from rich.console import Console

from gradientflow.annotations import JsonObject
from gradientflow.json_option import JsonOutput, json_option
from gradientflow.model import Call, Cluster, Costs, Link, computation_of, layers_of, predict
from gradientflow.model.cluster import TRANSPORTS, Transport
from gradientflow.model.fit import Measurement, Point, fit_link
from gradientflow.model.units import bits_per_second_of
from gradientflow.netlab import parse_delay
from gradientflow.policies import Stragglers
from gradientflow.strategies import as_strategy
from gradientflow.tables import print_table

from ..core.job_command import writable
from ..core.table import empty_table
from .hosts import Case, run_on_hosts
from .lossless import compare_lossless

_MODELS = {"perceptron": 0.1, "lstm": 0.06}  # seconds of a step
_STRATEGIES = (
    "dense",
    "csc(density=0.1)",
    "lags(ratio=100)",
    "hpsgd",
    "ssd_sgd(k=5, warmup=5)",
    "diloco(period=10)",
)


_CASES = (
    Case(4),
    Case(6),
    Case(8),
    Case(4, "200mbit"),
    Case(4, "10gbit"),
    Case(4, "1gbit", (1.0, 1.0, 1.0, 1.5)),
)


def _delays(context: click.Context, option: click.Parameter, delays: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse a delay that no link can have before anything is measured."""
    for delay in delays:
        parse_delay(delay)
    return delays


@click.command()
@click.option("--steps", default=10, type=click.IntRange(1), show_default=True, help="Timed steps of a block.")
@click.option("--blocks", default=5, type=click.IntRange(1), show_default=True, help="Blocks of each strategy.")
@click.option(
    "--transport", type=click.Choice(TRANSPORTS), default="tcp", show_default=True, help="Transport of messages."
)
@click.option(
    "--delay",
    "delays",
    multiple=True,
    metavar="TIME",
    callback=_delays,
    help="Delay of the links of 4 hosts, to predict and measure in place of the usual cases; may be repeated.",
)
@click.option(
    "--predictions",
    default="predictions.json",
    show_default=True,
    metavar="FILE",
    callback=writable,
    help="File for the predictions, written before measuring begins.",
)
@json_option
@click.option("--auto", is_flag=True, help="Compare auto with each of its candidates instead.")
def model(
    steps: int,
    blocks: int,
    transport: Transport,
    delays: tuple[str, ...],
    predictions: str,
    json_output: JsonOutput | None,
    auto: bool,
) -> int:
    """Fit the model on 2 and 3 emulated hosts at 1 Gbit/s, predict other hosts and rates, then measure those.

    Computation is a timed wait, because all hosts share the cores of this machine. Needs root, as netlab does.
    """
    console = Console(highlight=False)
    if auto:
        compare_lossless(_MODELS, transport, console)
        return 0
    measurements = [
        measurement_of(run_on_hosts(Case(hosts), transport, {"measure": "link"}, console)) for hosts in (2, 3)
    ]
    link = fit_link(measurements)
    console.print(f"fitted on 2 and 3 hosts at 1gbit: {link}\n", soft_wrap=True)
    rows: list[JsonObject] = []
    cases = [Case(4, delay=delay) for delay in delays] or _CASES
    if delays:
        _report_delays(cases, transport, console)
    for case in cases:
        costs = Costs(Cluster((1,) * case.hosts, transport), _of_case(link, case))
        stragglers = Stragglers(case.stragglers) if max(case.stragglers) > 1 else None
        for network, seconds in _MODELS.items():
            computation = computation_of(layers_of(network), seconds)
            for words in _STRATEGIES:
                found = predict(as_strategy(words), computation, costs, stragglers)
                rows.append({"case": case, "model": network, "strategy": words, "predicted": found.step.seconds})
    text = json.dumps({"link": asdict(link), "predictions": [_plain(row) for row in rows]}, indent=1)
    Path(predictions).write_text(text, encoding="utf-8")
    console.print(f"{len(rows)} predictions are in {predictions}; measuring begins {time.strftime('%H:%M:%S')}\n")
    for case in cases:
        mine = [row for row in rows if row["case"] is case]
        runs = [
            {
                "model": row["model"],
                "step": _MODELS[row["model"]],
                "strategy": row["strategy"],
                "steps": max(steps, as_strategy(row["strategy"]).profile().period),
            }
            for row in mine
        ]
        told = {"measure": "steps", "stragglers": case.stragglers, "runs": runs, "blocks": blocks}
        for row, found in zip(mine, run_on_hosts(case, transport, told, console), strict=True):
            row["measured"] = statistics.median(found)
            row["spread"] = (max(found) - min(found)) / statistics.median(found)
            row["error"] = row["predicted"] / row["measured"] - 1
    _print(console, rows)
    if json_output is not None:
        remarks = [each.remark for each in measurements]
        json_output.write({"link": asdict(link), "remarks": remarks, "rows": list(map(_plain, rows))})
    return 0


def measurement_of(plain: JsonObject) -> Measurement:
    """Return a measurement from the result of `asdict`, after a round trip through JSON."""

    def points(name: str) -> tuple[Point, ...]:
        return tuple(Point(Call(**call), seconds) for call, seconds in plain[name])

    whole = {"cluster": Cluster(**plain["cluster"]), "points": points("points"), "inside": points("inside")}
    return Measurement(**{**plain, **whole})


def _plain(row: dict[str, object]) -> dict[str, object]:
    return {**row, "case": str(row["case"])}


def _of_case(link: Link, case: Case) -> Link:
    """Return the fitted link with the rate and the delay of the case, and the same share of headers."""
    bits = bits_per_second_of(case.rate)
    assert bits
    return replace(link, per_byte=link.per_byte * 1e9 / bits, latency=link.latency + parse_delay(case.delay))


def _report_delays(cases: Sequence[Case], transport: Transport, console: Console) -> None:
    """Print how late messages are: the emulated links have an error, too."""
    for case in cases:
        found = measurement_of(run_on_hosts(replace(case, hosts=2), transport, {"measure": "link"}, console))
        least = min(point.seconds for point in found.points)
        told = parse_delay(case.delay)
        console.print(
            f"links of {case.delay}: the smallest call of 2 hosts takes {1e3 * least:.2f} ms, {least / told - 1:+.1%}"
        )


def _print(console: Console, rows: list[JsonObject]) -> None:
    table = empty_table(("hosts", "model", "strategy"), ("predicted ms", "measured", "spread", "error"))
    for row in rows:
        table.add_row(
            str(row["case"]),
            row["model"],
            row["strategy"],
            f"{row['predicted'] * 1e3:.1f}",
            f"{row['measured'] * 1e3:.1f}",
            f"{row['spread']:.0%}",
            f"{row['error']:+.1%}",
        )
    print_table(table, console)
    errors = np.abs([row["error"] for row in rows])
    worst, best = rows[int(np.argmax(errors))], rows[int(np.argmin(errors))]
    console.print(
        f"median error {np.median(errors):.1%}, 90th percentile {np.percentile(errors, 90):.1%}; best "
        f"{best['case']}, {best['model']}, {best['strategy']}: {best['error']:+.1%}; worst {worst['case']}, "
        f"{worst['model']}, {worst['strategy']}: {worst['error']:+.1%}",
        soft_wrap=True,
    )
    named = 0
    groups: dict[tuple[str, str], list[JsonObject]] = {}
    for row in rows:
        groups.setdefault((str(row["case"]), row["model"]), []).append(row)
    for group in groups.values():
        chosen = min(group, key=lambda row: row["predicted"])
        named += chosen["measured"] <= 1.05 * min(row["measured"] for row in group)
    console.print(f"the strategy that was predicted to be fastest is so, within 5 %, in {named} of {len(groups)} cases")


__all__ = ["measurement_of", "model"]
