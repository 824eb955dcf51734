"""Commands that are imported when they are called."""

from __future__ import annotations

from collections.abc import Callable

import click


class LazyCommand(click.Command):
    """A command with only a name and a summary; the whole command is imported once it is called.

    Parameters
    ----------
    name : str
        Name of the command.
    summary : str
        Entry in the list of commands.
    load : callable
        Function that imports and returns the command itself.
    """

    def __init__(self, name: str, summary: str, load: Callable[[], click.Command]) -> None:
        super().__init__(name, short_help=summary)
        self._load = load

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: object
    ) -> click.Context:
        """Make the context of the command itself; click then uses that command."""
        return self._load().make_context(info_name, args, parent, **extra)
