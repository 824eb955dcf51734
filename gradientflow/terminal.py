"""The terminal of a command, also of a command that runs as a job: its ranks may have only the launcher's terminal."""

from __future__ import annotations

import os

from rich.console import Console

_VARIABLE = "GRADIENTFLOW_TERMINAL"  # for ranks: the width of the terminal in which the command was started, or 0


def open_console(**options: object) -> Console:
    """Return the console of standard output, with options of `rich.console.Console`."""
    width = os.environ.get(_VARIABLE)
    if width is not None:
        options = {"force_terminal": width != "0", "width": int(width) or None, **options}
    return Console(highlight=False, **options)  # type: ignore[arg-type]


def print_text(console: Console, text: str = "") -> None:
    """Print sentences, wrapped between words in a terminal, as whole lines elsewhere."""
    console.print(text, soft_wrap=not console.is_terminal, markup=False)


def variables_for_ranks() -> dict[str, str]:
    """Return the variables from which `open_console` learns in ranks whether this output is a terminal."""
    console = open_console()
    return {_VARIABLE: str(console.width if console.is_terminal else 0)}


__all__ = ["open_console", "print_text", "variables_for_ranks"]
