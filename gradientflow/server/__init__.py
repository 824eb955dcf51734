"""Parameter server: its workers' side, the ranks that only serve, and the optimizers of servers."""

from __future__ import annotations

from .rank import ServerRanks, serve

__all__ = ["ServerRanks", "serve"]
