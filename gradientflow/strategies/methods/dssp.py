"""Dynamic stale synchronous SGD on a parameter server."""

from __future__ import annotations

from typing import Any

from gradientflow import policies
from gradientflow.strategies.exchange.served import ServedStrategy


class DSSP(ServedStrategy):
    """SGD on a parameter server whose fastest worker stops where it waits least: see `gradientflow.policies.DSSP`.

    Parameters
    ----------
    low, high, judged
        As in the policy.
    servers, optimizer, wire, fusion_threshold
        As in `ServedStrategy`.
    """

    name = "dssp"

    def __init__(self, low: int, high: int, judged: str = "fastest", **options: Any) -> None:
        super().__init__(**options)
        policy = policies.DSSP(low, high, judged)
        self.low, self.high, self.judged = policy.low, policy.high, policy.judged

    @classmethod
    def typical(cls, steps: int) -> DSSP:
        """Return one with the range of the paper."""
        return cls(3, 15)

    @property
    def policy(self) -> policies.Policy:
        """The policy of this name."""
        return policies.DSSP(self.low, self.high, self.judged)


__all__ = ["DSSP"]
