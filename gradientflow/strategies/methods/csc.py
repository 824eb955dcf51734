"""Coarse-grained sparse communication: the most important chunks of the gradients."""

from __future__ import annotations

import hashlib
import math
import numbers
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from gradientflow.annotations import State
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError, ArgumentTypeError
from gradientflow.model.computation import Computation
from gradientflow.model.costs import Costs
from gradientflow.model.pooled import chunk_traffic, counts_of
from gradientflow.model.traffic import Traffic
from gradientflow.pools.sparse import Density, SparseGradientPool
from gradientflow.strategies.exchange.pooled import PoolStrategy
from gradientflow.strategies.exchange.residual import ResidualSynchronizer
from gradientflow.strategies.layout import Layout
from gradientflow.strategies.update import Profile, SettingsOf, Withheld

_LARGEST_CHUNK, _SMALLEST_CHUNK = 32768, 64
_FEWEST_SENT = 4  # chunks: density is met to a quarter


class CSC(PoolStrategy):
    """Coarse-grained sparse communication (GradientFlow paper, section 3.2 and algorithm 1).

    Only the chunks with the largest L1 norms are averaged. All other chunks stay in residuals until they are important.
    With a momentum below 1 residuals decay, as in the paper. See `gradientflow.SparseGradientPool`.

    Parameters
    ----------
    density : float or callable, default 0.1
        The share of the chunks that is sent, above 0 and at most 1; or a function of the iteration that gives it.
    chunk_size : int, optional
        Elements of a chunk. By default 32768; in smaller models the largest power of two, 64 or more, with which at
        least four chunks are sent.
    momentum : float, optional
        Factor of the residuals in every iteration; by default the momentum of the optimizer.
    warmup : int, default 0
        Iterations in which the share that is not sent grows linearly from 0 to its final value.
    correction : bool, default True
        Momentum correction: gradients that are not sent stay residual, and their weights and momenta do not change.
        Without it, for comparison, gradients that are not sent are dropped, and the optimizer takes them for zeros.
        (`gradientflow.optimizers.SGD` needs the same setting; in PyTorch, DistributedOptimizer sets it.)
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

    name = "csc"
    effect = "delays"
    pool = SparseGradientPool

    def __init__(
        self,
        density: Density = 0.1,
        *,
        chunk_size: int | None = None,
        momentum: float | None = None,
        warmup: int = 0,
        correction: bool = True,
        **options: object,
    ) -> None:
        super().__init__(**options)
        if not callable(density):
            _check_number("density", density, "above 0 and at most 1", lambda number: 0 < number <= 1)
        elif warmup:
            raise ArgumentError("warmup goes with a density that is a number: let the function of the iteration do it")
        if chunk_size is not None:
            _check_number("chunk_size", chunk_size, "a whole number of 1 or more", lambda n: n >= 1 and n == int(n))
        _check_number("warmup", warmup, "a whole number of 0 or more", lambda n: n >= 0 and n == int(n))
        if momentum is not None:
            _check_number("momentum", momentum, "from 0 to 1", lambda number: 0 <= number <= 1)
        self.density = density
        self.chunk_size = None if chunk_size is None else int(chunk_size)
        self.momentum = momentum
        self.warmup = int(warmup)
        self.correction = correction
        self.step = "core_rate_in_momentum" if correction else "core"

    def density_at(self, iteration: int) -> float:
        """Return the density of an iteration, 0, 1, ..., with the warm-up."""
        if callable(self.density):
            return self.density(iteration)
        ramp = min(1.0, iteration / self.warmup) if self.warmup else 1.0
        return 1.0 - (1.0 - self.density) * ramp if ramp < 1.0 else self.density

    @property
    def final_density(self) -> float:
        """The density after the warm-up."""
        return self.density_at(1 << 30 if callable(self.density) else self.warmup)

    def chunk_size_for(self, elements: int) -> int:
        """Return the elements of a chunk in a pool of so many elements."""
        if self.chunk_size is not None:
            return self.chunk_size
        if callable(self.density):
            return _LARGEST_CHUNK
        size, density = _LARGEST_CHUNK, self.final_density
        while size > _SMALLEST_CHUNK and elements * density < _FEWEST_SENT * size:
            size //= 2
        return size

    def make_pool(self, comm: Communicator, shapes: Sequence[int | Sequence[int]], *args: Any, **options: Any) -> Any:
        """Make a pool with chunks as `chunk_size_for` chooses them. Collective."""
        elements = sum(int(np.prod(shape)) for shape in shapes)
        return super().make_pool(comm, shapes, *args, **options, chunk_size=self.chunk_size_for(elements))

    def bind(self, comm: Communicator, layout: Layout) -> ChunkSynchronizer:
        """Make sparse gradient pools, one for each dtype. Collective."""
        return ChunkSynchronizer(comm, layout, self)

    def pool_options(self, tensors: int) -> dict[str, object]:
        """Return the arguments of pools: density, with the warm-up, momentum and so on."""
        return {
            "density": self.density_at,
            "momentum": 0.0 if not self.correction else 1.0 if self.momentum is None else self.momentum,
            "fusion_threshold": self.fusion_threshold,
        }

    def profile(self) -> Profile:
        """Return the warm-up; the profile says that nothing is lost except by the decay of residuals."""
        return super().profile()._replace(is_lossless=True)

    def traffic(self, computation: Computation, costs: Costs) -> Traffic:
        """Return the important chunks, spread evenly over the gradients, and the norms that follow them."""
        density, chunk_size = self.final_density, self.chunk_size_for(sum(counts_of(computation)))
        return chunk_traffic(
            computation, costs.cluster, density, chunk_size, self.fusion_threshold, self.wire, self.algorithm
        )


class ChunkSynchronizer(ResidualSynchronizer):
    """Sparse pools. Their residuals decay with the momentum of the optimizer unless the strategy has a momentum."""

    strategy: CSC
    pools: tuple[SparseGradientPool, ...]
    initial_state: ClassVar[State] = {"important": []}

    def __init__(self, comm: Communicator, layout: Layout, strategy: CSC) -> None:
        super().__init__(comm, layout, strategy)
        self.updates_every_weight = not strategy.correction

    @property
    def takes_residuals(self) -> bool:
        """True with momentum correction: without it gradients that are not sent are dropped."""
        return self.strategy.correction

    def withheld(self) -> Withheld:
        """Return residuals, the momentum that multiplied them, and the seconds spent on them."""
        return super().withheld()._replace(decay=float(self.pools[0].momentum))

    def check_settings(self, settings: SettingsOf) -> None:
        """Raise unless all tensors have the same momentum. Warn if it is 0: unsent gradients are then lost."""
        self._momentum(settings)

    def prepare(self) -> None:
        """Set the momentum and the loss scale of the pools. Warn if gradients that are not sent are lost."""
        super().prepare()
        momentum = self._momentum(self.settings)
        for pool in self.pools:
            if pool.momentum != momentum:
                pool.momentum = momentum

    def _momentum(self, settings: SettingsOf) -> float:
        """Return the factor that multiplies residuals in this iteration."""
        if not self.strategy.correction:
            return 0.0
        if self.strategy.momentum is not None:
            return self.strategy.momentum
        momenta = {settings(index).momentum for index in range(len(self.layout))}
        if len(momenta) > 1:
            found = " and ".join(map(str, sorted(momenta)))
            raise ArgumentError(
                f"the residuals of csc decay with the momentum of the optimizer, and that is {found} in different "
                "groups: make them the same, or give csc a momentum"
            )
        (momentum,) = momenta
        if momentum == 0 and self._momentum_before != 0:
            warnings.warn(
                "with a momentum of 0 all gradients that are not sent are lost: give csc a momentum of its own",
                stacklevel=2,
            )
        self._momentum_before = momentum
        return momentum

    _momentum_before = -1.0

    def _summary_of(self, dtype: str, state: Mapping[str, object]) -> dict[str, str]:
        chosen = hashlib.sha256(np.asarray(state["important"], np.uint8).tobytes()).hexdigest()[:8]
        return {f"the choice of {dtype} chunks": f"{state['chunk_size']} elements each, {chosen}"}


def _check_number(name: str, number: object, what: str, is_right: object) -> None:
    if not isinstance(number, numbers.Real) or isinstance(number, bool):
        raise ArgumentTypeError(f"{name} is {what}, not {number!r}")
    if not math.isfinite(number) or not is_right(number):  # type: ignore[operator]
        raise ArgumentError(f"{name} is {what}, not {number!r}")


__all__ = ["CSC"]
