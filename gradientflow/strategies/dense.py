"""Dense communication: all gradients in every iteration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy.typing as npt

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
    averages = True
    alone_is_identity = True

    def bind(self, comm: Communicator, layout: Layout) -> PoolSynchronizer:
        """Make gradient pools, one for each dtype. Collective."""
        return PoolSynchronizer(comm, layout, self)

    def make_pool(
        self,
        comm: Communicator,
        shapes: Sequence[int | Sequence[int]],
        dtype: npt.DTypeLike | str = "float32",
        *,
        device: str | int = "cpu",
        extra: int = 0,
    ) -> GradientPool:
        """Make a `gradientflow.GradientPool`. Collective."""
        return GradientPool(
            comm, shapes, dtype, self.fusion_threshold, self.wire_of(dtype), self.algorithm, device, extra=extra
        )


__all__ = ["Dense"]
