"""The settings of a communicator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ._location import load_core


class Field(NamedTuple):
    """One setting."""

    name: str
    variable: str
    unit: str
    default: str
    meaning: str


def fields() -> list[Field]:
    """Return all settings, with the environment variable that gives each."""
    return [Field(*entry) for entry in load_core().config_fields()]


class Config(Mapping[str, str]):
    """The settings of one communicator, fixed when this object is made.

    Parameters
    ----------
    **overrides : str, int, float or bool
        Settings by name (see `fields`), for example ``timeout=30`` or ``staging_bytes="1MiB"``. They go before the
        ``GRADIENTFLOW_*`` environment variables, which go before the defaults.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If a setting is unknown or its value, here or in the environment, is not accepted.
    """

    def __init__(self, **overrides: str | float | bool) -> None:
        texts = {name: _to_text(value) for name, value in overrides.items()}
        self._values: dict[str, str] = load_core().read_config(texts)

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


def _to_text(value: str | float | bool) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
