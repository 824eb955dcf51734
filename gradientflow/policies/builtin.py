"""The policies of the core."""

from __future__ import annotations

from typing import Any

from gradientflow._location import load_core
from gradientflow.arguments import whole

from .policy import Policy, RunningPolicy


class NativePolicy(Policy):
    """One that runs in the core: the name and the settings, in their order, are those of its constructor there."""

    def start(self, workers: int) -> RunningPolicy:
        """Return what decides for so many workers, from the beginning."""
        make: Any = getattr(load_core().RunningPolicy, self.name)
        running: RunningPolicy = make(whole("workers", workers, 1), *self.settings.values())
        return running


class BSP(NativePolicy):
    """Bulk synchronous parallel: one push of every worker is applied together, and all wait for it."""

    name = "bsp"


class ASP(NativePolicy):
    """Asynchronous parallel: each push is applied as it comes, and nobody waits."""

    name = "asp"


__all__ = ["ASP", "BSP", "NativePolicy"]
