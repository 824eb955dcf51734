"""Uneven numbers of batches: ranks without batches take part until no rank has batches left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from gradientflow.errors import AbandonedError, ArgumentError, MismatchError, NonFiniteError
from gradientflow.strategies.update import Phase

from .loop import Loop


@contextmanager
def join(loop: Loop, broadcast: Callable[[int], object]) -> Iterator[None]:
    """Allow the ranks different numbers of iterations in a ``with`` block. Collective.

    Unless all ranks had equally many iterations, ``broadcast(root)`` then broadcasts the weights and the optimizer
    state of a rank that had the most.
    """
    if loop.strategy.gradients != "mean":
        message = f"join() does not go with {loop.strategy.name}: it needs gradients that are averaged in every step"
        raise ArgumentError(message)
    if loop.ranks.may_change:
        raise ArgumentError("join() does not go with on_failure='continue': deal the batches by steps() and membership")
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
            is_dropped = loop.progress.phase is Phase.DROPPED or isinstance(error, NonFiniteError)
            if is_dropped and loop.status.any_has_batches(loop.synchronizer.extra):
                continue  # raised on all ranks; ranks with batches may continue
            raise
        if not loop.batches.anywhere:
            break
        loop.stepped()
    loop.synchronizer.rollback(Phase.AVERAGED, loop.tensors.stream)
    loop.zero(set_to_none=True)


__all__ = ["join"]
