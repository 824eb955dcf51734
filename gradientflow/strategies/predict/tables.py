"""Tables as text, for people."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO


def text_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table: the first column aligned left, all others right. A heading may have two lines."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(file=StringIO(), width=500, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


__all__ = ["text_table"]
