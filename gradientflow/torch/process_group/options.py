"""Options of groups and calls, which PyTorch gives as objects or, in short forms of calls, as arguments."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, Protocol, TypeAlias, TypeVar

from torch.distributed.constants import default_pg_timeout

from gradientflow.config import Config

Options: TypeAlias = Any  # options of a group or a call, objects of PyTorch's C++


class _WithTimeout(Protocol):
    timeout: timedelta


T = TypeVar("T", bound=_WithTimeout)


def options_of(kind: type[T], given: object, timeout: timedelta | None = None, **values: object) -> T:
    """Return the options of a call: the given object, or an object made from the arguments of the short form."""
    if isinstance(given, kind):
        return given
    options = kind()
    if timeout is not None:
        options.timeout = timeout
    for name, value in values.items():
        if value is not None:
            setattr(options, name, value)
    return options


def seconds(timeout: timedelta | None, default: float | None = None) -> float | None:
    """Return a timeout in seconds, or the default for values of 0 and less, by which PyTorch means unset."""
    return default if timeout is None or timeout.days < 0 else timeout.total_seconds() or default


def settings_of(timeout: timedelta) -> Config:
    """Return the settings of a group's communicator: GRADIENTFLOW_TIMEOUT, if set, replaces PyTorch's default."""
    if timeout == default_pg_timeout and os.environ.get("GRADIENTFLOW_TIMEOUT"):
        return Config()
    return Config(timeout=timeout.total_seconds())


def owner_of_timeout(settings: Config) -> str | None:
    """Return the name of the object that sets the timeout, for errors; None if it is GRADIENTFLOW_TIMEOUT."""
    return None if settings == Config() else "the process group"
