"""The loop for arrays as rank programs use it: gradients, a training, and its steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gradientflow import Communicator
from gradientflow.optimizers import SGD
from gradientflow.training import ArrayLoop


def whole_numbers(shapes: Sequence[tuple[int, ...]], rank: int, step: int, factor: int = 1) -> list[Any]:
    """Draw gradients whose sums are exact in any order; with a factor of the number of ranks, their means too."""
    random = np.random.default_rng([rank, step])
    return [factor * random.integers(-9, 10, shape).astype(np.float32) for shape in shapes]


@contextmanager
def array_loop(
    comm: Communicator,
    strategy: Any,
    dtype: Any = np.float32,
    *,
    shapes: Sequence[tuple[int, ...]],
    start: float = 0.0,
    lr: float = 1.0,
    momentum: float = 0.0,
    **options: Any,
) -> Iterator[tuple[Any, SGD]]:
    """Give a training and its optimizer."""
    with ArrayLoop(comm, [np.full(shape, start, dtype) for shape in shapes], strategy, **options) as training:
        yield training, SGD(training, training.weights, lr=lr, momentum=momentum)


def make_ready(training: ArrayLoop, gradients: Any = 1.0, order: Any = None) -> None:
    """Have gradients become final in some order; a number is all of them."""
    scale = training.loss_scale.value if training.loss_scale else 1.0
    for index in range(len(training.gradients)) if order is None else order:
        with np.errstate(over="ignore"):
            training.gradients[index][...] = scale * (gradients if np.isscalar(gradients) else gradients[index])
        training.ready(index)


def make_step(training: ArrayLoop, optimizer: Any, gradients: Any = 1.0, order: Any = None) -> Any:
    """Make a step, and return what wait() has."""
    make_ready(training, gradients, order)
    waited = training.wait()
    optimizer.step()
    return waited
