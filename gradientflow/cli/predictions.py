"""Options and figures that ``simulate`` and ``tune`` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from gradientflow.annotations import JsonObject
from gradientflow.cli.timeline_file import read_events
from gradientflow.errors import ArgumentError
from gradientflow.model import NETWORKS, Computation, Prediction, computation_of, computation_of_events, layers_of
from gradientflow.model.units import seconds_of
from gradientflow.strategies import Strategy, parse_strategies
from gradientflow.strategies.predict.ranking import is_lossless

Result = TypeVar("Result")

_MODEL, _STEP = "resnet50", "300ms"


def input_options(strategies: str) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Return a decorator that adds the options of a model, its step, and the strategies with this default."""
    options = (
        click.option(
            "--model", type=click.Choice([*NETWORKS]), show_default=_MODEL, help="Model whose gradients are sent."
        ),
        click.option(
            "--step",
            metavar="TIME",
            show_default=_STEP,
            help="Time of a step of one rank without communication. With --trace the recorded step is scaled to it.",
        ),
        click.option(
            "--backward",
            metavar="TIME",
            show_default="two thirds of --step",
            help="Time of backpropagation, a part of --step.",
        ),
        click.option(
            "--trace",
            metavar="FILE",
            help="Recorded step, in place of --model and --backward: a timeline, or a trace of PyTorch's profiler.",
        ),
        click.option(
            "--strategy",
            "strategies",
            default=strategies,
            show_default=True,
            metavar="WORDS",
            help="Strategies to compare, separated by semicolons.",
        ),
        click.option("--lossless", is_flag=True, help="Compare only strategies whose steps have the result of dense."),
    )

    def decorated(command: Callable[..., Result]) -> Callable[..., Result]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


def computation_from(
    model: str | None, step: str | None, backward: str | None, trace: str | None
) -> tuple[Computation, str]:
    """Return the step that the options describe, and words for it."""
    if trace is not None:
        for option, text in (("--model", model), ("--backward", backward)):
            if text is not None:
                raise ArgumentError(f"{option} {text} and --trace {trace} exclude each other: leave one of them out")
        recorded = computation_of_events(read_events(trace))
        if step is None:
            return recorded, f"{trace}, {recorded.seconds * 1e3:.1f} ms a step"
        return recorded.scaled(_time("--step", step) / recorded.seconds), f"{trace}, scaled to {step} a step"
    model, step = model or _MODEL, step or _STEP
    seconds = _time("--step", step)
    part = None if backward is None else _time("--backward", backward)
    if part is not None and part > seconds:
        raise ArgumentError(f"--backward {backward} is a part of --step {step}, and longer")
    return computation_of(layers_of(model), seconds, part), f"{model}, {step} a step"


def _time(option: str, text: str) -> float:
    seconds = seconds_of(text)
    if seconds is None:
        raise ArgumentError(f"{option} is a time such as 300ms, not {text!r}")
    return seconds


def strategies_from(words: str, steps: int, lossless: bool) -> list[Strategy]:
    """Return the strategies to compare, with typical arguments for so many steps."""
    found = parse_strategies(words, steps)
    kept = [each for each in found if is_lossless(each) or not lossless]
    if not kept:
        raise ArgumentError(f"none of the strategies {words} is lossless: leave --lossless out, or add dense")
    return kept


def figures_of(prediction: Prediction) -> dict[str, Any]:
    """Return the figures of a prediction for JSON."""
    found: JsonObject = {
        "ranks": prediction.ranks,
        "strategy": prediction.strategy,
        **prediction.step._asdict(),
        "alone_seconds": prediction.alone_seconds,
        "memory": prediction.memory,
    }
    return found


__all__ = [
    "computation_from",
    "figures_of",
    "input_options",
    "strategies_from",
]
