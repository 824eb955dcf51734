"""Dense communication: all gradients in every iteration."""

from __future__ import annotations

from typing import Any

from gradientflow.communicator import Communicator
from gradientflow.pool import GradientPool

from .layout import Layout
from .pooled import PoolStrategy, PoolSynchronizer


class Dense(PoolStrategy):
    """All gradients are averaged in every iteration: lazy allreduce (GradientFlow paper, sections 2.6 and 3.1).

    Parameters
    ----------
    fusion_threshold, wire, algorithm
        As in `gradientflow.GradientPool`.
    """

    name = "dense"
    pool = GradientPool
    averages = True
    alone_is_identity = True

    def bind(self, comm: Communicator, layout: Layout) -> PoolSynchronizer:
        """Make gradient pools, one for each dtype. Collective."""
        return PoolSynchronizer(comm, layout, self)

    def pool_options(self, tensors: int) -> dict[str, Any]:
        """Return how pools fuse tensors."""
        return {"fusion_threshold": self.fusion_threshold}


__all__ = ["Dense"]
