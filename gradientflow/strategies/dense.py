"""Dense communication: all gradients in every iteration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy.typing as npt

from gradientflow.communicator import Communicator
from gradientflow.pool import GradientPool

from .strategy import Strategy


class Dense(Strategy):
    """All gradients are averaged in every iteration: lazy allreduce (GradientFlow paper, sections 2.6 and 3.1).

    Parameters
    ----------
    fusion_threshold, wire, algorithm
        As in `gradientflow.GradientPool`.
    """

    is_sparse = False

    def make_pool(
        self,
        comm: Communicator,
        shapes: Sequence[int | Sequence[int]],
        dtype: npt.DTypeLike | str = "float32",
        *,
        device: str | int = "cpu",
        momentum: float = 0.0,
        extra: int = 0,
        skip_nonfinite: bool = False,
        first_iteration: int = 0,
    ) -> GradientPool:
        """Make a `gradientflow.GradientPool`; the arguments that it does not have are ignored. Collective."""
        pool = GradientPool(comm, shapes, dtype, self.fusion_threshold, self.wire_of(dtype), self.algorithm, device)
        self._remember(pool)
        return pool


__all__ = ["Dense"]
