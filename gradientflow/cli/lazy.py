"""Commands that are imported when they are called."""

from __future__ import annotations

import importlib
from typing import Any

import click


class LazyCommand(click.Command):
    """A command of which a group knows the name and a summary only; the rest is imported once it is called.

    Parameters
    ----------
    name : str
        What it is called by.
    place : str
        Where it is, as ``module:attribute``.
    summary : str
        What the list of commands says of it.
    """

    def __init__(self, name: str, place: str, summary: str) -> None:
        super().__init__(name, short_help=summary)
        self._place = place

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Make the context of the command itself, which click then asks for all the rest."""
        module, _, attribute = self._place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command.make_context(info_name, args, parent, **extra)
