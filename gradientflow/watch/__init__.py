"""Eyes on running jobs: each rank answers questions at a socket of its user, which ``gradientflow top`` asks."""

from __future__ import annotations

from .watching import answer_at, show

__all__ = ["answer_at", "show"]
