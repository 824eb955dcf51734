"""Discrete-event simulation of a policy with workers of given speeds, run in the core."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from gradientflow._location import core
from gradientflow.arguments import checked_float, checked_list

from .parsing import as_policy
from .policy import Answer, RunningPolicy


class Event(NamedTuple):
    """A push or a departure, with the answer of the policy."""

    worker: int
    seconds: float
    kind: Literal["push", "departure"]
    answer: Answer


@dataclass(frozen=True)
class Simulation:
    """The result of a simulation.

    Attributes
    ----------
    pushes : list of int
        Number of pushes of each worker.
    computed : list of float
        Seconds that each worker spent in completed iterations.
    waited : list of float
        Seconds that each worker waited between pushes and permissions to proceed.
    staleness : list of int
        Number of times that a worker proceeded while 0, 1, 2, ... pushes ahead of the slowest active worker.
    barriers : list of float
        Times at which all active workers, at least two, proceeded together.
    seconds : float
        Time at which the simulation ended.
    events : list of Event
        All events, if `keep_events` was set.
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
        """Pushes per second, of all workers together."""
        return sum(self.pushes) / self.seconds if self.seconds else math.inf


def simulate(
    policy: object, durations: Sequence[object], *, until: float = math.inf, keep_events: bool = False
) -> Simulation:
    """Simulate workers whose iterations take the given times; all other work takes no time.

    All workers begin at time 0. After each push a worker waits until it may proceed; after its last wait it departs.

    Parameters
    ----------
    policy : Policy or str
        The policy, or its words.
    durations : sequence of sequences of float
        Seconds of each iteration, for each worker.
    until : float, optional
        Time at which to end the simulation, if workers are still running then.
    keep_events : bool, default False
        True to return the events with their answers.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If a duration is negative or not finite, if an answer of the policy is invalid, or if workers wait while no
        worker computes.
    """
    rows = [np.ascontiguousarray(row, dtype=np.float64) for row in checked_list("durations", durations, "sequences")]
    running = as_policy(policy).start(len(rows))
    found = core.simulate_policy(running, rows, checked_float("until", until), keep_events)
    events = [Event(*event) for event in found.pop("events")]
    return Simulation(events=events, **found)


def checked(running: object, workers: int) -> RunningPolicy:
    """Return a running policy wrapped as in a server, so that invalid events and answers raise."""
    policy: RunningPolicy = core.checked_policy(running, workers)
    return policy


__all__ = ["Event", "Simulation", "checked", "simulate"]
