"""The ladder: throughput as the parts of GradientFlow are added one by one, as in the paper's Tables 1 and 2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradientflow.tables import FittedTable

from ..core.table import Layout, empty_table
from .entry import NONE, Entry
from .plan import TrainPlan
from .results import TrainResult

_IDEAL = "no communication"


@dataclass(frozen=True)
class RungResult:
    """A cell of the table.

    Attributes
    ----------
    model : str
        The name of the model.
    column : str
        The parts added so far.
    samples_per_second : float or None
        Samples per second of all ranks together; None if the result was wrong.
    speedup_over_first : float or None
        The throughput over the throughput of the first column.
    """

    model: str
    column: str
    samples_per_second: float | None
    speedup_over_first: float | None


def ladder_results(plan: TrainPlan, results: Sequence[TrainResult]) -> list[RungResult]:
    """Arrange a ladder's results by model and column; the last result of a model is training without communication."""
    columns = [*((rung.title, rung.entry) for rung in plan.rungs), (_IDEAL, Entry(NONE))]
    found = []
    for model in plan.models:
        figures = {result.entry: result.figures for result in results if result.model == model}
        rates = [None if (of := figures[entry]) is None else of.samples_per_second for _, entry in columns]
        first = rates[0]
        for (title, _), rate in zip(columns, rates, strict=True):
            found.append(RungResult(model, title, rate, None if not first or not rate else round(rate / first, 3)))
    return found


class _LadderLayout(Layout):
    def table(self, results: Sequence[RungResult], *, with_cpu: bool = False) -> FittedTable:
        """Give samples per second of all ranks, with the speedup over the first column in brackets; a row per model."""
        columns = dict.fromkeys(rung.column for rung in results)
        table = empty_table(("samples/s",), [column.replace(" +", "\n+") for column in columns])
        for model in dict.fromkeys(rung.model for rung in results):
            table.add_row(model, *(_cell(rung) for rung in results if rung.model == model))
        return table


def _cell(rung: RungResult) -> str:
    if rung.samples_per_second is None:
        return "WRONG"
    speedup = "" if rung.speedup_over_first is None else f" ({rung.speedup_over_first:.1f}x)"
    return f"{rung.samples_per_second:,.0f}{speedup}"


LADDER = _LadderLayout(lambda results, with_cpu: (), str, lambda results, with_cpu: "")
