"""Predicted steps of strategies on a cluster whose ranks differ in speed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gradientflow.arguments import checked_int
from gradientflow.policies import Stragglers

from .computation import Computation
from .costs import Costs
from .traffic import Step, Traffic


class SendsTraffic(Protocol):
    """The interface of a strategy that predictions need."""

    def traffic(self, computation: Computation, costs: Costs) -> Traffic:
        """Return the traffic of steps."""


@dataclass(frozen=True)
class Prediction:
    """A step of a strategy on a cluster.

    Attributes
    ----------
    strategy : str
        The strategy in words.
    ranks : int
        The ranks of the cluster.
    step : Step
        The mean step.
    alone_seconds : float
        The mean step of the same ranks without communication, in which no rank waits.
    memory : float
        Bytes that a rank needs beside weights, gradients and the state of the optimizer.
    """

    strategy: str
    ranks: int
    step: Step
    alone_seconds: float
    memory: float

    @property
    def efficiency(self) -> float:
        """The speed as a share of the speed without communication."""
        return self.alone_seconds / self.step.seconds if self.step.seconds else 1.0


def predict(
    strategy: SendsTraffic,
    computation: Computation,
    costs: Costs,
    stragglers: Stragglers | None = None,
    steps: int = 100,
) -> Prediction:
    """Predict the mean step of a strategy.

    Parameters
    ----------
    strategy : Strategy
        The strategy.
    computation : Computation
        A step of the fastest rank without communication.
    costs : Costs
        Costs of calls on the cluster.
    stragglers : Stragglers, optional
        Slowdowns of the ranks; by default all ranks are equally fast.
    steps : int
        Number of steps over which random durations are drawn.
    """
    durations = _durations(stragglers, costs.cluster.ranks, checked_int("steps", steps, 1))
    alone = computation.seconds * _factor(durations, math.inf)
    traffic = strategy.traffic(computation, costs)
    step = traffic.step(computation.scaled(_factor(durations, traffic.together)), costs)
    return Prediction(str(strategy), costs.cluster.ranks, step, alone, traffic.memory)


def _durations(stragglers: Stragglers | None, ranks: int, steps: int) -> npt.NDArray[np.float64]:
    """Return the durations of steps, in a row for each rank."""
    if stragglers is None:
        return np.ones((1, 1))
    return np.stack([stragglers.durations(rank, steps) for rank in range(ranks)])


def _factor(durations: npt.NDArray[np.float64], together: float) -> float:
    """Return the mean duration of a step if ranks wait for each other after every `together` steps."""
    if math.isinf(together):  # each rank has its own speed: average the speeds
        return float(1 / np.mean(1 / durations.mean(axis=1)))
    steps = durations.shape[1]
    length = max(1, min(steps, round(together)))
    parts: Sequence[npt.NDArray[np.float64]] = np.split(durations, range(length, steps, length), axis=1)
    return float(sum(part.sum(axis=1).max() for part in parts) / steps)


__all__ = ["Prediction", "SendsTraffic", "predict"]
