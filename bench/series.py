"""Timing contestants as planned: warm up, find out how many iterations fit, take all series, check after each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .measure import Course, Samples, fitting_iterations, slowest, together
from .results import Times

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator

_PROCESSOR_SHARE = 4  # one in so many iterations is repeated to take processor time


def take_series(
    comm: Communicator,
    course: Course,
    iterations: int | None,
    seconds: float,
    check: Callable[[int], None],
    warm_up: int = 3,
    launches: Course | None = None,
) -> list[Times]:
    """Take all series of a course; all ranks together.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    course : Course
        What to time.
    iterations : int or None
        Timed calls of each contestant; None for as many as fit in `seconds`.
    seconds : float
        The time to spend, roughly.
    check : callable
        Told after each series of wall times which iteration the buffers now hold the results of.
    warm_up : int
        Rounds to warm up, and as many of each kind to find out how many iterations fit.
    launches : Course, optional
        The same contestants on a device, with calls that nobody waits for; taken in addition.

    Returns
    -------
    list of Times
        Of each contestant; on rank 0 those of all ranks, on the others their own.
    """
    course.run(warm_up, with_refill=True)
    start = time.perf_counter()
    course.run(warm_up, with_refill=False)
    course.run(warm_up, with_refill=True)
    seconds_per_round = max(comm.mpi.allgather((time.perf_counter() - start) / warm_up))
    iterations = iterations or fitting_iterations(seconds, seconds_per_round)
    processor = course.run(-(-iterations // _PROCESSOR_SHARE), with_refill=False, clock=time.process_time_ns)
    series = []
    for with_refill in (False, True):
        series.append(_on_root(comm, course.run(iterations, with_refill=with_refill), slowest))
        check(iterations - 1)
    series.append(_on_root(comm, processor, together))
    if launches is not None:
        series.append(_on_root(comm, launches.run(iterations, with_refill=False), slowest))
    return [Times(*samples) for samples in zip(*series, strict=True)]


def sum_over_ranks(comm: Communicator, counts: Sequence[int]) -> list[int]:
    """Add up what each rank has counted, entry by entry."""
    return [sum(of_ranks) for of_ranks in zip(*comm.mpi.allgather(counts), strict=True)]


def _on_root(comm: Communicator, samples: Samples, merge: Callable[[list[Samples]], Samples]) -> Samples:
    """Merge the samples of all ranks on rank 0; the others keep their own."""
    samples_of_ranks = comm.mpi.gather(samples, 0)
    return samples if samples_of_ranks is None else merge(samples_of_ranks)
