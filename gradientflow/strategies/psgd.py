"""Parallel SGD: no communication until the end."""

from __future__ import annotations

from gradientflow.communicator import Communicator

from .arrays import ArraySynchronizer
from .layout import Layout
from .strategy import Strategy


class PSGD(Strategy):
    """Every rank trains by itself; `finish` averages the weights (Zinkevich et al., 2010).

    What a step takes with it is what it takes without communication.
    """

    name = "psgd"
    gradients = "local"
    writes_weights = True
    alone_is_identity = True

    def bind(self, comm: Communicator, layout: Layout) -> ArraySynchronizer:
        """Make what averages weights in the end. Collective."""
        return _AtTheEnd(comm, layout, self)


class _AtTheEnd(ArraySynchronizer):
    def finish(self) -> None:
        """Average the weights."""
        for name, weight in zip(self.layout.names, self.weights, strict=True):
            self.comm.allreduce(weight, "mean", label=name)


__all__ = ["PSGD"]
