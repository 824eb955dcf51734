"""Local SGD: every rank trains by itself, and every few steps weights are averaged."""

from __future__ import annotations

from gradientflow.strategies.exchange.periodic import PeriodicStrategy


class LocalSGD(PeriodicStrategy):
    """Local SGD (Stich, 2019; algorithm 1 of the HPSGD paper).

    Parameters
    ----------
    period : int, default 8
        Steps from one exchange to the next.
    delay : int, default 0
        Steps after which the mean is applied; weights travel meanwhile. Below `period`.
    mixing : float, optional
        The share of a rank's own weights in their mix with common weights; by default 0, or 0.5 with a delay.
    wire : str, optional
        Format to which differences of weights are rounded between nodes, as in `gradientflow.Communicator.allreduce`.
    """

    name = "local_sgd"
    not_taken = PeriodicStrategy.not_taken | dict.fromkeys(
        ("fragments", "outer_rate", "outer_momentum", "nesterov"),
        "diloco has it; diloco(outer_rate=1.0, outer_momentum=0.0) is local_sgd",
    )

    options = ("wire",)

    def __init__(self, period: int = 8, *, delay: int = 0, mixing: float | None = None, **options: object) -> None:
        super().__init__(period, **options)
        self._apply_later(delay, mixing)


__all__ = ["LocalSGD"]
