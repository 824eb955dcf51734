"""What server 0 records: statistics of the workers, and the events of the policy."""

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
        How many of its pushes have come.
    waited : float
        Seconds from its pushes until it could go on, all together.
    staleness : dict of int to int
        How often it went on, by its number of pushes ahead of the slowest worker.
    """

    pushes: int
    waited: float
    staleness: dict[int, int]


@dataclass(frozen=True)
class Statistics:
    """Statistics so far, as server 0 knows them.

    Attributes
    ----------
    rounds : int
        How many rounds have been applied.
    barriers : int
        How often all workers could go on at once.
    ends : int
        How often all workers have finished.
    workers : tuple of WorkerStatistics
        By rank.
    """

    rounds: int
    barriers: int
    ends: int
    workers: tuple[WorkerStatistics, ...]


def statistics_of(record: Iterable[float], workers: int) -> Statistics:
    """Read the statistics from the numbers in which the core sends them."""
    numbers = iter(record)
    rounds, ends, barriers = (int(next(numbers)) for _ in range(3))
    found = []
    for _ in range(workers):
        pushes, waited, pairs = int(next(numbers)), next(numbers), int(next(numbers))
        staleness = {int(next(numbers)): int(next(numbers)) for _ in range(pairs)}
        found.append(WorkerStatistics(pushes, waited, staleness))
    return Statistics(rounds, barriers, ends, tuple(found))


def events_of(record: Iterable[float]) -> list[Event]:
    """Read the events of the policy, with its answers, from the numbers in which the core sends them."""
    numbers = iter(record)
    events = []
    for worker in numbers:
        seconds, departed, rounds = next(numbers), next(numbers), int(next(numbers))
        apply = [[int(next(numbers)) for _ in range(int(next(numbers)))] for _ in range(rounds)]
        go_on = [int(next(numbers)) for _ in range(int(next(numbers)))]
        events.append(Event(int(worker), seconds, "departure" if departed else "push", Answer(apply, go_on)))
    return events


__all__ = ["Statistics", "WorkerStatistics", "events_of", "statistics_of"]
