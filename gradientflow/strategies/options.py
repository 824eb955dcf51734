"""Arguments that several strategies take: each has a default and a check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gradientflow.pools.base import native_threshold
from gradientflow.wires import check_wire


class Option(NamedTuple):
    """An argument that several strategies take.

    Attributes
    ----------
    default : object
        Its default.
    check : callable
        Raises if a value is not allowed.
    """

    default: object
    check: Callable[[Any], object]


OPTIONS: Mapping[str, Option] = {
    "fusion_threshold": Option("auto", native_threshold),
    "wire": Option(None, check_wire),
    "algorithm": Option("auto", lambda _: None),  # the communicator checks it
}

__all__ = ["OPTIONS", "Option"]
