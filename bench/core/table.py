"""Tables of results: columns as data, blocks of results measured together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias, TypeVar

from rich.box import Box
from rich.console import Console, JustifyMethod
from rich.text import Text

from gradientflow.tables import FittedTable, plain_table, print_table

_PLAIN_WIDTH = 100  # width of sentences without a terminal

# A rule below the headings and an empty line between blocks, in characters that every terminal and file can show.
_RULE = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)

Cell = Text | str

AnyResult: TypeAlias = Any  # a result of any bench

R = TypeVar("R")
K = TypeVar("K")


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes
    ----------
    heading : str
        The heading; a second line is the unit.
    text : callable
        Takes a result; gives the text of its cell.
    kind : str
        "name": identifies the contestant, before the figures; "figure": empty for wrong results; "ratio": after the
        figures.
    shown : bool
        True if the table has this column.
    justify : str
        "left" or "right".
    repeats : bool
        True if a cell repeats the equal text above it in the same block.
    note : str
        A sentence for the legend, if the column is shown.
    """

    heading: str
    text: Callable[[AnyResult], Cell]
    kind: str = "figure"
    shown: bool = True
    justify: JustifyMethod = "right"
    repeats: bool = True
    note: str = ""


def name(
    heading: str,
    text: str | Callable[[AnyResult], str],
    *,
    shown: bool = True,
    justify: JustifyMethod = "left",
    repeats: bool = True,
) -> Column:
    """Make a column that identifies contestants: an attribute, or the result of a callable."""
    show = text if callable(text) else lambda result: str(getattr(result, text))
    return Column(heading, show, "name", shown, justify, repeats)


def figure(
    heading: str,
    unit: str,
    value: str | Callable[[AnyResult], float | None],
    show: Callable[[float | None], str],
    *,
    shown: bool = True,
    note: str = "",
) -> Column:
    """Make a column of a figure: an attribute, or the result of a callable, and its format."""
    find = value if callable(value) else lambda result: getattr(result, value)
    return Column(f"{heading}\n{unit}", lambda result: show(find(result)), shown=shown, note=note)


def shown(
    heading: str, unit: str = "", show: Callable[[float | None], str] | None = None, note: str = ""
) -> dict[str, object]:
    """Give the metadata of a dataclass's figure: its column; without `show` it is a time, in the table's unit."""
    return {"heading": heading, "unit": unit, "show": show, "note": note}


def columns_of(
    kind: type, results: Sequence[AnyResult], *names: str, time: str = "us", when: bool = True
) -> list[Column]:
    """Make the columns of fields declared with `shown` that any result has; all columns if all results are wrong."""
    declared = {item.name: item.metadata for item in fields(kind)}

    def column(name: str) -> Column:
        heading, unit, show, note = declared[name].values()
        known = any(getattr(result, name) for result in results) or all(result.wrong for result in results)
        unit, show = (unit, show) if show is not None else (time, _TIMES[time])
        return figure(heading, unit, name, show, shown=when and known, note=note)

    return [column(name) for name in names]


def ratios(heading: str, beside: Callable[[AnyResult], AnyResult], *, filled: bool = True, note: str = "") -> Column:
    """Make a column of speedups of results over their counterparts, if they have any."""

    def text(result: AnyResult) -> Cell:
        other = beside(result)
        if other is None:
            return ""
        pairs = [(result.median_us, other.median_us), (result.refill_median_us, other.refill_median_us)]
        return ratios_text(*pairs[: 1 + filled])

    return Column(f"{heading}\n{'call  filled' if filled else 'call'}", text, "ratio", note=note)


@dataclass(frozen=True)
class Layout:
    """The table of a bench.

    Attributes
    ----------
    columns : callable
        Takes all results, and a flag to show processor times; gives the columns.
    block : callable
        Takes a result; gives a value that is equal for results of the same block.
    legend : callable
        Takes the same arguments as `columns`; explains the columns, before the notes of the shown ones.
    """

    columns: Callable[[Sequence[AnyResult], bool], Sequence[Column]]
    block: Callable[[AnyResult], object]
    legend: Callable[[Sequence[AnyResult], bool], str]

    def print(self, results: Sequence[object], console: Console, *, with_cpu: bool = False) -> None:
        """Print all results in order, blocks together."""
        print_table(self.table(results, with_cpu=with_cpu), console)
        if not console.is_terminal:
            console.width = _PLAIN_WIDTH

    def explain(self, results: Sequence[object], *, with_cpu: bool = False) -> str:
        """Explain the columns of the table of these results."""
        notes = (column.note for column in self.columns(results, with_cpu) if column.shown)
        return " ".join(filter(None, dict.fromkeys([self.legend(results, with_cpu), *notes])))

    def table(self, results: Sequence[AnyResult], *, with_cpu: bool = False) -> FittedTable:
        """Lay out the results."""
        columns = [column for column in self.columns(results, with_cpu) if column.shown]
        table = empty_table()
        table.names = sum(column.kind == "name" for column in columns)
        for column in columns:
            table.add_column(column.heading, justify=column.justify, no_wrap=True)
        for block in grouped(results, self.block).values():
            above: list[Cell] = [""] * len(columns)
            for result in block:
                cells = cells_of(result, columns)
                pairs = zip(columns, cells, above, strict=True)
                table.add_row(*("" if not column.repeats and cell == over else cell for column, cell, over in pairs))
                above = cells
            table.add_section()
        return table


def grouped(results: Sequence[R], key: Callable[[R], K]) -> dict[K, list[R]]:
    """Group the results by a key, in their order."""
    found: dict[K, list[R]] = {}
    for result in results:
        found.setdefault(key(result), []).append(result)
    return found


def cells_of(result: AnyResult, columns: Sequence[Column]) -> list[Cell]:
    """Give the cells of a result; a wrong result has no figures."""
    if not result.wrong:
        return [column.text(result) for column in columns]
    instead = iter([Text("WRONG", style="bold red")])
    return [next(instead, "") if column.kind == "figure" else column.text(result) for column in columns]


def empty_table(names: Sequence[str] = (), figures: Sequence[str] = ()) -> FittedTable:
    """Make a table without rows, in the common style: columns of names to the left, of figures to the right."""
    return plain_table(names, figures, _RULE)


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """Give our speedup; None if either was not measured."""
    return theirs / ours if ours and theirs else None


def ratios_text(*pairs: tuple[float | None, float | None]) -> Text:
    """Write our speedup for each pair of our time and theirs."""
    parts: list[tuple[str, str] | str] = []
    for ours, theirs in pairs:
        times = ratio(ours, theirs)
        shown = "-" if times is None else f"{times:.{2 if times < 9.95 else 1 if times < 99.5 else 0}f}x"
        parts += [" ", (f"{shown:>6}", "" if times is None else "green" if times >= 1 else "red")]
    return Text.assemble(*parts[1:])


def microseconds(value: float | None) -> str:
    """Write a time with three or four significant digits and no exponent."""
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def milliseconds(microseconds: float | None) -> str:
    """Write microseconds as milliseconds with four significant digits."""
    return "-" if microseconds is None else f"{microseconds / 1e3:#.4g}".rstrip(".")


def megabytes(count: float | None) -> str:
    """Write bytes as 10^6 bytes."""
    return "-" if count is None else f"{count / 1e6:.3f}"


def bandwidth(value: float | None) -> str:
    """Write a bandwidth with three significant digits and no exponent."""
    if not value:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}" if value >= 1e-3 else f"{value:.6f}"


def percentage(value: float | None) -> str:
    """Write a share in percent."""
    return "-" if value is None else f"{100 * value:.0f}"


_TIMES = {"us": microseconds, "ms": milliseconds}
