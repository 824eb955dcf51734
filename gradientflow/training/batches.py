"""Record of the ranks that have batches left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gradientflow.errors import ArgumentError


@dataclass
class Batches:
    """Record of the ranks that have batches left, as one rank knows it."""

    are_uneven: bool = False  # a `join` is under way, so that ranks may be out of batches
    here: bool = True  # this rank has batches
    anywhere: bool = True  # a rank had batches at the last exchange
    exchanged: int = 0  # exchanges in this `join` for which this rank had batches

    @contextmanager
    def uneven(self) -> Iterator[None]:
        """Let ranks run out of batches in a ``with`` block."""
        if self.are_uneven:
            raise ArgumentError("join() is already under way")
        self.are_uneven, self.exchanged = True, 0
        try:
            yield
        finally:
            self.are_uneven, self.here = False, True


__all__ = ["Batches"]
