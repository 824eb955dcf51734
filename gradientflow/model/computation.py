"""The computation of a step: its duration, and the time at which each gradient is final."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from gradientflow.arguments import checked_nonnegative
from gradientflow.errors import ArgumentError

_BACKWARD = 2 / 3  # share of a step: backpropagation computes twice the products of the forward pass


@dataclass(frozen=True)
class Computation:
    """A step of one rank without communication.

    Attributes
    ----------
    shapes : tuple of tuples of int
        Shapes of the tensors, in the order of backpropagation: the last layer first.
    ready : tuple of float
        Time at which the gradient of each tensor is final, in seconds from the start of the step; not decreasing.
    seconds : float
        Duration of the whole step, with forward pass and optimizer.
    backward_seconds : float
        Duration of backpropagation.
    dtype : {"float32", "float16", "bfloat16"}
        Dtype of the gradients.
    """

    shapes: tuple[tuple[int, ...], ...]
    ready: tuple[float, ...]
    seconds: float
    backward_seconds: float
    dtype: str = "float32"

    @classmethod
    def of(
        cls,
        shapes: Sequence[tuple[int, ...]],
        shares: Sequence[float],
        seconds: float,
        backward_seconds: float | None = None,
        forward_seconds: float | None = None,
    ) -> Computation:
        """Return a step in which each tensor takes a share of backpropagation.

        Parameters
        ----------
        shapes : sequence of tuples of int
            Shapes of the tensors, in the order of backpropagation.
        shares : sequence of float
            Time that backpropagation spends on each tensor, up to a common factor.
        seconds : float
            Duration of the whole step.
        backward_seconds, forward_seconds : float, optional
            By default two thirds of the step, and the rest. If their sum is shorter than the step, the step ends with
            an update.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If lengths differ or a number is negative.
        """
        whole = checked_nonnegative("seconds", seconds)
        backward = checked_nonnegative(
            "backward_seconds", _BACKWARD * whole if backward_seconds is None else backward_seconds
        )
        if len(shapes) != len(shares) or backward > whole:
            raise ArgumentError("each tensor has one share, and backpropagation is a part of the step")
        start = whole - backward if forward_seconds is None else checked_nonnegative("forward_seconds", forward_seconds)
        total = sum(shares)
        done = accumulate(share / total if total else 1 / len(shares) for share in shares)
        ready = tuple(start + backward * min(1.0, part) for part in done)
        return cls(tuple(map(tuple, shapes)), ready, whole, backward)

    def scaled(self, factor: float) -> Computation:
        """Return a step that takes `factor` times as long."""
        return Computation(
            self.shapes,
            tuple(each * factor for each in self.ready),
            self.seconds * factor,
            self.backward_seconds * factor,
            self.dtype,
        )


__all__ = ["Computation"]
