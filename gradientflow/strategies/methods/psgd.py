"""Parallel SGD: no communication until the end."""

from __future__ import annotations

import math

import numpy as np

from gradientflow.communicator import Communicator
from gradientflow.strategies.contract import Strategy
from gradientflow.strategies.exchange.arrays import ArraySynchronizer
from gradientflow.strategies.exchange.nonfinite import first_nonfinite, nonfinite_error
from gradientflow.strategies.layout import Layout
from gradientflow.strategies.predict.exchange_model import ExchangeExplanation
from gradientflow.strategies.predict.explanation import Explanation, Subject


class PSGD(Strategy):
    """Every rank trains by itself; `finish` averages the weights (Zinkevich et al., 2010).

    A step costs the same as without communication.
    """

    name = "psgd"
    gradients = "local"
    is_identity_on_one_rank = True
    not_taken = dict.fromkeys(
        ("wire", "density", "ratio", "fusion_threshold"), "nothing travels before finish(), which averages exactly"
    ) | {"period": "local_sgd(period=...) exchanges weights every few steps"}

    def bind(self, comm: Communicator, layout: Layout) -> ArraySynchronizer:
        """Make the synchronizer, which averages weights in the end. Collective."""
        return PSGDSynchronizer(comm, layout, self)

    def _subject(self, parameters: int, dtype: str, device: str | int) -> Subject:
        return Subject(self.name, parameters, "float32", None, "auto")

    def _predicted(self, comm: Communicator, found: Explanation) -> ExchangeExplanation:
        """Predict a step of computation alone."""
        return ExchangeExplanation.of(found, exchange_seconds=0.0, period=math.inf, parts=0, hidden_steps=math.inf)


class PSGDSynchronizer(ArraySynchronizer):
    gradient_source = "none"

    def exchanges_weights(self) -> bool:
        """Return False: weights are exchanged in the end only."""
        return False

    def finish(self) -> None:
        """Average the weights. If those of a rank are not finite, all ranks keep theirs and get the error."""
        found = first_nonfinite(self.weights)
        places = self.comm.allgather(np.array([-1 if found is None else found]), label="weights that are not finite")
        for rank, place in enumerate(places.ravel().tolist()):
            if place >= 0:
                self._pending_error = nonfinite_error(
                    f"the value of {self.layout.names[place]}", rank, "no weight was changed"
                )
                return
        for name, weight in zip(self.layout.names, self.weights, strict=True):
            self.comm.allreduce(weight, "mean", label=name)


__all__ = ["PSGD"]
