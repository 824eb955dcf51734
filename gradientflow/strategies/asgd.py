"""Asynchronous SGD on a parameter server."""

from __future__ import annotations

from gradientflow.policies import ASP, Policy

from .served import ServedStrategy


class ASGD(ServedStrategy):
    """Asynchronous SGD on a parameter server: nobody waits for other workers.

    Each worker pushes its gradient, which the servers apply by itself as it comes, undivided, and pulls. A gradient is
    as many steps old as other workers have pushed meanwhile, so a rate that suits synchronous SGD can be too high. Two
    runs differ.

    Parameters
    ----------
    servers, optimizer, wire, fusion_threshold
        As in `ServedStrategy`.
    """

    name = "asgd"

    @property
    def policy(self) -> Policy:
        """Nobody waits."""
        return ASP()


__all__ = ["ASGD"]
