"""The table of ``gradientflow bench train``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from operator import attrgetter

import numpy as np

from ..core.table import Column, Layout, name
from .entry import BASELINE, NONE, Entry
from .results import Figures, Run, TrainResult, milliseconds

_LEAST = "least is the time that the links need for the gradients less the backward pass of none."
_AS_ACCURATE = (
    "as accurate is the time of training until a contestant is as accurate as the least accurate one from the same "
    "seed ends."
)
_DISTANCE = (
    "distance is how far the parameters ended from those of single, over how far those have moved; that of "
    "single-accumulated is what rounding makes of it."
)
_AT_RANKS = (
    "at 2 ranks, and so on, is the scale efficiency: the samples per second of so many ranks by themselves, over so "
    "many times those of one rank that trains alone, without communication."
)

Text = Callable[[TrainResult], str]  # empty text if the value is unknown


def _figure(value: Callable[[Figures], float | None], show: Callable[[float], str]) -> Text:
    def text(result: TrainResult) -> str:
        found = None if result.figures is None else value(result.figures)
        return "" if found is None else show(found)

    return text


def _final(value: Callable[[Run], float | None], show: Callable[[float], str]) -> Text:
    def text(result: TrainResult) -> str:
        values = [found for run in result.runs if (found := value(run)) is not None]
        if not values:
            return ""
        mean = show(float(np.mean(values)))
        return mean if len(values) == 1 else f"{mean} ({show(min(values))}..{show(max(values))})"

    return text


def _least_exposed(results: Sequence[TrainResult]) -> Text:
    """Give the time that the links need beyond the backward pass of `none`."""
    alone = {result.model: result.figures for result in results if result.entry == Entry(NONE)}

    def text(result: TrainResult) -> str:
        none = alone.get(result.model)
        if result.link_ms is None or none is None:
            return ""
        return milliseconds(max(0.0, result.link_ms - none.backward_median_ms))

    return text


def _over_baseline(results: Sequence[TrainResult]) -> Text:
    baselines = {result.model: result.figures for result in results if result.entry == BASELINE}

    def text(result: TrainResult) -> str:
        baseline = baselines.get(result.model)
        if baseline is None or result.figures is None or result.entry.is_reference:
            return ""
        return f"{baseline.step_median_ms / result.figures.step_median_ms:.2f}x"

    return text


def _seconds_to_accuracy(results: Sequence[TrainResult]) -> Text:
    """Give the training time until a contestant reaches the lowest final accuracy of its seed."""
    delayed = [result for result in results if result.figures and result.figures.waiting_percent is not None]
    levels: dict[tuple[str, int], float] = {}
    for result in delayed:
        for run in result.runs:
            key = result.model, run.seed
            if not result.entry.is_reference and run.curve:
                levels[key] = min(levels.get(key, 1.0), run.curve[-1].accuracy)

    def text(result: TrainResult) -> str:
        if result not in delayed or result.entry.is_reference:
            return ""
        times = [
            next(point.seconds for point in run.curve if point.accuracy >= levels[result.model, run.seed])
            for run in result.runs
            if run.curve
        ]
        return f"{np.mean(times):.2f}" if times else ""

    return text


def _learning_rate(results: Sequence[TrainResult]) -> Text:
    """Give the learning rate, if rates differ or some are not tuned."""
    models: dict[str, set[float]] = {}
    for result in results:
        models.setdefault(result.model, set()).add(result.optimizer.learning_rate)
    is_shown = any(len(rates) > 1 for rates in models.values()) or not all(result.is_tuned for result in results)

    def text(result: TrainResult) -> str:
        if not is_shown:
            return ""
        return f"{result.optimizer.learning_rate:g}{'' if result.is_tuned else ', not tuned'}"

    return text


def _mean_staleness(run: Run) -> float | None:
    times = sum(run.staleness or ())
    return sum(ahead * count for ahead, count in enumerate(run.staleness or ())) / times if times else None


def _most_staleness(run: Run) -> float | None:
    return len(run.staleness) - 1.0 if run.staleness else None


def _bookkeeping_percent(figures: Figures) -> float | None:
    return None if figures.bookkeeping_ms is None else 100 * figures.bookkeeping_ms / figures.step_median_ms


def _efficiency(ranks: int) -> Text:
    return lambda result: next((f"{100 * each.efficiency:.0f}" for each in result.scale if each.ranks == ranks), "")


def _columns(results: Sequence[TrainResult], with_cpu: bool) -> list[Column]:
    declared = {item.name: item.metadata.values() for item in fields(Figures)}

    def figures(*names: str) -> Iterator[Column]:
        for value in names:
            heading, unit, show, note = declared[value]
            yield _known(f"{heading}\n{unit}", _figure(attrgetter(value), show), results, note)

    def final(heading: str, value: Callable[[Run], float | None], show: str, note: str = "") -> Column:
        return _known(heading, _final(value, show.format), results, note)

    models = len({result.model for result in results})
    scaled = sorted({each.ranks for result in results for each in result.scale if each.ranks > 1})
    return [
        name("model", "model", repeats=False),
        name("contestant", lambda result: result.entry.contestant),
        name("setting", lambda result: result.entry.setting),
        name("optimizer", "optimizer", shown=len({(result.model, result.optimizer) for result in results}) > models),
        *figures("step_median_ms", "step_p95_ms", "backward_median_ms", "exposed_ms"),
        _known("least\nms", _least_exposed(results), results, _LEAST),
        *figures("bookkeeping_ms"),
        _known("selection\n%", _figure(_bookkeeping_percent, "{:.1f}".format), results),
        *figures("samples_per_second", "waiting_percent", "iterations_per_second", "speedup"),
        _known("over\nddp-gloo", _over_baseline(results), results),
        *figures("bytes_sent", "bytes_reported"),
        _known("learning\nrate", _learning_rate(results), results),
        final("loss\n", lambda run: run.curve[-1].loss if run.curve else None, "{:.4f}"),
        final("accuracy\n%", lambda run: 100 * run.curve[-1].accuracy if run.curve else None, "{:.2f}"),
        final("staleness\nmean", _mean_staleness, "{:.2f}"),
        final("staleness\nmost", _most_staleness, "{:.0f}"),
        _known("as accurate\nafter s", _seconds_to_accuracy(results), results, _AS_ACCURATE),
        final("distance\n", lambda run: run.distance, "{:.1e}", _DISTANCE),
        *(_known(f"at {ranks} ranks\n%", _efficiency(ranks), results, _AT_RANKS) for ranks in scaled),
    ]


def _known(heading: str, text: Text, results: Sequence[TrainResult], note: str = "") -> Column:
    """Make a column, shown if any of its values is known."""
    known = any(text(result) for result in results)
    return Column(heading, lambda result: text(result) or "-", shown=known, note=note)


def _legend(results: Sequence[TrainResult], with_cpu: bool) -> str:
    text = "Times are those of the slowest rank; step is the median."
    if any(result.entry.profile.period > 1 for result in results):
        text += " For a strategy with a period it is that of means over a period."
    text += " loss and accuracy are of held-out samples, after the last step"
    text += ": the mean over the seeds, and the range." if any(len(result.runs) > 1 for result in results) else "."
    reported = [result.figures.bytes_reported for result in results if result.figures is not None]
    if 0 in reported and not any(reported):
        text += (
            " reported is 0 because ranks of one node share memory; with GRADIENTFLOW_NODE_SIZE=1 it is what would "
            "travel between as many hosts."
        )
    if not all(result.is_tuned for result in results):
        text += (
            " A learning rate is not tuned where it suits plain SGD, a step does something else, and --lr does not "
            "name the contestant."
        )
    return text


LAYOUT = Layout(_columns, lambda result: result.model, _legend)
