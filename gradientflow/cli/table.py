"""Tables on standard output."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table


def plain_table() -> Table:
    """Return an empty table without lines."""
    return Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")


def print_table(table: Table) -> None:
    """Print a table; without a terminal each row is one line, however long."""
    console = Console()
    if not console.is_terminal:
        console.width = console.measure(table, options=console.options.update(width=1000)).maximum
    console.print(table)
