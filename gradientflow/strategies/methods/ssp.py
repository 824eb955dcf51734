"""Stale synchronous SGD on a parameter server."""

from __future__ import annotations

from typing import Any

from gradientflow import policies
from gradientflow.strategies.exchange.served import ServedStrategy


class SSP(ServedStrategy):
    """SGD on a parameter server with workers at most `staleness` steps apart: see `gradientflow.policies.SSP`.

    Parameters
    ----------
    staleness : int
        As in the policy.
    servers, optimizer, wire, fusion_threshold
        As in `ServedStrategy`.
    """

    name = "ssp"

    def __init__(self, staleness: int, **options: Any) -> None:
        super().__init__(**options)
        self.staleness = policies.SSP(staleness).staleness

    @classmethod
    def typical(cls, steps: int) -> SSP:
        """Return one with a staleness that papers often use."""
        return cls(3)

    @property
    def policy(self) -> policies.Policy:
        """The policy of this name."""
        return policies.SSP(self.staleness)


__all__ = ["SSP"]
