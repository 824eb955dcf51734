"""SGD on a parameter server with barriers where the workers wait least."""

from __future__ import annotations

from typing import Any

from gradientflow import policies
from gradientflow.strategies.exchange.served import ServedStrategy


class ElasticBSP(ServedStrategy):
    """SGD on a parameter server with barriers where the workers wait least: see `gradientflow.policies.ElasticBSP`.

    Parameters
    ----------
    lookahead : int, default 15
        As in the policy.
    servers, optimizer, wire, fusion_threshold
        As in `ServedStrategy`.
    """

    name = "elastic_bsp"

    def __init__(self, lookahead: int = 15, **options: Any) -> None:
        super().__init__(**options)
        self.lookahead = policies.ElasticBSP(lookahead).lookahead

    @property
    def policy(self) -> policies.Policy:
        """The policy of this name."""
        return policies.ElasticBSP(self.lookahead)


__all__ = ["ElasticBSP"]
