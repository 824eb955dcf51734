"""SGD on a parameter server with barriers where the workers wait least."""

from __future__ import annotations

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

    def __init__(
        self,
        lookahead: int = 15,
        *,
        servers: int | None = None,
        optimizer: str = "sgd",
        wire: str | None = None,
        fusion_threshold: float | str | None = None,
    ) -> None:
        super().__init__(servers=servers, optimizer=optimizer, wire=wire, fusion_threshold=fusion_threshold)
        self.lookahead = policies.ElasticBSP(lookahead).lookahead

    @property
    def policy(self) -> policies.Policy:
        """The policy of this name."""
        return policies.ElasticBSP(self.lookahead)


__all__ = ["ElasticBSP"]
