"""Tables on standard output."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table


def plain_table(names: Sequence[str], figures: Sequence[str] = ()) -> Table:
    """Return an empty table without lines: columns of names to the left, of figures to the right."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for heading in names:
        table.add_column(heading, no_wrap=True)
    for heading in figures:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def print_table(table: Table) -> None:
    """Print a table; without a terminal each row is one line, however long."""
    console = Console()
    if not console.is_terminal:
        console.width = console.measure(table, options=console.options.update(width=1000)).maximum
    console.print(table)
