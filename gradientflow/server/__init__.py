"""The parameter server: the workers' side, servers in ranks of their own, and the optimizers of servers."""

from __future__ import annotations

from .rank import ServerRanks, serve

__all__ = ["ServerRanks", "serve"]
