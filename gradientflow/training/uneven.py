"""Uneven numbers of batches: ranks that are out of them take part until no rank has any."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from gradientflow.errors import AbandonedError, ArgumentError, MismatchError, NonFiniteError

if TYPE_CHECKING:
    from .loop import Loop


class Batches:
    """Which ranks have batches left.

    Attributes
    ----------
    are_uneven : bool
        Whether a `join` is under way, so that ranks may be out of batches.
    here : bool
        Whether this rank has batches.
    anywhere : bool
        Whether any rank had batches at the last exchange.
    exchanged : int
        The exchanges in this `join` for which this rank had batches.
    """

    def __init__(self) -> None:
        self.are_uneven = False
        self.here = True
        self.anywhere = True
        self.exchanged = 0

    @contextmanager
    def uneven(self) -> Iterator[None]:
        """Let ranks run out of batches in a ``with`` block."""
        if self.are_uneven:
            message = "join() is already under way"
            raise ArgumentError(message)
        self.are_uneven, self.exchanged = True, 0
        try:
            yield
        finally:
            self.are_uneven, self.here = False, True


@contextmanager
def join(loop: Loop, broadcast: Callable[[int], object]) -> Iterator[None]:
    """Allow the ranks different numbers of iterations in a ``with`` block. Collective.

    Parameters
    ----------
    loop : Loop
        The training loop.
    broadcast : callable
        ``broadcast(root)`` broadcasts weights and optimizer state of a rank that had the most iterations.
    """
    if loop.strategy.gradients != "mean":
        message = f"join() does not go with {loop.strategy.name}: it needs gradients that are averaged in every step"
        raise ArgumentError(message)
    with loop.batches.uneven():
        yield
        _take_part_until_all_have_left(loop)
        counts = loop.comm.allgather(np.array([loop.batches.exchanged])).ravel()
        if counts.min() < counts.max():
            broadcast(int(counts.argmax()))


def _take_part_until_all_have_left(loop: Loop) -> None:
    """Contribute zeros until no rank has batches."""
    loop.batches.here = False
    while True:
        loop.zero(set_to_none=True)
        try:
            loop.synchronize()
        except (AbandonedError, MismatchError, NonFiniteError) as error:
            is_dropped = loop.must_zero or isinstance(error, NonFiniteError)
            if is_dropped and loop.status.any_has_batches(loop.synchronizer.extra):
                continue  # raised on all ranks; those with batches may go on
            raise
        if not loop.batches.anywhere:
            break
        loop.stepped()
    loop.synchronizer.discard(loop.tensors.stream)
    loop.zero(set_to_none=True)


__all__ = ["Batches", "join"]
