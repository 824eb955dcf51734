"""Discrete-event simulation of a policy with workers of given speeds; it runs in the core."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from gradientflow._location import load_core
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
        Seconds that each worker waited, from a push until it went on.
    staleness : list of int
        How often a worker went on 0, 1, 2, ... pushes ahead of the slowest one that took part.
    barriers : list of float
        Times at which all workers that took part, at least two, went on together.
    seconds : float
        The time at which the simulation ended.
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
    policy: Any, durations: Sequence[Any], *, until: float = math.inf, keep_events: bool = False
) -> Simulation:
    """Simulate workers whose iterations take given times; everything else takes none.

    All begin at time 0. After a push a worker waits until it may go on; after its last one it departs then.

    Parameters
    ----------
    policy : Policy or str
        The policy, or its words.
    durations : sequence of sequences of float
        For each worker, the seconds that each of its iterations takes.
    until : float, optional
        The time at which to end, if workers are still running then.
    keep_events : bool, default False
        Whether to return the events with their answers.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If a duration is negative or not finite, if an answer of the policy is invalid, or if workers wait and none
        computes.
    """
    rows = [np.ascontiguousarray(row, dtype=np.float64) for row in checked_list("durations", durations, "sequences")]
    running = as_policy(policy).start(len(rows))
    found = load_core().simulate_policy(running, rows, checked_float("until", until), keep_events)
    events = [Event(*event) for event in found.pop("events")]
    return Simulation(events=events, **found)


def checked(running: Any, workers: int) -> RunningPolicy:
    """Wrap a running policy as a server does: invalid events and answers are refused."""
    policy: RunningPolicy = load_core().checked_policy(running, workers)
    return policy


__all__ = ["Event", "Simulation", "checked", "simulate"]
