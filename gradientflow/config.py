"""Settings of a communicator."""

from __future__ import annotations

import numbers
import os
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

import numpy as np

from ._location import core
from .errors import ArgumentError, ArgumentTypeError, GradientFlowWarning
from .settings_file import settings_file


class Field(NamedTuple):
    """One setting."""

    name: str
    variable: str
    unit: str
    default: str
    meaning: str


def fields() -> list[Field]:
    """Return all settings, each with its environment variable."""
    return [Field(*entry) for entry in core.config_fields()]


class Config(Mapping[str, str]):
    """The settings of one communicator, fixed when this object is made.

    Parameters
    ----------
    **overrides : str, int, float, bool or path
        Settings by name (see `fields`), for example ``timeout=30`` or ``staging_bytes="1MiB"``. Precedence: these
        arguments, then the ``GRADIENTFLOW_*`` environment variables, the settings file, and the defaults.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If a setting is unknown or its value, here, in the environment or in the settings file, is not accepted.
    gradientflow.errors.ArgumentTypeError
        If a value is of another type.
    """

    def __init__(self, **overrides: str | float | bool | os.PathLike[str]) -> None:
        texts = {**_settings_of_file(), **{name: _to_text(name, value) for name, value in overrides.items()}}
        self._values: dict[str, str] = core.read_config(texts)

    def __getitem__(self, name: str) -> str:
        """Return a setting as text."""
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the settings."""
        return iter(self._values)

    def __len__(self) -> int:
        """Return the number of settings."""
        return len(self._values)

    def __repr__(self) -> str:
        """Return the settings as a call that would make them."""
        return f"Config({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"


def settings(given: Mapping[str, str] | None) -> dict[str, str]:
    """Return all settings by name. Settings that `given` lacks come from a new `Config`.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If a setting is unknown or its value is not accepted.
    gradientflow.errors.ArgumentTypeError
        If `given` is not a mapping of names to values.
    """
    if given is None:
        return dict(Config())
    if isinstance(given, Config):
        return dict(given)
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ArgumentTypeError(f"config is a gradientflow.Config, or settings by name, not {given!r}")
    return dict(Config(**given))


def unknown_variables() -> list[str]:
    """Return a sentence for each environment variable that looks like a setting but is none."""
    return list(core.unknown_variables())


@cache
def warn_of_unknown_variables() -> None:
    """Warn, once per process, of environment variables that look like settings but are none."""
    for sentence in unknown_variables():
        warnings.warn(sentence, GradientFlowWarning, stacklevel=2)


def _settings_of_file() -> dict[str, str]:
    """Return the settings of the settings file that the environment does not override."""
    found = settings_file()
    if not found.settings:
        return {}
    read = core.read_config
    read({})  # an error in the environment is raised here, not blamed on the file
    texts = {name: _to_text(name, value) for name, value in found.settings.items()}
    try:
        read(texts)
    except ArgumentError as error:
        raise ArgumentError(f"{found.path}: [settings] {error}") from error
    for name, variable, unit, *_ in fields():
        if unit == "library" and texts.get(name, "auto") not in ("auto", "off"):
            message = f"{found.path}: [settings] {name} names a library, which {variable} or the program has to do"
            raise ArgumentError(message)
    return {name: texts[name] for name in found.unless_in_environment()}


def _to_text(name: str, value: object) -> str:
    if isinstance(value, bool | np.bool_):
        return "on" if value else "off"
    if isinstance(value, str | numbers.Real):
        return str(value)
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    raise ArgumentTypeError(f"{name} is set by text, a number, True or False, not by {value!r}")
