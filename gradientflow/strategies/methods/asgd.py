"""Asynchronous SGD on a parameter server."""

from __future__ import annotations

from gradientflow.policies import ASP, Policy
from gradientflow.strategies.exchange.served import ServedStrategy


class ASGD(ServedStrategy):
    """Asynchronous SGD on a parameter server: no worker waits for others.

    Each worker pushes its gradient, which the servers apply at once, by itself and undivided, and pulls. The staleness
    of a gradient is the number of pushes by other workers meanwhile, so a learning rate that suits synchronous SGD can
    be too high. Two runs differ.

    Parameters
    ----------
    servers, optimizer, wire, fusion_threshold
        As in `ServedStrategy`.
    """

    name = "asgd"

    @property
    def policy(self) -> Policy:
        """No worker waits."""
        return ASP()


__all__ = ["ASGD"]
