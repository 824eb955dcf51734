"""The same as survival.py where each rank trains on weights of its own; each keeps a log of what it does.

Fates beside those of survival.py: "die in" the exchange after the step, once a result is there for others; "miss" what
comes of it, as if it failed on this rank; "die at the end" of training; "miss the end" of psgd.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
from survival import Fates, die, main
from survival_replay import RATE, SHAPES, gradient
from survival_rosters import begin, name_of

import gradientflow as gf
from gradientflow.bench.survive.local_log import keep
from gradientflow.errors import PeerError
from gradientflow.strategies.exchange.periodic import PeriodicSynchronizer

STEPS = 30


def fail_in_exchange(what: str, seconds: float = 0.05) -> None:
    """Let the next exchange fail on this rank after a while, though the others end it."""
    end_exchange = PeriodicSynchronizer.end_exchange

    def failing(self: Any, fragment: int) -> None:
        end_exchange(self, fragment)
        PeriodicSynchronizer.end_exchange = end_exchange  # type: ignore[method-assign]
        time.sleep(seconds)
        if what == "die in":
            die()
        raise PeerError("not heard of others")

    PeriodicSynchronizer.end_exchange = failing  # type: ignore[method-assign]


def fail_at_the_end(kind: Any, what: str) -> None:
    """Die at the end, or miss the last mean of psgd, which the others have."""

    finish = kind.finish

    def failing(self: Any) -> None:
        kind.finish = finish
        allreduce, calls = self.comm.allreduce, itertools.count(1)

        def missing(*arguments: Any, **options: Any) -> Any:
            found = allreduce(*arguments, **options)
            if next(calls) == len(self.layout):
                time.sleep(0.05)
                raise PeerError("not heard of others")
            return found

        if what == "die at the end":
            die()
        self.comm.allreduce = missing
        finish(self)

    kind.finish = failing


def train(comm: gf.Communicator, strategy: str, fates: Fates, *dtypes: str) -> dict[str, Any]:
    """Train. Return weights, residuals, and the name of this rank."""
    roster, log = begin(keep)
    weights = [np.zeros(shape, dtype) for shape, dtype in zip(SHAPES, dtypes, strict=True)]
    training = gf.training.ArrayLoop(comm, weights, strategy, on_failure="continue", min_ranks=1)
    optimizer = gf.optimizers.SGD(training, weights, lr=RATE, momentum=1.0)
    for step in training.steps(STEPS):
        assert not training.membership.dropped
        now = training.membership
        roster.begin(training.comm)
        what = fates.peek(step)
        if what in ("die in", "miss"):
            fail_in_exchange(what)
        elif what in ("die at the end", "miss the end"):
            fail_at_the_end(type(training.synchronizer), what)
        else:
            fates.begin(step, training)
        everything = gradient(step, now.rank, now.size)
        for index, place in enumerate(training.gradients):
            own, everything = np.split(everything, [place.size])
            place[...] = own.reshape(place.shape)
            training.ready(index)
        training.wait()
        log.write("step", step, now.rank, now.size)
        optimizer.step()
        fates.end()
    masters = [optimizer.masters.get(index, each) for index, each in enumerate(weights)]
    found = {
        "weights": np.concatenate([each.ravel() for each in weights]),
        "masters": np.concatenate([each.ravel() for each in masters]),
        "residuals": np.concatenate(
            [np.zeros(0), *(each.ravel() for each in training.synchronizer.report().residuals)]
        ),
        "number": roster.own,
        "name": name_of(roster.own),
    }
    training.close()
    return found


if __name__ == "__main__":
    main(train)
