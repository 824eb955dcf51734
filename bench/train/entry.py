"""The description of a contestant of ``gradientflow bench train``, as in results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradientflow.strategies import SSGD, Strategy
from gradientflow.strategies.parsing import BY_NAME
from gradientflow.strategies.update import Profile

from ..core.plan import WIRES

NONE = "none"  # every rank trains alone: the cost of a step without communication
DDP_ALONE = "ddp-alone"  # the same in DistributedDataParallel: the cost of its buckets
SINGLE = "single"  # one process trains on the batches of all ranks
SINGLE_ACCUMULATED = "single-accumulated"  # the same, one rank's batch after the other: differs by rounding only


@dataclass(frozen=True)
class Optimizer:
    """The optimizer that makes the steps, or whose settings the servers use: SGD.

    Attributes
    ----------
    learning_rate : float
        Above 0.
    momentum : float
        0 for none.
    """

    learning_rate: float
    momentum: float

    def __str__(self) -> str:
        """Give its words."""
        momentum = f", momentum={self.momentum:g}" if self.momentum else ""
        return f"SGD(lr={self.learning_rate:g}{momentum})"


@dataclass(frozen=True)
class Entry:
    """The description of a contestant, as in results.

    Attributes
    ----------
    contestant : str
        One of `CONTESTANTS`, or a reference.
    strategy : Strategy or None
        Of `gradientflow` only.
    approximation_rank : int or None
        Of PowerSGD: the rank of the matrices that are sent.
    overlaps : bool
        Of `gradientflow`: whether gradients are sent during the backward pass, not only after it.
    precision : str
        The dtype of the model. With 16 bits gradients have 16 bits too, and the update uses float32 master weights.
    fused : bool
        Of `gradientflow`: whether the core makes the step, where the strategy permits both.
    survives : bool
        Of `gradientflow`: whether it goes on when ranks die, and looks before each step for those that come.
    transport : str or None
        Of `gradientflow`: what messages travel over, where that is compared.
    views : bool
        Of DDP: whether gradients lie in the buckets (``gradient_as_bucket_view``).
    """

    contestant: str
    strategy: Strategy | None = None
    approximation_rank: int | None = None
    overlaps: bool = True
    precision: str = "float32"
    fused: bool = False
    survives: bool = False
    transport: str | None = None
    views: bool = False

    @property
    def is_reference(self) -> bool:
        """Whether it is a reference, in which the ranks do not communicate."""
        return self.contestant in (NONE, DDP_ALONE, SINGLE, SINGLE_ACCUMULATED)

    @property
    def needs_ddp(self) -> bool:
        """Whether it is PyTorch's DistributedDataParallel."""
        return self.contestant.startswith("ddp-")

    @property
    def is_users(self) -> bool:
        """Whether it is a strategy of the user's own."""
        return self.strategy is not None and type(self.strategy) not in BY_NAME.values()

    @property
    def needs_own_rate(self) -> bool:
        """Whether it does not step by the mean of all gradients, so that another learning rate may suit it."""
        if self.strategy is None:
            return self.approximation_rank is not None
        return not self.strategy.is_identity_on_one_rank and not isinstance(self.strategy, SSGD)

    @property
    def titles(self) -> tuple[str, ...]:
        """The names that ``--lr`` may use for it, from the most general to the most specific."""
        of_strategy = () if self.strategy is None else (self.strategy.name, str(self.strategy), self.setting)
        return (self.contestant, *of_strategy, self.name)

    @property
    def profile(self) -> Profile:
        """What the comparison has to know of its communication."""
        return Profile(is_lossless=True) if self.strategy is None else self.strategy.profile()

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of the strategy."""
        return {} if self.strategy is None else self.strategy.settings

    @property
    def paced_by_policy(self) -> bool:
        """Whether ranks may make different numbers of steps, because a policy of servers decides who waits."""
        return self._policy is not None

    @property
    def keeps_step(self) -> bool:
        """Whether ranks can wait for each other before every step."""
        return self._policy is None or bool(getattr(self._policy, "keeps_step", False))

    @property
    def _policy(self) -> object:
        return getattr(self.strategy, "policy", None)

    @property
    def sent_dtype(self) -> str | None:
        """The dtype in which gradient elements are sent; None if something else is sent."""
        if self.is_reference or self.contestant == "ddp-gloo-powersgd":
            return None
        if self.strategy is not None:
            wire = self.settings.get("wire")
            return wire if wire in WIRES else self.precision
        return "float16" if self.contestant == "ddp-gloo-fp16" else "float32"

    @property
    def setting(self) -> str:
        """The setting that distinguishes it from others of the same contestant; often empty."""
        if self.strategy is None:
            rank = [] if self.approximation_rank is None else [f"rank {self.approximation_rank}"]
            return ", ".join(rank + (["views"] if self.views else []))
        parts = [str(self.strategy), *([] if self.precision == "float32" else [f"{self.precision} model"])]
        parts += ["fused step"] if self.fused else []
        parts += ["survives"] if self.survives else []
        parts += [f"over {self.transport}"] if self.transport is not None else []
        return ", ".join([*parts, *([] if self.overlaps else ["after backward"])])

    @property
    def name(self) -> str:
        """The contestant with its setting."""
        return f"{self.contestant} ({self.setting})" if self.setting else self.contestant

    @property
    def short(self) -> str:
        """The same as briefly as possible."""
        return self.setting if self.strategy is not None else self.name


BASELINE = Entry("ddp-gloo")
