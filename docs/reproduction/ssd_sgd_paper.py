"""The speed-ups that the text of the SSD-SGD paper states, predicted: one is fitted, and the others are free."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gradientflow.model import Cluster, Costs, Link, computation_of, layers_of, predict
from gradientflow.strategies import as_strategy

_LATENCY = 20e-6  # seconds; what travels are megabytes
_PER_BYTE_OF_PASS = 1 / 300e9  # memory of these GPUs
_RATES: list[float] = np.geomspace(1e8, 7e9, 400).tolist()  # bytes a second: up to those of the link, 56 Gbit/s


class SpeedUp(NamedTuple):
    """SSD-SGD over SSGD, on 4 machines with a server and a worker of 4 GPUs each (section 4).

    Attributes
    ----------
    model : str
        The model.
    batch : int
        Images of a GPU in a step.
    delay : int
        Steps from one pull to the next.
    alone : float
        Images a second of one GPU: those of linear scaling (section 4.5), and, since this paper has none of AlexNet,
        those of the GradientFlow paper on the same GPU (section 2.3).
    paper : float
        The speed-up (sections 4.5 and 4.6).
    predicted : float
        That of the model.
    """

    model: str
    batch: int
    delay: int
    alone: float
    paper: float
    predicted: float = 0.0

    @property
    def error(self) -> float:
        """The predicted speed-up over that of the paper, less 1."""
        return self.predicted / self.paper - 1


FITTED = SpeedUp("resnet50", 32, 5, 3657.22 / 16, 1.723)
FREE = (
    SpeedUp("resnet50", 64, 2, 3682.12 / 16, 1.10),
    SpeedUp("resnet50", 64, 5, 3682.12 / 16, 1.098),
    SpeedUp("alexnet", 64, 5, 2900, 2.007),
    SpeedUp("alexnet", 32, 5, 2900, 1.796),
)


def predict_speed_ups() -> list[SpeedUp]:
    """Fit the rate of a machine to one speed-up, the first that is returned, and predict the others.

    With it SSD-SGD is as fast as linear scaling (section 4.5), so a step of SSGD takes that much longer than one alone.
    """
    seconds = FITTED.paper * FITTED.batch / FITTED.alone
    best = min(map(_costs, _RATES), key=lambda costs: abs(_seconds("ssgd", FITTED, costs) - seconds))
    return [
        row._replace(predicted=_seconds("ssgd", row, best) / _seconds(f"ssd_sgd(k={row.delay}, warmup=60)", row, best))
        for row in (FITTED, *FREE)
    ]


def _costs(rate: float) -> Costs:
    link = replace(Link(), latency=_LATENCY, per_byte=1 / rate, per_byte_of_pass=_PER_BYTE_OF_PASS)
    return Costs(Cluster((1,) * 4, "tcp"), link)


def _seconds(strategy: str, row: SpeedUp, costs: Costs) -> float:
    computation = computation_of(layers_of(row.model), row.batch / row.alone)
    return predict(as_strategy(strategy), computation, costs).step.seconds


__all__ = ["FITTED", "FREE", "SpeedUp", "predict_speed_ups"]
