"""Parallel SGD: no communication until the end."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradientflow.communicator import Communicator
from gradientflow.model.computation import Computation
from gradientflow.model.costs import Costs
from gradientflow.model.traffic import Nothing, Traffic
from gradientflow.plain import Plain
from gradientflow.strategies.contract import Strategy
from gradientflow.strategies.exchange.nonfinite import first_nonfinite, nonfinite_error
from gradientflow.strategies.exchange.survivable import Meeting, SurvivableArrays
from gradientflow.strategies.layout import Layout


class PSGD(Strategy):
    """Training of every rank by itself; `finish` averages the weights (Zinkevich et al., 2010).

    A step costs the same as without communication.
    """

    name = "psgd"
    effect = "alone"
    gradients = "local"
    is_identity_on_one_rank = True
    not_taken = dict.fromkeys(
        ("wire", "density", "ratio", "fusion_threshold"), "nothing travels before finish(), which averages exactly"
    ) | {"period": "local_sgd(period=...) exchanges weights every few steps"}

    def bind(self, comm: Communicator, layout: Layout) -> SurvivableArrays:
        """Make the synchronizer, which averages weights in the end. Collective."""
        return PSGDSynchronizer(comm, layout, self)

    def traffic(self, computation: Computation, costs: Costs) -> Traffic:
        """Return traffic without messages."""
        return Nothing()


class PSGDSynchronizer(SurvivableArrays):
    gradient_source = "none"
    meets_in: Meeting = "end"

    def exchanges_weights(self) -> bool:
        """Return False: weights are exchanged in the end only."""
        return False

    def finish(self) -> None:
        """Average the weights. If a rank's weights are not finite, all ranks keep theirs and get the error.

        Weights change once all means are there: if a rank is lost before that, the survivors' weights are averaged
        again.
        """
        found = first_nonfinite(self.weights)
        places = self.comm.allgather(np.array([-1 if found is None else found]), label="weights that are not finite")
        for rank, place in enumerate(places.ravel().tolist()):
            if place >= 0:
                self._pending_error = nonfinite_error(
                    f"the value of {self.layout.names[place]}", rank, "no weight was changed"
                )
                return
        means = [
            self.comm.allreduce(weight.copy(), "mean", label=name)
            for name, weight in zip(self.layout.names, self.weights, strict=True)
        ]
        self.exchanges += 1
        for weight, mean in zip(self.weights, means, strict=True):
            weight[...] = mean

    # ---- ranks that are lost -------------------------------------------------------------------------------------

    def shared_state(self, with_arrays: bool) -> object:
        """Return the weights, which are the same once they have been averaged."""
        return {"names": self.layout.names, "weights": list(self.weights), "exchanges": self.exchanges}

    def catch_up(self, state: Plain, begins: bool) -> None:
        """Take the weights of a rank that has the mean."""
        self._take({"weights": self._in_order(state["weights"], state["names"])})
        self.exchanges = state["exchanges"]

    def take_over(self, other: Any) -> None:
        """Take the number of exchanges and the pending error of another synchronizer."""
        super().take_over(other)
        self.exchanges, self._pending_error = other.exchanges, other._pending_error


__all__ = ["PSGD"]
