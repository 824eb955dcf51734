"""Descriptions of contestants of ``gradientflow bench train``, as in results."""

from __future__ import annotations

from dataclasses import dataclass

from gradientflow.strategies import SSGD, Strategy
from gradientflow.strategies.parsing import BY_NAME
from gradientflow.strategies.update import Profile

from ..core.plan import WIRES

NONE = "none"  # every rank trains alone: the cost of a step without communication
DDP_ALONE = "ddp-alone"  # like `none` in DistributedDataParallel: the cost of its buckets
SINGLE = "single"  # one process trains on the batches of all ranks
SINGLE_ACCUMULATED = "single-accumulated"  # like `single`, one rank's batch at a time: differs by rounding only


@dataclass(frozen=True)
class Optimizer:
    """The optimizer that makes the steps, or whose settings the servers use: SGD.

    Attributes
    ----------
    learning_rate : float
        Learning rate, above 0.
    momentum : float
        Momentum; 0 for none.
    """

    learning_rate: float
    momentum: float

    def __str__(self) -> str:
        """Return the optimizer in words."""
        momentum = f", momentum={self.momentum:g}" if self.momentum else ""
        return f"SGD(lr={self.learning_rate:g}{momentum})"


@dataclass(frozen=True)
class Entry:
    """The description of a contestant, as in results.

    Attributes
    ----------
    contestant : str
        Name in `CONTESTANTS`, or of a reference.
    strategy : Strategy or None
        Strategy; `gradientflow` only.
    approximation_rank : int or None
        Rank of the matrices that are sent; PowerSGD only.
    overlaps : bool
        True if gradients are sent during the backward pass, not only after it; `gradientflow` only.
    precision : str
        The dtype of the model. With 16 bits gradients have 16 bits too, and the update uses float32 master weights.
    fused : bool
        True if the core makes the step where the strategy permits both; `gradientflow` only.
    survives : bool
        True if it continues when ranks die, and admits joiners before each step; `gradientflow` only.
    transport : str or None
        Transport of messages if transports are compared; `gradientflow` only.
    views : bool
        True if gradients lie in the buckets (``gradient_as_bucket_view``); DDP only.
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
        """True if it is a reference, in which the ranks do not communicate."""
        return self.contestant in (NONE, DDP_ALONE, SINGLE, SINGLE_ACCUMULATED)

    @property
    def needs_ddp(self) -> bool:
        """True if it is PyTorch's DistributedDataParallel."""
        return self.contestant.startswith("ddp-")

    @property
    def is_users(self) -> bool:
        """True if it is a user's strategy."""
        return self.strategy is not None and type(self.strategy) not in BY_NAME.values()

    @property
    def needs_own_rate(self) -> bool:
        """True if it does not step by the mean of all gradients, so that another learning rate may suit it."""
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
        """The facts about its communication that the comparison needs."""
        return Profile(is_lossless=True) if self.strategy is None else self.strategy.profile()

    @property
    def settings(self) -> dict[str, object]:
        """The arguments of the strategy."""
        return {} if self.strategy is None else self.strategy.settings

    @property
    def paced_by_policy(self) -> bool:
        """True if ranks may make different numbers of steps, because a policy of servers decides which ranks wait."""
        return self._policy is not None

    @property
    def keeps_step(self) -> bool:
        """True if ranks can wait for each other before every step."""
        return self._policy is None or bool(getattr(self._policy, "keeps_step", False))

    @property
    def _policy(self) -> object:
        return getattr(self.strategy, "policy", None)

    @property
    def sent_dtype(self) -> str | None:
        """The dtype in which gradient elements are sent; None if other data is sent."""
        if self.is_reference or self.contestant == "ddp-gloo-powersgd":
            return None
        if self.strategy is not None:
            wire = self.settings.get("wire")
            return wire if wire in WIRES else self.precision
        return "float16" if self.contestant == "ddp-gloo-fp16" else "float32"

    @property
    def setting(self) -> str:
        """The setting that distinguishes it from entries of the same contestant; often empty."""
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
        """The shortest name of the entry."""
        return self.setting if self.strategy is not None else self.name


BASELINE = Entry("ddp-gloo")
