"""Tables for people, as wide as the terminal: names shrink, then columns move to a table below. No figure is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from io import StringIO

from rich.box import Box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table

_LEAST_NAME = 10  # characters
_LEAST_TEXT = 24  # characters of a column whose cells wrap
_UNLIMITED = 10_000


class FittedTable(Table):
    """A table whose first columns name the rows.

    Attributes
    ----------
    names : int
        The number of columns of names. They may be shortened, and are repeated if columns move to a table below.
    """

    names = 1


def plain_table(names: Sequence[str], figures: Sequence[str] = (), box: Box | None = None) -> FittedTable:
    """Return an empty table, by default without lines: columns of names to the left, of figures to the right."""
    table = FittedTable(box=box, show_edge=False, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for heading in names:
        table.add_column(heading, no_wrap=True)
    for heading in figures:
        table.add_column(heading, justify="right", no_wrap=True)
    table.names = max(1, len(names))
    return table


def fitted_tables(table: FittedTable, console: Console) -> Iterator[FittedTable]:
    """Yield tables as wide as the terminal at most, with all columns of a table among them."""
    return _parts(table, console, console.width)


def print_table(table: FittedTable, console: Console | None = None) -> None:
    """Print a table as wide as the terminal; without a terminal each row is one line, however long."""
    console = console or Console()
    before = console.width
    width = before if console.is_terminal else _UNLIMITED
    for number, part in enumerate(_parts(table, console, width)):
        if number:
            console.print()
        console.width = min(width, _width(part, console)) if console.is_terminal else _width(part, console)
        console.width = max(console.width, _least_width(part, console))  # wraps in a terminal that is narrower still
        console.print(part)
    console.width = before


def text_of(table: FittedTable) -> str:
    """Return a table as text, each row in one line."""
    file = StringIO()
    print_table(table, Console(file=file, force_terminal=False, color_system=None))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def _parts(table: FittedTable, console: Console, width: int) -> Iterator[FittedTable]:
    """Yield tables that fit, with all columns of a table among them."""
    names = list(table.columns[: table.names])
    least = [_shortened(name, _distinct_width(name)) for name in names]
    rest = list(table.columns[table.names :])
    while True:
        fitting = len(rest)
        while fitting > 1 and _least_width(_part(table, [*least, *rest[:fitting]]), console) > width:
            fitting -= 1
        yield _with_short_names(table, names, rest[:fitting], console, width)
        rest = rest[fitting:]
        if not rest:
            return
        table = copy(table)
        table.title = None


def _with_short_names(
    table: FittedTable, names: list[Column], columns: list[Column], console: Console, width: int
) -> FittedTable:
    """Return a table of these columns, with names no shorter than they need to be."""
    shown = list(names)
    excess = _least_width(_part(table, [*names, *columns]), console) - width
    slack = {place: _natural_width(name) - _distinct_width(name) for place, name in enumerate(names)}
    for place in sorted(slack, key=lambda each: -slack[each]):
        cut = min(excess, slack[place])
        if cut > 0:
            shown[place] = _shortened(names[place], _natural_width(names[place]) - cut)
            excess -= cut
    return _part(table, [*shown, *columns])


def _part(table: FittedTable, columns: Sequence[Column]) -> FittedTable:
    part = copy(table)
    part.columns = [replace(column, _index=index) for index, column in enumerate(columns)]
    return part


def _shortened(column: Column, width: int) -> Column:
    return replace(column, max_width=width, overflow="ellipsis")


def _texts(column: Column) -> list[str]:
    return [line for cell in column._cells for line in str(cell).splitlines()]


def _natural_width(column: Column) -> int:
    return max(map(cell_len, [*_texts(column), *str(column.header).splitlines()]), default=0)


def _distinct_width(column: Column) -> int:
    """Return the least width at which different names still differ; figures keep theirs."""
    texts, natural = set(_texts(column)), _natural_width(column)
    if column.justify != "left":
        return natural
    least = max([_LEAST_NAME, *map(cell_len, str(column.header).splitlines())])
    widths = (width for width in range(least, natural) if len({_cut(text, width) for text in texts}) == len(texts))
    return next(widths, natural)


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else f"{text[: width - 1]}\N{HORIZONTAL ELLIPSIS}"


def _width(table: Table, console: Console) -> int:
    return console.measure(table, options=console.options.update(width=_UNLIMITED)).maximum


def _least_width(table: FittedTable, console: Console) -> int:
    """Return the width of a table in which every column of text wraps."""
    columns = [each if each.no_wrap else replace(each, max_width=_LEAST_TEXT) for each in table.columns]
    return _width(_part(table, columns), console)


__all__ = ["FittedTable", "fitted_tables", "plain_table", "print_table", "text_of"]
