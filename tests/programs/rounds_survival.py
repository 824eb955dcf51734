"""The same as local_survival.py with hpsgd, whose ranks end rounds in the background.

Fates beside those of survival.py: "die in" the round under way, once a result is there for others; "miss" what comes of
it, as if it failed on this rank; "die in recovery"; "die at the end" of training.
"""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
from survival import Fates, die, main
from survival_replay import RATE, SHAPES, gradient
from survival_rosters import begin, name_of

import gradientflow as gf
from gradientflow.bench.survive.log import wrap
from gradientflow.bench.survive.rounds_log import keep
from gradientflow.bench.survive.telling import checksum
from gradientflow.errors import PeerError
from gradientflow.strategies.methods.hpsgd import HPSGDSynchronizer
from gradientflow.training.survival import Survival

STEPS = 30


class Missed:
    """A handle of a call that ends for others, but not here."""

    def __init__(self, handle: Any, what: str) -> None:
        self._handle = handle
        self._what = what

    @property
    def done(self) -> bool:
        """Whether the call has ended."""
        return bool(self._handle.done)

    def wait(self) -> None:
        """Die, or fail."""
        self._handle.wait()
        time.sleep(0.05)
        if self._what == "die in":
            die()
        raise PeerError("not heard of others")


def die_before(kind: Any, name: str) -> None:
    """Die when this is called, a little later."""

    def dying(original: Any, self: Any, *arguments: Any) -> None:
        time.sleep(random.random() * 0.01)
        die()

    wrap(kind, name, dying)


def let_happen(what: str, synchronizer: Any) -> bool:
    """Prepare what happens in the middle of something; return whether it does."""
    if what in ("die in", "miss"):
        *others, last = synchronizer._handles
        synchronizer._handles = (*others, Missed(last, what))
    elif what == "die in recovery":
        die_before(Survival, "catching_up")
    elif what == "die at the end":
        die_before(HPSGDSynchronizer, "_drain")
    else:
        return False
    return True


def train(comm: gf.Communicator, strategy: str, fates: Fates, *dtypes: str) -> dict[str, Any]:
    """Train. Return weights, and the name of this rank."""
    roster, log = begin(keep)
    weights = [np.zeros(shape, dtype) for shape, dtype in zip(SHAPES, dtypes, strict=True)]
    training = gf.training.ArrayLoop(comm, weights, strategy, on_failure="continue", min_ranks=1)
    optimizer = gf.optimizers.SGD(training, weights, lr=RATE)
    masters = [optimizer.masters.get(index, each) for index, each in enumerate(weights)]
    for step in training.steps(STEPS):
        assert not training.membership.dropped
        now = training.membership
        roster.begin(training.comm)
        if not let_happen(fates.peek(step), training.synchronizer):
            fates.begin(step, training)
        everything = gradient(step, now.rank, now.size)
        for index, place in enumerate(training.gradients):
            own, everything = np.split(everything, [place.size])
            place[...] = own.reshape(place.shape)
            training.ready(index)
        time.sleep(random.random() * 0.002)  # ranks are at other steps
        log.write("gradient", step, now.rank, now.size)
        training.wait()
        log.write("weights", checksum(flat(masters)))
        optimizer.step()
        fates.end()
    log.write("weights", checksum(flat(masters)))
    found = {"weights": flat(weights), "masters": flat(masters), "number": roster.own, "name": name_of(roster.own)}
    training.close()
    return found


def flat(weights: list[Any]) -> Any:
    """Return all weights, one after the other."""
    return np.concatenate([each.ravel() for each in weights])


if __name__ == "__main__":
    main(train)
