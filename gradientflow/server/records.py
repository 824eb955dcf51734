"""Records of server 0: statistics of the workers, and the events of the policy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gradientflow.policies import Answer, Event


@dataclass(frozen=True)
class WorkerStatistics:
    """Statistics of one worker.

    Attributes
    ----------
    pushes : int
        Number of pushes received.
    waited : float
        Total seconds between its pushes and the permissions to proceed.
    staleness : dict of int to int
        Number of times that the worker proceeded, by its number of pushes ahead of the slowest worker.
    """

    pushes: int
    waited: float
    staleness: dict[int, int]


@dataclass(frozen=True)
class Statistics:
    """Server 0's statistics so far.

    Attributes
    ----------
    rounds : int
        Number of rounds applied.
    barriers : int
        Number of times that all workers could proceed at once.
    ends : int
        Number of times that all workers have finished.
    workers : tuple of WorkerStatistics
        Statistics of each worker, by rank.
    """

    rounds: int
    barriers: int
    ends: int
    workers: tuple[WorkerStatistics, ...]


def statistics_of(record: Iterable[float], workers: int) -> Statistics:
    """Return the statistics encoded in the core's numbers."""
    numbers = iter(record)
    rounds, ends, barriers = (int(next(numbers)) for _ in range(3))
    found = []
    for _ in range(workers):
        pushes, waited, pairs = int(next(numbers)), next(numbers), int(next(numbers))
        staleness = {int(next(numbers)): int(next(numbers)) for _ in range(pairs)}
        found.append(WorkerStatistics(pushes, waited, staleness))
    return Statistics(rounds, barriers, ends, tuple(found))


def events_of(record: Iterable[float]) -> list[Event]:
    """Return the events of the policy, with its answers, encoded in the core's numbers."""
    numbers = iter(record)
    events = []
    for worker in numbers:
        seconds, departed, rounds = next(numbers), next(numbers), int(next(numbers))
        apply = [[int(next(numbers)) for _ in range(int(next(numbers)))] for _ in range(rounds)]
        release = [int(next(numbers)) for _ in range(int(next(numbers)))]
        events.append(Event(int(worker), seconds, "departure" if departed else "push", Answer(apply, release)))
    return events


__all__ = ["Statistics", "WorkerStatistics", "events_of", "statistics_of"]
