"""The log of a rank that exchanges weights every few steps, or in the end: `local_replay` says what is in it."""

from __future__ import annotations

import itertools
from typing import Any

from gradientflow.strategies.exchange.periodic import PeriodicSynchronizer
from gradientflow.strategies.methods.psgd import PSGDSynchronizer

from .log import Log, wrap
from .roster import Roster


def keep(log: Log, roster: Roster) -> None:
    """Let synchronizers write into a log."""
    gifts = itertools.count()

    def give(original: Any, self: Any, with_arrays: bool) -> Any:
        state = original(self, with_arrays)
        if with_arrays:
            state = state | {"gift": [roster.own, next(gifts)]}
            log.write("give", state["gift"])
        return state

    def catch_up(original: Any, self: Any, state: Any, begins: bool) -> None:
        if "gift" in state:  # else it has taken one before
            log.write("catch up", self.exchanges, state["exchanges"], state["gift"] if begins else None)
        original(self, state, begins)

    def send(original: Any, self: Any, fragment: int) -> None:
        log.write("send", self.exchanges + self._pending().index(fragment), fragment, roster.members)
        original(self, fragment)

    def apply(original: Any, self: Any, fragment: int) -> None:
        number = self.exchanges
        original(self, fragment)
        log.write("end", number, fragment, roster.members)

    def finish(original: Any, self: Any) -> None:
        if isinstance(self, PeriodicSynchronizer):
            self._apply_all()
        number = self.exchanges
        log.write("send", number, None, roster.members)
        original(self)
        log.write("end", number, None, roster.members)

    wrap(PeriodicSynchronizer, "_send", send)
    wrap(PeriodicSynchronizer, "_apply", apply)
    for kind in (PeriodicSynchronizer, PSGDSynchronizer):
        wrap(kind, "shared_state", give)
        wrap(kind, "catch_up", catch_up)
        wrap(kind, "finish", finish)


__all__ = ["keep"]
