"""Coarse-grained sparse communication: the most important chunks of the gradients."""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Sequence

import numpy.typing as npt

from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError, ArgumentTypeError
from gradientflow.sparse_pool import Density, SparseGradientPool

from .explanation import Sparsity
from .strategy import Strategy


class CSC(Strategy):
    """Coarse-grained sparse communication (GradientFlow paper, section 3.2 and algorithm 1).

    Only the chunks with the largest L1 norms are averaged; the rest is held back and sent when it has become important.
    With a momentum below 1 what is held back decays: that is the paper's method. See
    `gradientflow.SparseGradientPool`.

    Parameters
    ----------
    density : float or callable, default 0.1
        The share of the chunks that is sent, above 0 and at most 1; or a function of the iteration that gives it.
    chunk_size : int, default 32768
        Elements of a chunk.
    momentum : float, optional
        What is held back is multiplied by it in every iteration; by default the momentum of the optimiser.
    warmup : int, default 0
        Iterations in which the share that is not sent grows from nothing to its final value, linearly.
    correction : bool, default True
        Momentum correction: what is not sent is held back, and the update of what is not sent waits, momentum
        included. Without it, what is not sent is dropped, and the optimiser takes it for zero: for comparison.
        (`gradientflow.optimizers.SGD` has to be told the same; in PyTorch, DistributedOptimizer sees to it.)
    fusion_threshold, wire, algorithm
        As in `gradientflow.GradientPool`.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If a number is out of range.

    Examples
    --------
    >>> import gradientflow.torch as gft
    >>> from gradientflow.strategies import CSC
    >>> optimizer = gft.DistributedOptimizer(
    ...     torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model, strategy=CSC(density=0.15, warmup=500)
    ... )
    """

    is_sparse = True

    def __init__(
        self,
        density: Density = 0.1,
        *,
        chunk_size: int = 32768,
        momentum: float | None = None,
        warmup: int = 0,
        correction: bool = True,
        fusion_threshold: float | str = "auto",
        wire: str | None = None,
        algorithm: str = "auto",
    ) -> None:
        super().__init__(fusion_threshold=fusion_threshold, wire=wire, algorithm=algorithm)
        if not callable(density):
            _check_number("density", density, "above 0 and at most 1", lambda number: 0 < number <= 1)
        elif warmup:
            message = "warmup goes with a density that is a number: let the function of the iteration do it"
            raise ArgumentError(message)
        _check_number("chunk_size", chunk_size, "a whole number of 1 or more", lambda n: n >= 1 and n == int(n))
        _check_number("warmup", warmup, "a whole number of 0 or more", lambda n: n >= 0 and n == int(n))
        if momentum is not None:
            _check_number("momentum", momentum, "from 0 to 1", lambda number: 0 <= number <= 1)
        self.density = density
        self.chunk_size = int(chunk_size)
        self.momentum = momentum
        self.warmup = int(warmup)
        self.correction = correction

    def density_at(self, iteration: int) -> float:
        """Return the density of an iteration, 0, 1, ..., with the warm-up."""
        if callable(self.density):
            return self.density(iteration)
        ramp = min(1.0, iteration / self.warmup) if self.warmup else 1.0
        return 1.0 - (1.0 - self.density) * ramp if ramp < 1.0 else self.density

    def make_pool(
        self,
        comm: Communicator,
        shapes: Sequence[int | Sequence[int]],
        dtype: npt.DTypeLike | str = "float32",
        *,
        device: str | int = "cpu",
        momentum: float = 0.0,
        extra: int = 0,
        skip_nonfinite: bool = False,
        first_iteration: int = 0,
    ) -> SparseGradientPool:
        """Make a `gradientflow.SparseGradientPool`. Collective. Warns where all that is not sent is lost."""
        factor = (momentum if self.momentum is None else self.momentum) if self.correction else 0.0
        if self.correction and factor == 0:
            warnings.warn(
                "with a momentum of 0 all gradients that are not sent are lost: give CSC a momentum of its own",
                stacklevel=2,
            )
        pool = SparseGradientPool(
            comm,
            shapes,
            dtype,
            self.density_at,
            factor,
            self.chunk_size,
            extra=extra,
            fusion_threshold=self.fusion_threshold,
            wire=self.wire_of(dtype),
            algorithm=self.algorithm,
            skip_nonfinite=skip_nonfinite,
            first_iteration=first_iteration,
            device=device,
        )
        self._remember(pool)
        return pool

    @property
    def _sparsity(self) -> Sparsity:
        """The chunks that are sent after the warm-up."""
        return Sparsity(self.density_at(1 << 30 if callable(self.density) else self.warmup), self.chunk_size)

    def __repr__(self) -> str:
        """Return how to make it."""
        settings = f"density={self.density!r}, chunk_size={self.chunk_size}, warmup={self.warmup}"
        return f"CSC({settings}, correction={self.correction}, wire={self.wire!r})"


def _check_number(name: str, number: object, what: str, is_right: object) -> None:
    if not isinstance(number, numbers.Real) or isinstance(number, bool):
        message = f"{name} is {what}, not {number!r}"
        raise ArgumentTypeError(message)
    if not math.isfinite(number) or not is_right(number):  # type: ignore[operator]
        message = f"{name} is {what}, not {number!r}"
        raise ArgumentError(message)


__all__ = ["CSC"]
