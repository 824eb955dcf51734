"""What a step is to do, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Kind = Literal["apply", "written", "skipped"]


@dataclass(frozen=True)
class Update:
    """The outcome of an iteration.

    Attributes
    ----------
    kind : {"apply", "written", "skipped"}
        "apply": an optimizer makes the step with the gradients. "written": the strategy has changed the weights itself;
        the optimizer is not called, and schedulers count a step. "skipped": no step, because a gradient is not finite.
    gradients : tuple
        For the core's optimizers: for each dtype of the layout, where its gradients lie and which of them count.
    """

    kind: Kind
    gradients: tuple[Any, ...] = ()


class AdamSettings(NamedTuple):
    """The settings of Adam for a tensor in a step.

    Attributes
    ----------
    beta_1, beta_2, epsilon : float
        As in `torch.optim.Adam`.
    decoupled : bool
        Whether weight decay is that of AdamW: not in the gradient.
    updates : int
        Updates of the tensor so far, including this one.
    """

    beta_1: float
    beta_2: float
    epsilon: float
    decoupled: bool
    updates: int


class Settings(NamedTuple):
    """What an optimizer does with a tensor in a step.

    Attributes
    ----------
    rate, momentum, weight_decay : float
        Learning rate, momentum and weight decay.
    trust : float
        The trust coefficient of LARS; 0 without it.
    maximize : bool
        Whether the step goes along the gradient, not against it. Only the core's optimizers know it.
    adam : AdamSettings or None
        Adam in place of momentum SGD. Only the core's optimizers know it.
    """

    rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    trust: float = 0.0
    maximize: bool = False
    adam: AdamSettings | None = None


__all__ = ["AdamSettings", "Kind", "Settings", "Update"]
