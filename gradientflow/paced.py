"""Steps whose computation is a timed wait: gradients become final at the times of a `Computation`."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from .communicator import Communicator
from .model.computation import Computation
from .optimizers import SGD
from .strategies import as_strategy
from .training import ArrayLoop

_AT_FIRST = 6  # untimed steps after the warm-up
_SOON = 2e-4  # seconds before the end of a wait at which polling replaces sleeping


def step_seconds(
    comm: Communicator, strategy: str, computation: Computation, steps: int, blocks: int, factor: float = 1.0
) -> list[float]:
    """Return, for each block of steps, the seconds per step with a strategy, at the mean speed of the ranks.

    Collective. If ranks wait for each other in every step, all have the same speed.

    Parameters
    ----------
    comm : Communicator
        Ranks that take part.
    strategy : str
        The strategy.
    computation : Computation
        A step without communication.
    steps, blocks : int
        Number of steps in a block, and of blocks.
    factor : float
        Factor by which this rank computes longer.
    """
    own = computation.scaled(factor)
    random = np.random.default_rng(comm.rank)
    weights = [random.standard_normal(shape, np.float32) for shape in own.shapes]
    fresh = [random.standard_normal(shape, np.float32) for shape in own.shapes]
    training = ArrayLoop(comm, weights, strategy)
    optimizer: SGD | None = None
    if training.strategy.gradients != "mean" or training.strategy.step != "any":
        momentum = 0.9 if training.strategy.profile().takes_momentum else 0.0
        optimizer = SGD(training, weights, lr=1e-3, momentum=momentum)
    seconds = []
    warmup = as_strategy(strategy).profile().warmup
    for _ in range(warmup + _AT_FIRST):
        _step(training, optimizer, fresh, own)
    comm.barrier()  # no barrier between blocks: it would stop ranks that the strategy lets run ahead
    for _ in range(blocks):
        begin = time.perf_counter()
        for _ in range(steps):
            _step(training, optimizer, fresh, own)
        seconds.append((time.perf_counter() - begin) / steps)
    found = 1 / np.array(seconds)
    comm.allreduce(found, "mean")
    training.finish()
    training.close()
    return [float(each) for each in 1 / found]


def times_of_steps(
    comm: Communicator, training: ArrayLoop, fresh: Sequence[object], computation: Computation, steps: int
) -> list[float]:
    """Return the seconds of each step of a strategy whose ranks wait for each other in every step. Collective.

    Parameters
    ----------
    comm : Communicator
        Ranks that take part.
    training : ArrayLoop
        Training loop with the strategy.
    fresh : sequence of arrays
        Gradients.
    computation : Computation
        A step without communication.
    steps : int
        Number of steps.
    """
    times = np.zeros(steps + 1)
    comm.barrier()
    times[0] = time.perf_counter()
    for index in range(steps):
        _step(training, None, fresh, computation)
        times[index + 1] = time.perf_counter()
    return [float(each) for each in np.diff(times)]


def _step(training: ArrayLoop, optimizer: SGD | None, fresh: Sequence[object], computation: Computation) -> None:
    begin = time.perf_counter()
    for index, moment in enumerate(computation.ready):
        training.gradients[index][...] = fresh[index]
        _wait_until(begin + moment)
        training.ready(index)
    rest = computation.seconds - computation.ready[-1]
    training.wait()
    if rest > 0:
        time.sleep(rest)
    if optimizer is not None:
        optimizer.step()
    else:
        training.stepped()


def _wait_until(moment: float) -> None:
    left = moment - time.perf_counter()
    if left > _SOON:
        time.sleep(left - _SOON)
    while time.perf_counter() < moment:
        time.sleep(0)


__all__ = ["step_seconds", "times_of_steps"]
