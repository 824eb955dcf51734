"""The same as survival.py where each rank trains on weights of its own; each keeps a log of what it does.

Fates beside those of survival.py: "die in" the exchange after the step, once a result is there for others; "miss" what
comes of it, as if it failed on this rank; "die at the end" of training; "miss the end" of psgd.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from survival import Fates, die, main
from survival_replay import RATE, SHAPES, gradient

import gradientflow as gf
from gradientflow.errors import PeerError
from gradientflow.strategies.exchange.periodic import PeriodicSynchronizer
from gradientflow.strategies.methods.psgd import PSGDSynchronizer
from gradientflow.training.survival import Survival

STEPS = 30


class Log:
    """What this process does, in a file, where it is still found when the process has been killed."""

    def __init__(self, comm: gf.Communicator) -> None:
        self.file = os.open(Path(sys.argv[1]) / f"log.{os.getpid()}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        former = comm.recovered_from
        self.names: list[str | None] = [str(rank) for rank in range(comm.size)]
        if former is not None:
            self.names = ["?" for _ in former] + [None] * (comm.size - len(former))
        self.rank = comm.rank
        if former is None:
            self.write("name", self.names[self.rank])

    def write(self, *entry: object) -> None:
        os.write(self.file, f"{json.dumps(entry)}\n".encode())

    def use(self, comm: gf.Communicator) -> None:
        """Keep the names of those that stay."""
        former = comm.recovered_from or ()
        self.names = [self.names[rank] for rank in former] + [None] * (comm.size - len(former))
        self.rank = comm.rank

    def name_newcomers(self, exchanges: int) -> None:
        is_new = self.names[self.rank] is None
        self.names = [name or f"{exchanges}:{rank}" for rank, name in enumerate(self.names)]
        if is_new:
            self.write("name", self.names[self.rank])


def wrap(kind: Any, name: str, wrapped: Callable[..., Any]) -> None:
    """Let a method of a class be called by another function, which gets it as its first argument."""
    original = getattr(kind, name)
    setattr(kind, name, lambda self, *arguments: wrapped(original, self, *arguments))


def keep(log: Log) -> None:
    """Let synchronizers write into the log."""

    def use(original: Any, self: Any, made: Any) -> None:
        original(self, made)
        log.use(made)

    @contextmanager
    def survival_catches_up(original: Any, self: Any, synchronizer: Any) -> Any:
        with original(self, synchronizer):
            yield
        log.name_newcomers(synchronizer.exchanges)

    def give(original: Any, self: Any, with_arrays: bool) -> Any:
        if with_arrays:
            log.write("give", self.exchanges)
        return original(self, with_arrays)

    def catch_up(original: Any, self: Any, state: Any, begins: bool) -> None:
        if state.keys() & {"common", "weights"}:
            log.write("catch up", self.exchanges, state["exchanges"], begins)
        original(self, state, begins)

    def send(original: Any, self: Any, fragment: int) -> None:
        log.write("send", self.exchanges + self._pending().index(fragment), fragment, log.names)
        original(self, fragment)

    def apply(original: Any, self: Any, fragment: int) -> None:
        number = self.exchanges
        original(self, fragment)
        log.write("end", number, fragment, log.names)

    def finish(original: Any, self: Any) -> None:
        if isinstance(self, PeriodicSynchronizer):
            self._apply_all()
        number = self.exchanges
        log.write("send", number, None, log.names)
        original(self)
        log.write("end", number, None, log.names)

    wrap(Survival, "_use", use)
    wrap(Survival, "catching_up", survival_catches_up)
    wrap(PeriodicSynchronizer, "_send", send)
    wrap(PeriodicSynchronizer, "_apply", apply)
    for kind in (PeriodicSynchronizer, PSGDSynchronizer):
        wrap(kind, "shared_state", give)
        wrap(kind, "catch_up", catch_up)
        wrap(kind, "finish", finish)


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
    log = Log(comm)
    keep(log)
    weights = [np.zeros(shape, dtype) for shape, dtype in zip(SHAPES, dtypes, strict=True)]
    training = gf.training.ArrayLoop(comm, weights, strategy, on_failure="continue", min_ranks=1)
    optimizer = gf.optimizers.SGD(training, weights, lr=RATE, momentum=1.0)
    for step in training.steps(STEPS):
        assert not training.membership.dropped
        now = training.membership
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
        "name": log.names[log.rank],
    }
    training.close()
    return found


if __name__ == "__main__":
    main(train)
