"""What happens to the ranks of survival.py: they die, or hear nothing of what the others have ended."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import paths  # noqa: F401

import gradientflow as gf
from gradientflow.admission import Admission
from gradientflow.errors import PeerError
from gradientflow.strategies.exchange.arrays import ArraySynchronizer
from gradientflow.strategies.exchange.periodic import PeriodicSynchronizer
from gradientflow.strategies.methods.hpsgd import HPSGDSynchronizer
from gradientflow.training.survival import Survival

from survive.log import wrap

Fate = tuple[int, int, str, float]  # the rank at the beginning of the job, the step, what happens, and seconds


def die() -> None:
    """Die at once."""
    os.kill(os.getpid(), signal.SIGKILL)


class Fates:
    """What happens to this process in which step of which training, and what it waits for.

    - "die": so many seconds after the begin of the step, some steps later at the latest; in step -1, before the loop is
      made;
    - "die after": after the step;
    - "miss": the exchange under way, or that after the step, fails on this rank, though the others end it;
    - "die in": it dies instead;
    - "die at the end": in the exchange at the end of training, whose step is any;
    - "miss the end": the last mean of psgd fails on this rank;
    - "die in recovery": it dies while it recovers;
    - "miss the admission": the next call in which ranks let others in fails on this rank, whenever that is.

    Parameters
    ----------
    place : int
        The rank of this process when it was first started.
    life : int
        How often it was started again. Each death that it has had ends one of its lives.
    trainings : sequence of lists of Fate
        Of all ranks.
    folder : Path
        Where ranks see where the others are.
    """

    def __init__(self, place: int, life: int, trainings: Sequence[Sequence[Fate]], folder: Path) -> None:
        own = [(number, *fate) for number, fates in enumerate(trainings) for fate in fates if fate[0] == place]
        ends = [index + 1 for index, fate in enumerate(own) if fate[3].startswith("die")]
        begin, end = [0, *ends][life], [*ends, None][life]
        self.first = own[begin - 1][0] if begin else 0  # training
        self._own = {(number, step): (what, seconds) for number, _, step, what, seconds in own[begin:end]}
        self._deaths = [
            (number, step) for number, fates in enumerate(trainings) for _, step, what, _ in fates if "die" in what
        ]
        self._place, self._folder = place, folder
        self._others_come = "OTHERS_COME" in os.environ
        self._size = int(os.environ.get("GRADIENTFLOW_SIZE", "0"))
        self._last: int | None = None  # the step that it does not begin any more
        self._dies = False

    def before(self, training: int) -> None:
        """Do what is to be done before the loop is made."""
        if (training, -1) in self._own:
            time.sleep(0.1)  # others make theirs
            die()

    def begin(self, training: int, step: int, loop: Any) -> None:
        """Do what is to be done in a step."""
        if self._others_come:
            self._meet_where_some_die(training, step)
            self._wait_for_newcomers(training, step, loop.comm)
        if self._last is not None and step >= self._last:
            die()
        due = [each for each in self._own if each[0] == training and each[1] <= step]  # it may have come later
        what, seconds = self._own.pop(due[0]) if due else ("", 0.0)
        if what == "die" and seconds:
            threading.Timer(seconds, die).start()
            self._last = step + 5
        elif what == "die":
            die()
        elif what in ("miss", "die in"):
            _fail(loop.synchronizer, what)
        elif what == "miss the admission":
            _miss_the_admission()
        elif what == "die in recovery":
            _die_before(Survival, "catching_up")
        elif what == "die at the end":
            kind = type(loop.synchronizer)
            _die_before(kind, "_drain" if kind is HPSGDSynchronizer else "finish")
        elif what == "miss the end":
            _miss_the_last_mean(type(loop.synchronizer))
        self._dies = what == "die after"

    def end(self) -> None:
        """Do what is to be done after the step."""
        if self._dies:
            die()

    def _meet_where_some_die(self, training: int, step: int) -> None:
        """Wait until all have come to a step in which some are to die: ranks may be at other steps."""
        if (training, step) in self._deaths:
            (self._folder / f"at {training} {step} {self._place}").touch()
            while len(list(self._folder.glob(f"at {training} {step} *"))) < self._size:
                time.sleep(0.005)

    def _wait_for_newcomers(self, training: int, step: int, comm: gf.Communicator) -> None:
        """Wait until all have asked that were to die some steps before: they are let in at the next occasion."""
        number, admission = (
            sum((number, each + 2) <= (training, step) for number, each in self._deaths),
            comm._admission,
        )
        while number and admission is not None and admission._look(f"{admission._prefix}/{number}") is None:
            time.sleep(0.02)
        if number and admission is not None and comm.size < self._size:
            admission._next_look = 0.0


def _fail(synchronizer: Any, what: str) -> None:
    """Let an exchange fail here that the others end, or die when it has ended."""

    def fail(seconds: float = 0.05) -> NoReturn:
        time.sleep(seconds)
        if what == "die in":
            die()
        raise PeerError("not heard of others")

    if isinstance(synchronizer, PeriodicSynchronizer):
        fail_in_exchange(fail)
    elif isinstance(synchronizer, HPSGDSynchronizer):
        *others, last = synchronizer._handles
        synchronizer._handles = (*others, _Missed(last, fail))  # type: ignore[assignment]
    elif isinstance(synchronizer, ArraySynchronizer):  # in its last call
        exchange = synchronizer._exchange_status

        def failing_last(kind: Any) -> NoReturn:
            exchange(kind)
            fail(0.0)

        synchronizer._exchange_status = failing_last  # type: ignore[method-assign]
    else:
        wait = synchronizer.wait

        def failing(stream: Any = None) -> NoReturn:
            wait(stream)
            fail(0.0)

        synchronizer.wait, synchronizer.commit = failing, lambda: None  # residuals are as it would leave them


def fail_in_exchange(fail: Any) -> None:
    """Let the next exchange of weights fail on this rank, though the others end it."""
    end_exchange = PeriodicSynchronizer.end_exchange

    def failing(self: Any, fragment: int) -> None:
        end_exchange(self, fragment)
        PeriodicSynchronizer.end_exchange = end_exchange  # type: ignore[method-assign]
        fail()

    PeriodicSynchronizer.end_exchange = failing  # type: ignore[method-assign]


class _Missed:
    """A handle of a call that ends for others, but not here."""

    def __init__(self, handle: Any, fail: Any) -> None:
        self._handle, self._fail = handle, fail

    @property
    def done(self) -> bool:
        return bool(self._handle.done)

    def wait(self) -> None:
        self._handle.wait()
        self._fail()


def _miss_the_admission() -> None:
    barrier, calls = gf.Communicator.barrier, itertools.count(1)

    def failing(self: Any) -> None:
        barrier(self)
        if next(calls) == 1:
            raise PeerError("not heard of others")

    def opening(original: Any, self: Any, comm: Any, *arguments: Any) -> Any:
        comm.barrier = partial(failing, comm)
        try:
            return original(self, comm, *arguments)
        finally:
            comm.__dict__.pop("barrier", None)

    wrap(Admission, "admit_pending", opening)


def _miss_the_last_mean(kind: Any) -> None:
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

        self.comm.allreduce = missing
        finish(self)

    kind.finish = failing


def _die_before(kind: Any, name: str) -> None:
    """Die when this is called, a little later."""

    def dying(original: Any, self: Any, *arguments: Any) -> None:
        time.sleep(random.random() * 0.01)
        die()

    wrap(kind, name, dying)
