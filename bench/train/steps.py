"""Training steps, and the turns in which contestants make them."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..core.objects import from_all
from ..core.traffic import Traffic
from .contestants import Contestant
from .data import SampleOrder
from .entry import SINGLE, SINGLE_ACCUMULATED, Entry
from .plan import TrainPlan
from .stragglers import Pace
from .tasks import Task
from .turns import Turn

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator

    Shards = Sequence[tuple[Tensor, Tensor]]

_UNTIMED_STEPS = 1  # number of untimed steps of each turn, which begins with cold caches


def train_step(
    contestant: Contestant, task: Task, shards: Shards, hold: Callable[[int, bool], None] | None = None
) -> tuple[int, int, int]:
    """Make one step of training.

    Parameters
    ----------
    contestant : Contestant
        The contestant.
    task : Task
        Its task.
    shards : sequence of (inputs, targets)
        Equal parts of the batch, whose gradients are averaged in turn.
    hold : callable, optional
        Called before and after the last backward pass, with the start time of the step, and True if before the pass.

    Returns
    -------
    tuple of int
        Nanoseconds of the forward pass, the backward pass and the update.
    """
    clock = time.perf_counter_ns
    forward = backward = 0
    began = start = clock()
    contestant.begin()
    for number, (inputs, targets) in enumerate(shards, 1):
        loss: Any = task.loss(contestant.module(inputs), targets)
        if len(shards) > 1:
            loss = loss / len(shards)
        if hold is not None and number == len(shards):
            hold(began, True)
        middle = clock()
        with contestant.backward():
            loss.backward()
        if hold is not None and number == len(shards):
            hold(began, False)
        end = clock()
        forward += middle - start
        backward += end - middle
        start = end
    contestant.optimizer.step()
    return forward, backward, clock() - start


class TurnTaker:
    """The turns of all contestants from one seed."""

    def __init__(
        self, comm: Communicator, plan: TrainPlan, task: Task, seed: int, traffic: Traffic, pace: Pace | None
    ) -> None:
        self._comm, self._task, self._traffic, self._pace = comm, task, traffic, pace
        self._slowest = max(from_all(comm, 0.0 if pace is None else pace.mean_seconds))
        self._order = SampleOrder(len(task.data.inputs), plan.batch * comm.size, seed)
        self._made: dict[Entry, int] = {}  # steps so far
        self._timing = plan.epochs is None
        self._untimed_at_first = plan.untimed_steps
        self.turns = plan.turns if plan.epochs is None else [self._order.steps_per_epoch] * plan.epochs

    def is_free(self, contestant: Contestant) -> bool:
        """Tell if each rank makes as many steps as fit into a turn."""
        return self._pace is not None and contestant.entry.paced_by_policy

    def turn(self, contestant: Contestant, timed: int) -> Turn:
        """Train for `timed` steps, or for about as long as the slowest rank takes for them. Collective."""
        first = self._made.get(contestant.entry, 0)
        untimed = (_UNTIMED_STEPS if first else self._untimed_at_first) if self._timing else 0
        wanted = untimed + timed
        if first and contestant.entry.profile.period > 1:
            untimed = 0  # a period is timed without gaps, or its exchange would have the wrong weight
        pace = None if contestant.entry.contestant in (SINGLE, SINGLE_ACCUMULATED) else self._pace
        is_free = self.is_free(contestant)
        finishes = is_free or not contestant.entry.keeps_step
        times: list[tuple[int, int, int]] = []
        bookkeeping, waited, before, reported = [], [], 0, []
        self._comm.barrier()
        at_first = self._traffic.sent()
        end = time.perf_counter() + wanted * self._slowest
        gc.disable()
        try:
            while time.perf_counter() < end if is_free else len(times) < wanted:
                step = first + len(times)
                shards = self._shards(contestant.entry, step)
                if pace is None and contestant.entry.keeps_step:
                    self._comm.barrier()  # not with stragglers, nor if the strategy may wait for later steps
                if len(times) == untimed:
                    before = self._traffic.sent()
                if not shards:
                    times.append((0, 0, 0))
                elif pace is None:
                    times.append(train_step(contestant, self._task, shards))
                else:
                    times.append(train_step(contestant, self._task, shards, partial(pace.hold, step=step)))
                    waited.append(sum(times[-1]) / 1e9 - pace.seconds(step))
                reported.append(contestant.bytes_reported())
                bookkeeping.append((contestant.bookkeeping_seconds() if shards else None) or np.nan)
            finishing = time.perf_counter_ns()
            if finishes:
                contestant.finish()  # otherwise ranks would wait for ranks that have made their last step
            finishing = time.perf_counter_ns() - finishing
            self._comm.barrier()
            sent_in_all: int | None = self._traffic.sent() - at_first
            sent = self._traffic.sent() - before
        finally:
            gc.enable()
        known = [each for each in reported if each is not None]  # unknown in the first step, before all is bound
        if not self._traffic.is_known:
            sent_in_all = round(len(reported) * sum(known) / len(known)) if known else None
        self._made[contestant.entry] = first + len(times)
        untimed = min(untimed, len(times) - 1)
        known = [each for each in reported[untimed:] if each is not None]
        return Turn(
            np.array(times[untimed:], np.int64).reshape(-1, 3),
            np.array(bookkeeping[untimed:]),
            len(times),
            (sum(map(sum, times)) + finishing * finishes) / 1e9,
            sent,
            sum(known) / len(known) if known else None,
            sum(waited[untimed:]) if waited else None,
            sent_in_all,
        )

    def _shards(self, entry: Entry, step: int) -> Shards:
        """Give the samples of this rank in a step; none if another rank trains on all."""
        rows, comm = self._order.rows(step), self._comm
        if entry.contestant not in (SINGLE, SINGLE_ACCUMULATED):
            return [self._task.samples(own_rows(rows, comm))]
        if comm.rank != 0:
            return []
        parts = [rows] if entry.contestant == SINGLE else np.split(rows, comm.size)
        return [self._task.samples(part) for part in parts]


def own_rows(rows: NDArray[np.int64], comm: Communicator) -> NDArray[np.int64]:
    """Give this rank's part of the samples of a step."""
    return np.split(rows, comm.size)[comm.rank]
