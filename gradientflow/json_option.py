"""The option ``--json`` of all commands: a file for their figures, or standard output."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import click

from gradientflow.errors import ArgumentError

_STANDARD_OUTPUT = "-"


@dataclass(frozen=True)
class JsonOutput:
    """Destination of the figures of a command.

    Attributes
    ----------
    path : str
        The file, or ``-``.
    stream : text file, optional
        Standard output, in place of a file.
    """

    path: str
    stream: TextIO | None = None

    def write(self, figures: object) -> None:
        """Write figures as JSON, or raise an ArgumentError."""
        text = json_text(figures, indent=2) + "\n"
        if self.stream is not None:
            self.stream.write(text)
            self.stream.flush()
            return
        try:
            Path(self.path).write_text(text, encoding="utf-8")
        except OSError as error:
            raise ArgumentError(f"{self.path} cannot be written: {error.strerror}") from error


class JsonOption(click.Option):
    """Option ``--json [FILE]``, whose value is a `JsonOutput` or None.

    Without a file, or with ``-``, the figures go to standard output, and everything else that the command prints goes
    to standard error. A file that cannot be written is refused before the command begins.
    """

    def __init__(self, names: Sequence[str] = ("--json", "json_output"), **further: Any) -> None:
        text = "File for all figures; without FILE or with -, standard output, and the table goes to standard error."
        form = {"is_flag": False, "flag_value": _STANDARD_OUTPUT, "metavar": "[FILE]"}
        super().__init__(list(names), **{**form, "callback": _output, "help": text, **further})


def json_text(value: object, indent: int | None = None) -> str:
    """Return a value as JSON: null for a number that is not finite, and the `repr` of a value that is no JSON."""
    return json.dumps(_finite(value), indent=indent, default=repr)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def _output(context: click.Context, option: click.Parameter, path: str | None) -> JsonOutput | None:
    if path is None:
        return None
    if path == _STANDARD_OUTPUT:
        stream = sys.stdout
        context.with_resource(contextlib.redirect_stdout(sys.stderr))
        return JsonOutput(path, stream)
    if not os.access(Path(path).parent, os.W_OK) or Path(path).is_dir():
        raise ArgumentError(f"{path} cannot be written")
    return JsonOutput(path)


json_option = click.option("--json", "json_output", cls=JsonOption)

__all__ = ["JsonOption", "JsonOutput", "json_option", "json_text"]
