"""Learning rates of large-batch training: the linear scaling rule, and its warm-up."""

from __future__ import annotations

from dataclasses import dataclass

from gradientflow.arguments import checked_int, checked_nonnegative
from gradientflow.errors import ArgumentError


def scaled_rate(rate: float, batch: int, base_batch: int = 256) -> float:
    """Return the learning rate for a batch size by the linear scaling rule.

    (Goyal et al., Accurate, large minibatch SGD, 2017; GradientFlow paper, section 4.2.)

    Parameters
    ----------
    rate : float
        The learning rate for a batch of `base_batch` samples.
    batch : int
        Samples per step, on all ranks together.
    base_batch : int, default 256
        Samples per step for which `rate` was chosen.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If a batch has no samples, or `rate` is negative or not finite.
    """
    rate, batch, base_batch = (
        checked_nonnegative("rate", rate),
        checked_int("batch", batch),
        checked_int("base_batch", base_batch),
    )
    if batch < 1 or base_batch < 1:
        raise ArgumentError(f"a batch has at least 1 sample, not {min(batch, base_batch)}")
    return rate * batch / base_batch


@dataclass(frozen=True)
class LinearWarmup:
    """A learning rate that grows linearly from `start` to `peak` in `steps` steps, and then stays at `peak`.

    Called with the number of the step (0, 1, ...), it returns the rate. Step 0 already has the first increment.

    Attributes
    ----------
    peak : float
        The final rate.
    steps : int
        Number of steps of the warm-up.
    start : float, default 0
        The rate before the first increment.
    """

    peak: float
    steps: int
    start: float = 0.0

    def __post_init__(self) -> None:
        """Check the attributes.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If a rate is negative or not finite, or `steps` is negative.
        """
        for name, number in (("peak", self.peak), ("steps", self.steps), ("start", self.start)):
            checked_nonnegative(name, number)

    def __call__(self, step: int) -> float:
        """Return the rate of a step."""
        if step + 1 >= self.steps:
            return self.peak
        return self.start + (self.peak - self.start) * (step + 1) / self.steps


__all__ = ["LinearWarmup", "scaled_rate"]
