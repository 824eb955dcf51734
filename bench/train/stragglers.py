"""Workers of different speeds: ranks sleep in each step until its random computing time has passed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from gradientflow.policies import Stragglers

from ..core.objects import from_all

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator

_ROOM = 1.5  # the fastest worker's step, with sleep, over the longest without: all ranks sleep, and cores suffice
_MEASURED = 10
_AT_FIRST = 3  # number of steps that are not measured


class Pace:
    """The computing times of this rank's steps.

    Parameters
    ----------
    model : Stragglers
        The model; its durations are relative to the fastest worker.
    rank, run : int
        This rank, and the number of the run; random numbers depend on both.
    step_seconds : float
        Duration of the fastest worker's step.
    backward_seconds : float
        Duration of the part of a step after the sleep.
    """

    def __init__(self, model: Stragglers, rank: int, run: int, step_seconds: float, backward_seconds: float) -> None:
        self._model, self._rank, self._run = model, rank, run
        self.step_seconds, self._backward_seconds = step_seconds, backward_seconds
        self._durations = np.empty(0)

    @property
    def mean_seconds(self) -> float:
        """The mean computing time of the first steps."""
        return float(np.mean(self._model.durations(self._rank, 100, run=self._run))) * self.step_seconds

    def seconds(self, step: int) -> float:
        """Return the computing time of a step."""
        if step >= len(self._durations):
            self._durations = self._model.durations(self._rank, max(2 * step, 1000), run=self._run)
        return float(self._durations[step]) * self.step_seconds

    def hold(self, began: int, before_backward: bool, step: int) -> None:
        """Sleep before the backward pass, until only the time for it is left, and after it for the rest of the step.

        Parameters
        ----------
        began : int
            The start of the step, by `time.perf_counter_ns`.
        before_backward : bool
            True if the backward pass is still to come.
        step : int
            The number of the step.
        """
        end = self.seconds(step) - self._backward_seconds * before_backward
        left = end - (time.perf_counter_ns() - began) / 1e9
        if left > 0:
            time.sleep(left)


def measure_pace(
    comm: Communicator, step: Callable[[], tuple[int, int, int]], step_seconds: float | None
) -> tuple[float, float]:
    """Measure steps without communication on all ranks at once. Collective.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    step : callable
        Makes a step, and returns the nanoseconds of its parts.
    step_seconds : float or None
        The step of the fastest worker, if given.

    Returns
    -------
    tuple of float
        Seconds of the fastest worker's step, equal on all ranks, and of this rank's backward pass.
    """
    times = []
    for _ in range(_AT_FIRST + _MEASURED):
        comm.barrier()
        times.append(step())
    measured = np.array(times[_AT_FIRST:]) / 1e9
    slowest = max(from_all(comm, float(np.median(measured.sum(axis=1)))))
    return step_seconds or _ROOM * slowest, float(np.median(measured[:, 1]))


__all__ = ["Pace", "measure_pace"]
