"""SGD on a parameter server: one strategy for each policy of `gradientflow.policies`, with the same name."""

from __future__ import annotations

import inspect
import math
from typing import Any, ClassVar

from gradientflow import policies
from gradientflow.strategies.exchange.served import ServedStrategy


class PolicyStrategy(ServedStrategy):
    """A strategy on a parameter server, which takes the arguments of its policy and of `ServedStrategy`.

    Attributes
    ----------
    kind : type
        The policy: the pushes that the servers apply together, and the workers that may proceed.
    """

    kind: ClassVar[type[policies.Policy]]

    def __init__(self, *arguments: object, **options: Any) -> None:
        known = inspect.signature(self.kind).parameters
        policy = self.kind(*arguments, **{name: options.pop(name) for name in [*options] if name in known})
        super().__init__(**options)
        vars(self).update(policy.settings)

    @classmethod
    def _own_parameters(cls, maker: type) -> list[inspect.Parameter]:
        own = super()._own_parameters(maker)
        if maker is PolicyStrategy and hasattr(cls, "kind"):
            return [*inspect.signature(cls.kind).parameters.values(), own[-1]]
        return own

    @property
    def policy(self) -> policies.Policy:
        """The policy of this name."""
        return self.kind(**{name: getattr(self, name) for name in inspect.signature(self.kind).parameters})


class SSGD(PolicyStrategy):
    """Synchronous SGD: each worker pushes its gradient, waits for the step of all workers, and pulls.

    The servers make the same steps as `Dense`. Two runs give the same bits.

    Parameters
    ----------
    servers, optimizer, wire, fusion_threshold
        As in `ServedStrategy`.
    """

    name = "ssgd"
    effect = "exact"
    kind = policies.BSP


class ASGD(PolicyStrategy):
    """Asynchronous SGD: no worker waits for another.

    Each worker pushes its gradient and pulls. The servers apply the gradient at once, alone and not divided by the
    number of workers. The staleness of a gradient is the number of pushes by other workers meanwhile, so a learning
    rate that suits synchronous SGD can be too high. Two runs differ.

    Parameters
    ----------
    servers, optimizer, wire, fusion_threshold
        As in `ServedStrategy`.
    """

    name = "asgd"
    kind = policies.ASP

    @property
    def steps_together(self) -> float:
        """As in `ServedStrategy`, for this policy."""
        return math.inf


class SSP(PolicyStrategy):
    """Stale synchronous SGD: workers are at most `staleness` steps apart, see `gradientflow.policies.SSP`.

    Parameters
    ----------
    staleness : int
        As in the policy.
    servers, optimizer, wire, fusion_threshold
        As in `ServedStrategy`.
    """

    name = "ssp"
    kind = policies.SSP
    staleness: int

    @property
    def steps_together(self) -> float:
        """As in `ServedStrategy`, for this policy."""
        return self.staleness + 1.0

    @classmethod
    def typical(cls, steps: int) -> SSP:
        """Return the strategy with a staleness that papers often use."""
        return cls(3)


class DSSP(PolicyStrategy):
    """Dynamic SSP: the fastest worker stops where it waits least, see `gradientflow.policies.DSSP`.

    Parameters
    ----------
    low, high, judged
        As in the policy.
    servers, optimizer, wire, fusion_threshold
        As in `ServedStrategy`.
    """

    name = "dssp"
    kind = policies.DSSP
    high: int

    @property
    def steps_together(self) -> float:
        """As in `ServedStrategy`, for this policy."""
        return self.high + 1.0

    @classmethod
    def typical(cls, steps: int) -> DSSP:
        """Return the strategy with the range of the paper."""
        return cls(3, 15)


class ElasticBSP(PolicyStrategy):
    """Barriers where the workers wait least, see `gradientflow.policies.ElasticBSP`.

    Parameters
    ----------
    lookahead : int, default 15
        As in the policy.
    servers, optimizer, wire, fusion_threshold
        As in `ServedStrategy`.
    """

    name = "elastic_bsp"
    kind = policies.ElasticBSP
    lookahead: int

    @property
    def steps_together(self) -> float:
        """As in `ServedStrategy`, for this policy."""
        return float(self.lookahead)


__all__ = ["ASGD", "DSSP", "SSGD", "SSP", "ElasticBSP", "PolicyStrategy"]
