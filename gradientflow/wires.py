"""Wires: the formats to which float32 values are rounded when they are sent between nodes."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from ._location import core
from .errors import ArgumentError


class Wire(NamedTuple):
    """A wire, as the core knows it.

    Attributes
    ----------
    element, header : int
        Bytes of a value, and of the header of each message.
    dtype : str or None
        Dtype of a value; None if values cannot be read without the header.
    """

    element: int
    header: int
    dtype: str | None


@cache
def wires() -> dict[str, Wire]:
    """Return all wires by name."""
    return {name: Wire(*traits) for name, *traits in core.wires()}


def check_wire(wire: object) -> None:
    """Raise unless `wire` is the name of a wire, or None.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If `wire` is neither.
    """
    if wire not in (None, *wires()):
        raise ArgumentError(f"wire is one of {', '.join(wires())}, not {wire!r}")


def check_single(wire: str | None, sender: str) -> None:
    """Raise if the values of a wire share a scale, which is lost if parts of a tensor travel separately.

    Parameters
    ----------
    wire : str or None
        The name of a wire.
    sender : str
        Sender of single values; begins the message.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the values share a scale.
    """
    if wire is not None:
        core.check_single(wire, sender)
