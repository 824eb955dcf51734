"""Options and the table of predictions that ``simulate`` and ``tune`` share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import click

from gradientflow.cli.table import plain_table
from gradientflow.errors import ArgumentError
from gradientflow.model import NETWORKS, Computation, Prediction, computation_of, layers_of
from gradientflow.model.units import seconds_of
from gradientflow.strategies import Strategy

if TYPE_CHECKING:
    from rich.table import Table

Result = TypeVar("Result")


def model_options(command: Callable[..., Result]) -> Callable[..., Result]:
    """Add the options of a model and its step."""
    for option in (
        click.option("--backward", metavar="TIME", help="The part of backpropagation (default: two thirds of it)."),
        click.option(
            "--step", default="300ms", show_default=True, metavar="TIME", help="Of one rank, without communication."
        ),
        click.option(
            "--model", type=click.Choice([*NETWORKS]), default="resnet50", show_default=True, help="What is trained."
        ),
    ):
        command = option(command)
    return command


def computation_from(model: str, step: str, backward: str | None) -> Computation:
    """Return the computation that the options describe."""
    seconds = _time("--step", step)
    part = None if backward is None else _time("--backward", backward)
    if part is not None and part > seconds:
        raise ArgumentError(f"--backward {backward} is a part of --step {step}, and longer")
    return computation_of(layers_of(model), seconds, part)


def _time(option: str, text: str) -> float:
    seconds = seconds_of(text)
    if seconds is None:
        raise ArgumentError(f"{option} is a time such as 300ms, not {text!r}")
    return seconds


def effect_of(strategy: Strategy) -> str:
    """Return words for a strategy's effect on the result of a step."""
    words = {
        "exact": "exact",
        "delays": "a part comes later",
        "approximates": "approximate",
        "stale": "of older weights",
        "local": "weights of its own",
    }.get(strategy.effect, "")
    wire = getattr(strategy, "wire", None)
    if wire in (None, "float32"):
        return words
    return f"rounded to {wire}" if words == "exact" else f"{words}, in {wire}"


def table_of(
    predictions: Sequence[Prediction], strategies: Sequence[Strategy], measured: dict[str, float] | None = None
) -> Table:
    """Return the table of predictions, the shortest step first, with measured steps if there are any."""
    headings = ["step ms", *(["measured"] if measured else []), "waits ms", "own ms", "speed", "sent MB", "extra MB"]
    table = plain_table(["strategy"], headings)
    table.add_column("result", no_wrap=True)
    rows = sorted(zip(predictions, strategies, strict=True), key=lambda row: row[0].step.seconds)
    for each, strategy in rows:
        found = (measured or {}).get(each.strategy)
        table.add_row(
            each.strategy,
            f"{each.step.seconds * 1e3:,.1f}",
            *([] if not measured else ["" if found is None else f"{found * 1e3:,.1f}"]),
            f"{each.step.exposed_seconds * 1e3:,.1f}",
            f"{each.step.own_seconds * 1e3:,.1f}",
            f"{each.efficiency:.0%}",
            f"{each.step.bytes_sent / 1e6:,.2f}",
            f"{each.memory / 1e6:,.0f}",
            effect_of(strategy),
        )
    return table


__all__ = ["computation_from", "effect_of", "model_options", "table_of"]
