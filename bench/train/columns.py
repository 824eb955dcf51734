"""The table of ``gradientflow bench train``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..core.table import Column, Layout, megabytes, name
from .plan import NONE, Entry
from .results import Figures, Run, TrainResult

_BASELINE = Entry("ddp-gloo")

Text = Callable[[TrainResult], str]  # empty where the value is unknown


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
    baselines = {result.model: result.figures for result in results if result.entry == _BASELINE}

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


def _bookkeeping_share(figures: Figures) -> float | None:
    return None if figures.bookkeeping_ms is None else 100 * figures.bookkeeping_ms / figures.step_median_ms


def _efficiency(ranks: int) -> Text:
    return lambda result: next((f"{100 * each.efficiency:.0f}" for each in result.scale if each.ranks == ranks), "")


def milliseconds(value: float) -> str:
    """Write a time with three significant digits or so."""
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def _columns(results: Sequence[TrainResult], with_cpu: bool) -> list[Column]:
    texts: list[tuple[str, Text]] = [
        ("step\nms", _figure(lambda figures: figures.step_median_ms, milliseconds)),
        ("p95\nms", _figure(lambda figures: figures.step_p95_ms, milliseconds)),
        ("backward\nms", _figure(lambda figures: figures.backward_median_ms, milliseconds)),
        ("exposed\nms", _figure(lambda figures: figures.exposed_ms, milliseconds)),
        ("least\nms", _least_exposed(results)),
        ("selection\nms", _figure(lambda figures: figures.bookkeeping_ms, milliseconds)),
        ("selection\n%", _figure(_bookkeeping_share, "{:.1f}".format)),
        ("samples\n/s", _figure(lambda figures: figures.samples_per_second, "{:.0f}".format)),
        ("waiting\n%", _figure(lambda figures: figures.waiting_percent, "{:.1f}".format)),
        ("iterations\n/s", _figure(lambda figures: figures.iterations_per_second, "{:.1f}".format)),
        ("speed-up\n", _figure(lambda figures: figures.speedup, "{:.2f}x".format)),
        ("over\nddp-gloo", _over_baseline(results)),
        ("sent\nMB", _figure(lambda figures: figures.bytes_sent, megabytes)),
        ("reported\nMB", _figure(lambda figures: figures.bytes_reported, megabytes)),
        ("learning\nrate", _learning_rate(results)),
        ("loss\n", _final(lambda run: run.curve[-1].loss if run.curve else None, "{:.4f}".format)),
        ("accuracy\n%", _final(lambda run: 100 * run.curve[-1].accuracy if run.curve else None, "{:.2f}".format)),
        ("staleness\nmean", _final(_mean_staleness, "{:.2f}".format)),
        ("staleness\nmost", _final(_most_staleness, "{:.0f}".format)),
        ("as accurate\nafter s", _seconds_to_accuracy(results)),
        ("distance\n", _final(lambda run: run.distance, "{:.1e}".format)),
    ]
    models = len({result.model for result in results})
    scaled = sorted({each.ranks for result in results for each in result.scale if each.ranks > 1})
    texts += [(f"at {ranks} ranks\n%", _efficiency(ranks)) for ranks in scaled]
    return [
        name("model", "model", repeats=False),
        name("contestant", lambda result: result.entry.contestant),
        name("setting", lambda result: result.entry.setting),
        name("optimizer", "optimizer", shown=len({(result.model, result.optimizer) for result in results}) > models),
        *(_known(heading, text, results) for heading, text in texts),
    ]


def _known(heading: str, text: Text, results: Sequence[TrainResult]) -> Column:
    """Make a column that is shown if any of its values is known."""
    return Column(heading, lambda result: text(result) or "-", shown=any(text(result) for result in results))


def _legend(results: Sequence[TrainResult], with_cpu: bool) -> str:
    text = "Times are those of the slowest rank; step is the median."
    if any(result.entry.period > 1 for result in results):
        text += " For a strategy with a period it is that of means over a period."
    if any(result.entry == Entry(NONE) for result in results):
        text += (
            " exposed is the step less that of none in the same turns; below 0 it is within the noise. speed-up is "
            "over the samples per second of one rank of none."
        )
    if any(_least_exposed(results)(result) for result in results):
        text += " least is the time that the links need for the gradients less the backward pass of none."
    if any(result.figures is not None and result.figures.bookkeeping_ms is not None for result in results):
        text += " selection is what the slowest rank spends on choosing and collecting what is sent, beside all else."
    reported = [result.figures.bytes_reported for result in results if result.figures is not None]
    if 0 in reported and not any(reported):
        text += (
            " reported is 0 because ranks of one node share memory; with GRADIENTFLOW_NODE_SIZE=1 it is what would "
            "travel between as many hosts."
        )
    if any(result.figures is not None and result.figures.waiting_percent is not None for result in results):
        text += (
            " Ranks sleep until a step has computed as long as was drawn: waiting is the share of all the rest in "
            "their time, iterations are those of all ranks. as accurate is the time of training until a contestant is "
            "as accurate as the least accurate one from the same seed ends."
        )
    if any(run.distance is not None for result in results for run in result.runs):
        text += (
            " distance is how far the parameters ended from those of single, over how far those have moved; that of "
            "single-accumulated is what rounding makes of it."
        )
    if any(result.scale for result in results):
        text += (
            " at 2 ranks, and so on, is the scale efficiency: the samples per second of so many ranks by themselves, "
            "over so many times those of one rank that trains alone, without communication."
        )
    if not all(result.is_tuned for result in results):
        text += (
            " A learning rate is not tuned where it suits plain SGD, a step does something else, and --lr does not "
            "name the contestant."
        )
    text += " loss and accuracy are of held-out samples, after the last step"
    several = any(len(result.runs) > 1 for result in results)
    return text + (": the mean over the seeds, and the range." if several else ".")


LAYOUT = Layout(
    _columns,
    lambda result: result.model,
    _legend,
    ("optimizer", "backward", "reported", "p95", "least", "accuracy", "speed-up", "learning"),
)
