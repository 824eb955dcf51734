"""What a policy does with workers of given speeds, without workers: event by event, in the core."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from gradientflow._location import load_core
from gradientflow.arguments import number, sequence

from .policy import Answer, RunningPolicy
from .words import as_policy


class Event(NamedTuple):
    """A push or a departure, and what the policy answered."""

    worker: int
    seconds: float
    kind: Literal["push", "departure"]
    answer: Answer


@dataclass(frozen=True)
class Simulation:
    """What happened.

    Attributes
    ----------
    pushes : list of int
        Of each worker, as the next two.
    computed : list of float
        Seconds spent in iterations that have ended.
    waited : list of float
        Seconds from a push until the worker went on.
    staleness : list of int
        How often a worker went on 0, 1, 2, ... pushes ahead of the slowest one that took part.
    barriers : list of float
        When all workers that took part, at least two, went on together.
    seconds : float
        When it ended.
    events : list of Event
        All that the policy was told, if they were asked for.
    """

    pushes: list[int]
    computed: list[float]
    waited: list[float]
    staleness: list[int]
    barriers: list[float]
    seconds: float
    events: list[Event]

    @property
    def iterations_per_second(self) -> float:
        """Pushes of all workers in a second."""
        return sum(self.pushes) / self.seconds if self.seconds else math.inf


def simulate(policy: Any, lengths: Sequence[Any], *, until: float = math.inf, keep_events: bool = False) -> Simulation:
    """Run workers whose iterations take given times, and nothing else any time.

    All begin at 0. Each waits after its push until it may go on, and departs when it may after its last push.

    Parameters
    ----------
    policy : Policy or str
        As itself, or in words.
    lengths : sequence of sequences of float
        Of each worker, how many seconds its iterations compute.
    until : float, optional
        When to end, if some are still at it then.
    keep_events : bool, default False
        Whether to return what the policy was told, and its answers.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If a length is negative or not finite, if a policy answers what cannot be, or lets nobody go on.
    """
    rows = [np.ascontiguousarray(row, dtype=np.float64) for row in sequence("lengths", lengths, "sequences")]
    running = as_policy(policy).start(len(rows))
    found = load_core().simulate_policy(running, rows, number("until", until), keep_events)
    events = [Event(*event) for event in found.pop("events")]
    return Simulation(events=events, **found)


def checked(running: Any, workers: int) -> RunningPolicy:
    """Return a running policy as a server asks it: events and answers that cannot be are refused."""
    policy: RunningPolicy = load_core().checked_policy(running, workers)
    return policy


__all__ = ["Event", "Simulation", "checked", "simulate"]
