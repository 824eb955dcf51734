"""Tables of predicted steps, in groups by the strategies' effect on the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from gradientflow.model.prediction import Prediction
from gradientflow.strategies.predict.ranking import grouped
from gradientflow.tables import FittedTable, plain_table


def step_table(
    predictions: Sequence[Prediction], strategies: Sequence[object], measured: Mapping[str, float] | None = None
) -> FittedTable:
    """Return the table of predictions in groups by their effect on the result, with measured steps if there are any."""
    headings = ["step ms", *(["measured"] if measured else []), "waits ms", "own ms", "speed", "sent MB", "extra MB"]

    def cells(each: Prediction) -> list[str]:
        found = (measured or {}).get(each.strategy)
        return [
            milliseconds(each),
            *([] if not measured else ["" if found is None else f"{found * 1e3:,.1f}"]),
            f"{each.step.exposed_seconds * 1e3:,.1f}",
            f"{each.step.own_seconds * 1e3:,.1f}",
            f"{each.efficiency:.0%}",
            f"{each.step.bytes_sent / 1e6:,.2f}",
            f"{each.memory / 1e6:,.0f}",
        ]

    return grouped_table(
        "strategy",
        headings,
        [(strategy, each, cells(each)) for strategy, each in zip(strategies, predictions, strict=True)],
    )


def grouped_table(
    name: str, headings: Sequence[str], rows: Sequence[tuple[object, Prediction, Sequence[str]]]
) -> FittedTable:
    """Return a table of strategies in groups by their effect on the result, the shortest step of a group first."""
    table = plain_table([name], headings)
    for effect, found in grouped((strategy, each.step.seconds, (each, cells)) for strategy, each, cells in rows):
        table.add_row(Text(effect, style="bold"))
        for each, cells in found:
            table.add_row(Text(f"  {each.strategy}"), *cells)
    return table


def milliseconds(prediction: Prediction) -> str:
    """Return the predicted step in milliseconds."""
    return f"{prediction.step.seconds * 1e3:,.1f}"


__all__ = ["grouped_table", "milliseconds", "step_table"]
