"""The log of a rank whose gradients are averaged in rounds, in the background: `rounds_replay` says what is in it."""

from __future__ import annotations

from typing import Any

from gradientflow.strategies.methods.hpsgd import HPSGDSynchronizer

from .log import Log, wrap
from .roster import Roster


def keep(log: Log, roster: Roster) -> None:
    """Let synchronizers write into a log."""

    def catch_up(original: Any, self: Any, state: Any, begins: bool) -> None:
        log.write("catch up", state["rounds"])
        original(self, state, begins)

    def train(original: Any, self: Any, places: Any) -> None:
        original(self, places)
        log.write("train")

    def end_round(original: Any, self: Any, places: Any = None) -> None:
        number = self.rounds if self._has_mean else 0
        original(self, places)
        log.write("round", number, roster.members, places is not None)

    def send(original: Any, self: Any) -> None:
        log.write("send", self.rounds, roster.members)
        original(self)

    wrap(HPSGDSynchronizer, "catch_up", catch_up)
    wrap(HPSGDSynchronizer, "_train", train)
    wrap(HPSGDSynchronizer, "_end_round", end_round)
    wrap(HPSGDSynchronizer, "_send", send)


__all__ = ["keep"]
