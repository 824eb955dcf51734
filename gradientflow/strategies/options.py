"""Arguments that several strategies take: each has a default and a check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypedDict

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


class LayerOptions(TypedDict, total=False):
    """The keywords of strategies that send single entries of each layer, and have a warm-up of their own."""

    monitor: int
    wire: str | None
    algorithm: str


class TopKOptions(LayerOptions, total=False):
    """The keywords of strategies that send single entries of each layer."""

    warmup: int


class ServedOptions(TypedDict, total=False):
    """The keywords of strategies whose step is made by servers, apart from their optimizer."""

    servers: int | None
    replicas: int
    wire: str | None
    fusion_threshold: float | str


__all__ = ["OPTIONS", "LayerOptions", "Option", "ServedOptions", "TopKOptions"]
