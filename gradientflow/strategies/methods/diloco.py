"""DiLoCo: Local SGD with an outer optimizer. Fragments of the model may take turns, and results be applied later."""

from __future__ import annotations

from gradientflow.arguments import checked_float, checked_int
from gradientflow.errors import ArgumentError
from gradientflow.strategies.exchange.periodic import PeriodicStrategy


class DiLoCo(PeriodicStrategy):
    """DiLoCo (Douillard et al., 2023); with `fragments` and `delay` Streaming DiLoCo (Douillard et al., 2025).

    Every rank trains by itself, with any optimizer. Every `period` steps the mean change of the ranks' weights is the
    gradient of an outer momentum SGD on the common weights. All ranks then continue from the common weights.

    Parameters
    ----------
    period : int, default 100
        Steps from one exchange to the next.
    outer_rate : float, default 0.7
        Learning rate of the outer optimizer.
    outer_momentum : float, default 0.9
        Momentum of the outer optimizer, from 0 to below 1.
    nesterov : bool, default True
        True for Nesterov momentum.
    fragments : int, default 1
        Parts of the model that take turns.
    delay : int, default 0
        Steps after which the result of an exchange is applied.
    mixing : float, optional
        The share of a rank's own weights in their mix with common weights; by default 0, or 0.5 with a delay.
    wire : str, optional
        Format to which differences of weights are rounded between nodes, as in `gradientflow.Communicator.allreduce`.
    """

    name = "diloco"
    options = ("wire",)

    def __init__(
        self,
        period: int = 100,
        outer_rate: float = 0.7,
        outer_momentum: float = 0.9,
        *,
        nesterov: bool = True,
        fragments: int = 1,
        delay: int = 0,
        mixing: float | None = None,
        **options: object,
    ) -> None:
        super().__init__(period, **options)
        self._apply_later(delay, mixing)
        self.fragments = checked_int("fragments", fragments, 1)
        if self.fragments > self.period:
            raise ArgumentError(f"fragments is at most period, {self.period}, not {fragments!r}")
        if not checked_float("outer_rate", outer_rate) > 0:
            raise ArgumentError(f"outer_rate is above 0, not {outer_rate!r}")
        if not 0 <= checked_float("outer_momentum", outer_momentum) < 1:
            raise ArgumentError(f"outer_momentum is from 0 to below 1, not {outer_momentum!r}")
        self.outer_rate, self.outer_momentum, self.nesterov = outer_rate, outer_momentum, nesterov


__all__ = ["DiLoCo"]
