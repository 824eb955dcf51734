"""Train on whole numbers, and go on when ranks are killed, or started again. Each leaves what it has in a file."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

import gradientflow as gf
from gradientflow.errors import ArgumentError, PeerError
from gradientflow.strategies.exchange.arrays import ArraySynchronizer

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))  # what ranks share with pytest

from survival_replay import RATE, SHAPES, STEPS, gradient
from survival_roll import Roll


def die() -> None:
    """Die at once."""
    os.kill(os.getpid(), signal.SIGKILL)


class Fates:
    """What happens to this rank in which step, and what it waits for.

    Parameters
    ----------
    rank : int
        Of this process when it was first started.
    fates : list of (int, int, str, float)
        A rank, its step, and what it does: "die" so many seconds after its begin, some steps later at the latest, "die
        again" in its second life, "die after" its end, "fall behind", or "miss the door". With -1 for a step, it dies
        before it makes its loop.
    """

    def __init__(self, rank: int, fates: list[tuple[int, int, str, float]]) -> None:
        life = int(os.environ.get("GRADIENTFLOW_RESTARTS", "0"))
        self._others_come = "OTHERS_COME" in os.environ
        self._dies = False
        self._last: int | None = None  # the step that it does not begin any more
        self._deaths = [step for _, step, what, _ in fates if what.startswith("die")]
        self._own = {
            step: (what, seconds)
            for each, step, what, seconds in fates
            if each == rank and life == (what == "die again")
        }

    def peek(self, step: int) -> str:
        """Return what is to be done in a step."""
        return self._own.get(step, ("", 0.0))[0]

    def before(self) -> None:
        """Do what is to be done before the loop is made."""
        if self.peek(-1):
            time.sleep(0.1)  # others make theirs
            die()

    def begin(self, step: int, training: Any) -> None:
        """Do what is to be done in a step."""
        if self._others_come:
            self._wait_for_newcomers(step, training.comm._door)
        if self._last is not None and step >= self._last:
            die()
        what, seconds = self._own.pop(step, ("", 0.0))
        if what == "fall behind":
            fall_behind(training)
        elif what == "miss the door":
            miss_the_door()
        elif what == "die after":
            self._dies = True
        elif what and seconds:
            threading.Timer(seconds, die).start()
            self._last = step + 5
        elif what:
            die()

    def end(self) -> None:
        """Do what is to be done after the step."""
        if self._dies:
            die()

    def _wait_for_newcomers(self, step: int, door: Any) -> None:
        """Wait until all have knocked that were to die some steps before."""
        number = sum(each + 2 <= step for each in self._deaths)
        while number and door is not None and door._look(f"{door._prefix}/{number}") is None:
            time.sleep(0.02)
        time.sleep(0.03)  # in some steps rank 0 looks who has


def fall_behind(training: Any) -> None:
    """Act as if the exchange under way failed on this rank, though the others end it."""
    synchronizer = training.synchronizer
    if isinstance(synchronizer, ArraySynchronizer):  # in its last call
        last = synchronizer._exchange_status

        def failing_last(kind: str) -> NoReturn:
            last(kind)
            raise PeerError("not heard of others")

        synchronizer._exchange_status = failing_last
        return
    wait = synchronizer.wait

    def failing(stream: Any = None) -> NoReturn:
        wait(stream)
        raise PeerError("not heard of others")

    synchronizer.wait = failing  # type: ignore[method-assign]
    synchronizer.settle = lambda: None  # type: ignore[method-assign]  # residuals are as it would leave them


def miss_the_door() -> None:
    """Act as if the next call in which ranks let others in failed on this rank, though the others have ended it."""
    barrier, calls = gf.Communicator.barrier, itertools.count(1)

    def failing(self: Any) -> None:
        barrier(self)
        if next(calls) == 1:
            raise PeerError("not heard of others")

    gf.Communicator.barrier = failing  # type: ignore[method-assign]


def train(comm: gf.Communicator, strategy: str, fates: Fates, *dtypes: str) -> dict[str, Any]:
    """Train. Return weights, residuals, and who took part in which step."""
    weights = [np.zeros(shape, dtype) for shape, dtype in zip(SHAPES, dtypes, strict=True)]
    fates.before()
    training = gf.training.ArrayLoop(comm, weights, strategy, on_failure="continue", min_ranks=1)
    optimizer = gf.optimizers.SGD(training, weights, lr=2 * RATE, momentum=1.0)
    assert training.comm is comm
    if comm.recovered_from is not None:
        try:
            training.finish()
        except ArgumentError:  # before its first step
            pass
        else:
            sys.exit("a newcomer has finished the training of others")
    roll = Roll(training, comm)
    for step in training.steps(STEPS):
        now = roll.begin(step)
        if step == 0:
            optimizer.lr = RATE  # newcomers get it from the others
        fates.begin(step, training)
        everything = gradient(step, now.rank, now.size)
        for index, place in enumerate(training.gradients):
            own, everything = np.split(everything, [place.size])
            place[...] = own.reshape(place.shape)
            training.ready(index)
        training.wait()
        optimizer.step()
        roll.end(step)
        fates.end()
    residuals = training.synchronizer.report().residuals
    found = {
        "weights": np.concatenate([each.ravel() for each in weights]),
        "residuals": np.concatenate([np.zeros(0), *(each.ravel() for each in residuals)]),
        "name": roll.name,
        "took_part": roll.took_part,
        "changes": roll.changes,
    }
    training.close()
    return found


def main(train: Callable[..., dict[str, Any]]) -> None:
    """Do what the arguments say: the folder for what is left, strategy, what happens to which rank, and dtypes."""
    folder, strategy, fates = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    comm = gf.join()
    rank = int(os.environ.get("GRADIENTFLOW_RANK", comm.rank))
    found = train(comm, strategy, Fates(rank, fates), *sys.argv[4:])
    (folder / found["name"]).write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(train)
