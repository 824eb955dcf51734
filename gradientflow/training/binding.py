"""Binding of a strategy to tensors, on all ranks or on none."""

from __future__ import annotations

from typing import Any, cast

from gradientflow.agreement import raise_together
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError, CommunicationError
from gradientflow.strategies import Layout, Strategy, Synchronizer
from gradientflow.strategies.exchange.staged import bind

from .tensors import Tensors


def bind_together(strategy: Strategy, comm: Communicator, layout: Layout, tensors: Tensors) -> Synchronizer:
    """Return the result of `Strategy.bind`. Raises on all ranks if it fails on one. Collective."""
    synchronizer: Any = None
    error: Exception | None = None
    try:
        with tensors.default_stream():
            synchronizer = bind(strategy, comm, layout)
        if not isinstance(synchronizer, Synchronizer):
            raise ArgumentError(f"bind of {strategy.name} returned a {type(synchronizer).__name__}, not a Synchronizer")
        if not hasattr(synchronizer, "layout"):
            raise ArgumentError(f"{type(synchronizer).__name__} of {strategy.name} does not call super().__init__()")
        synchronizer.check_complete()
    except CommunicationError:
        raise
    except Exception as caught:
        error = caught
    try:
        raise_together(comm, error)
    except BaseException:
        if error is None:
            synchronizer.close(orderly=False)
        raise
    return cast("Synchronizer", synchronizer)


__all__ = ["bind_together"]
