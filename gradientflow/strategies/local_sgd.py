"""Local SGD: every rank trains by itself, and every few steps weights are averaged."""

from __future__ import annotations

from .periodic import PeriodicStrategy


class LocalSGD(PeriodicStrategy):
    """Local SGD (Stich, 2019; algorithm 1 of the HPSGD paper).

    Parameters
    ----------
    period : int, default 8
        Weights are averaged every so many steps.
    delay : int, default 0
        Steps that go on while weights travel; the mean is applied afterwards. Below `period`.
    mixing : float, optional
        With a delay, the share of a rank's own weights in what it goes on from; 0.5 by default.
    wire : {"float16", "bfloat16"}, optional
        What differences of weights are rounded to between nodes.
    """

    name = "local_sgd"
    not_taken = PeriodicStrategy.not_taken | dict.fromkeys(
        ("fragments", "outer_rate", "outer_momentum", "nesterov"),
        "diloco has it; diloco(outer_rate=1.0, outer_momentum=0.0) is local_sgd",
    )

    def __init__(
        self, period: int = 8, *, delay: int = 0, mixing: float | None = None, wire: str | None = None
    ) -> None:
        super().__init__(period, delay=delay, mixing=mixing, wire=wire)


__all__ = ["LocalSGD"]
