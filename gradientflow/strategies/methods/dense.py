"""Dense communication: all gradients in every iteration."""

from __future__ import annotations

from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError
from gradientflow.model.computation import Computation
from gradientflow.model.costs import Costs
from gradientflow.model.pooled import dense_traffic
from gradientflow.model.traffic import Traffic
from gradientflow.pools.gradient import GradientPool
from gradientflow.strategies.contract import Synchronizer
from gradientflow.strategies.exchange.pooled import CheckedPools, PoolStrategy, PoolSynchronizer
from gradientflow.strategies.exchange.shared import bind_shared
from gradientflow.strategies.layout import Layout
from gradientflow.strategies.update import Profile


class Dense(PoolStrategy):
    """Average of all gradients in every iteration: lazy allreduce (GradientFlow paper, sections 2.6 and 3.1).

    Parameters
    ----------
    fusion_threshold, wire, algorithm
        As in `gradientflow.GradientPool`.
    share : {"node"}, optional
        "node": the ranks of a node train on one copy of the weights, in memory of the host, see `Synchronizer.shared`.
        On a single node gradients are averaged in the step, not before it.
    nonfinite : {"raise"}, optional
        "raise": look at the averaged gradients, and raise `gradientflow.errors.NonFiniteError` on every rank if one is
        infinite or NaN. No weight has changed then. With a loss scale there is no error: the step is skipped, as it is
        without `nonfinite`.
    """

    name = "dense"
    effect = "exact"
    pool = GradientPool
    is_identity_on_one_rank = True

    def __init__(self, *, share: str | None = None, nonfinite: str | None = None, **options: object) -> None:
        super().__init__(**options)
        if share not in (None, "node"):
            raise ArgumentError(f"share is 'node' or None, not {share!r}")
        if nonfinite not in (None, "raise"):
            raise ArgumentError(f"nonfinite is 'raise' or None, not {nonfinite!r}")
        if share is not None and nonfinite is not None:
            message = "share='node' averages gradients in the step, and nonfinite='raise' looks at them before it"
            raise ArgumentError(f"{message}: leave one of them out")
        self.share = share
        self.nonfinite = nonfinite
        if nonfinite is not None:
            self.is_identity_on_one_rank = False
        self.is_plain_mean = share is None and nonfinite is None
        if share is not None:
            self.step = "core"

    def profile(self) -> Profile:
        """Return a lossless profile, unless `share` is set: gradients are then the rank's own until the step."""
        return Profile(is_lossless=self.share is None)

    def bind(self, comm: Communicator, layout: Layout) -> Synchronizer:
        """Make gradient pools, one for each dtype. Collective."""
        if self.share is not None:
            return bind_shared(comm, layout, self)
        return (PoolSynchronizer if self.nonfinite is None else CheckedPools)(comm, layout, self)

    def traffic(self, computation: Computation, costs: Costs) -> Traffic:
        """Return the allreduces of fused gradients."""
        return dense_traffic(computation, len(costs.cluster.nodes), self.fusion_threshold, self.wire, self.algorithm)

    def pool_options(self, tensors: int) -> dict[str, object]:
        """Return the fusion threshold of pools."""
        return {"fusion_threshold": self.fusion_threshold}


__all__ = ["Dense"]
