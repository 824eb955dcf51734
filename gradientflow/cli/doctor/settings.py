"""Checks of the settings: the value and the source of each."""

from __future__ import annotations

import os

from gradientflow.config import Config, fields, unknown_variables
from gradientflow.settings_file import NAME, settings_file
from gradientflow.strategies import words_of_default_strategy

from .check import Check

_UNITLESS = ("", "choice", "count", "list")


def settings() -> list[Check]:
    """Report the value and the source of every setting."""
    try:
        config, strategy, file = Config(), words_of_default_strategy(), settings_file()
    except (ValueError, TypeError) as error:
        return [Check("configuration", "fail", "cannot be read", str(error))]
    there = f"none: no {NAME} in this folder" if file.path is None else str(file.path)
    sources = dict.fromkeys(file.settings, f"from {NAME}")
    sources |= {name: f"from {variable}" for name, variable, *_ in fields() if os.environ.get(variable)}
    return [
        Check("settings file", "ok", there),
        Check("strategy", "ok", f"{strategy} ({f'from {NAME}' if file.strategy else 'default'})"),
        *(
            Check(
                name,
                "ok",
                f"{config[name]}{f' {unit}' if unit not in _UNITLESS else ''} ({sources.get(name, 'default')})",
            )
            for name, _, unit, _, _ in fields()
        ),
    ] + [Check("configuration", "warn", "a variable that nothing reads", each) for each in unknown_variables()]
