"""Arguments that several strategies take: their defaults, and one check each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gradientflow.errors import ArgumentError
from gradientflow.pools.base import native_threshold

WIRES = ("float32", "float16", "bfloat16")


class Option(NamedTuple):
    """An argument that several strategies take.

    Attributes
    ----------
    default : object
        Its default.
    check : callable
        Raises if a value is not one that it can have.
    """

    default: Any
    check: Callable[[Any], object]


def check_wire(wire: Any) -> None:
    """Raise unless it is a dtype to which values can be rounded in messages, or None.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If it is neither.
    """
    if wire not in (None, *WIRES):
        raise ArgumentError(f"wire is one of {', '.join(WIRES)}, not {wire!r}")


OPTIONS: Mapping[str, Option] = {
    "fusion_threshold": Option("auto", native_threshold),
    "wire": Option(None, check_wire),
    "algorithm": Option("auto", lambda _: None),  # the communicator checks it
}

__all__ = ["OPTIONS", "WIRES", "Option", "check_wire"]
