"""Synchronous SGD on a parameter server."""

from __future__ import annotations

from gradientflow.policies import BSP, Policy
from gradientflow.strategies.exchange.served import ServedStrategy


class SSGD(ServedStrategy):
    """Synchronous SGD on a parameter server: each worker pushes its gradient, waits for the step, and pulls.

    The same steps as with `Dense`, made by the servers. Two runs give the same bits.

    Parameters
    ----------
    servers, optimizer, wire, fusion_threshold
        As in `ServedStrategy`.
    """

    name = "ssgd"

    @property
    def policy(self) -> Policy:
        """All workers wait for each other."""
        return BSP()


__all__ = ["SSGD"]
