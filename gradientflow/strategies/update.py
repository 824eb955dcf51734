"""Data of an iteration: its settings, its phase, the update for its step, and reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple

from gradientflow.annotations import TensorLike
from gradientflow.errors import ArgumentError

Kind = Literal["apply", "written", "skipped"]


@dataclass(frozen=True)
class Update:
    """The outcome of an iteration.

    Attributes
    ----------
    kind : {"apply", "written", "skipped"}
        "apply": an optimizer makes the step with the gradients. "written": the strategy has changed the weights itself;
        the optimizer is not called, and schedulers count a step. "skipped": no step, because a gradient is not finite,
        or the iteration was lost with a rank.
    gradients : tuple
        Input of the core's optimizers for each dtype of the layout: the memory of the gradients, and the elements to
        use.
    """

    kind: Kind
    gradients: tuple[TensorLike, ...] = ()


class AdamSettings(NamedTuple):
    """The settings of Adam for a tensor in a step.

    Attributes
    ----------
    beta_1, beta_2, epsilon : float
        As in `torch.optim.Adam`.
    decoupled : bool
        True for the weight decay of AdamW, which is not part of the gradient.
    updates : int
        Updates of the tensor so far, including this one.
    """

    beta_1: float
    beta_2: float
    epsilon: float
    decoupled: bool
    updates: int


class Settings(NamedTuple):
    """The settings of an optimizer for a tensor in a step.

    Attributes
    ----------
    rate, momentum, weight_decay : float
        Learning rate, momentum and weight decay.
    trust : float
        The trust coefficient of LARS; 0 for an optimizer other than LARS.
    maximize : bool
        True if the step goes along the gradient, not against it. Only the core's optimizers use it.
    adam : AdamSettings or None
        Settings of Adam, used in place of momentum SGD. Only the core's optimizers use it.
    """

    rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    trust: float = 0.0
    maximize: bool = False
    adam: AdamSettings | None = None


SettingsOf = Callable[[int], Settings]


def no_settings(index: int) -> Settings:
    """Raise: no optimizer has given settings."""
    raise ArgumentError(f"no optimizer has told the settings of tensor {index}: make one for the synchronizer first")


class Iteration(NamedTuple):
    """The settings of an iteration.

    Attributes
    ----------
    settings : callable
        ``settings(i)`` are the `Settings` of tensor i in the step.
    loss_scale : float
        The factor that the gradients contain; residuals are kept without it.
    skips_nonfinite : bool
        True if gradients that are not finite skip the iteration instead of raising an error.
    """

    settings: SettingsOf = no_settings
    loss_scale: float = 1.0
    skips_nonfinite: bool = False


class Phase(Enum):
    """The phase of an iteration. The transitions are in `gradientflow/training/iteration.py`."""

    IDLE = 0  # no iteration is under way
    ACCUMULATING = 1  # begun; the gradients of the current backward pass only add up
    HANDING_OVER = 2  # begun; gradients are handed to the synchronizer as they become final
    HANDED_OVER = 3  # all gradients are with the synchronizer
    AVERAGED = 4  # the exchange has ended; no step has used its update
    DROPPED = 5  # the exchange has ended, and all ranks drop it: gradients have to be zeroed
    LOST = 6  # lost with a rank: no step is made, and nothing is written after it
    BEGIN_FAILED = 7  # `begin` failed; peers may have begun, and must be told, as in the next two phases
    WAIT_FAILED = 8  # `wait` failed
    STEP_FAILED = 9  # `after_step` or `finish` failed


class Profile(NamedTuple):
    """Facts about a strategy that benchmarks and `auto` read.

    Attributes
    ----------
    warmup : int
        Iterations until the amount sent is final.
    period : int
        Iterations after which the pattern of exchanges repeats.
    is_lossless : bool
        True if all gradients and residuals are either applied as means or stay residuals: nothing is lost except by
        `Withheld.decay`. Benchmarks check this.
    takes_momentum : bool
        True if the optimizer may have a momentum.
    """

    warmup: int = 0
    period: int = 1
    is_lossless: bool = False
    takes_momentum: bool = True


class Withheld(NamedTuple):
    """Gradient entries that a rank has kept back, and the time that this took.

    Attributes
    ----------
    residuals : sequence of arrays
        The gradient entries that this rank has not sent yet, one array for each tensor; empty without residuals.
    decay : float
        The factor by which residuals were multiplied.
    bookkeeping_seconds : float or None
        Seconds that this rank spent in the last iteration on selecting and gathering entries to send, if known.
    """

    residuals: Sequence[TensorLike] = ()
    decay: float = 1.0
    bookkeeping_seconds: float | None = None


__all__ = ["AdamSettings", "Iteration", "Kind", "Phase", "Profile", "Settings", "SettingsOf", "Update", "Withheld"]
