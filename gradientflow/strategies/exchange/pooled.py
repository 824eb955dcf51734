"""Strategies whose gradients lie in pools, one for each dtype: exchanges overlap with backpropagation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

from gradientflow.annotations import TensorLike
from gradientflow.communicator import Communicator
from gradientflow.device import DeviceArray
from gradientflow.errors import ArgumentError, GradientFlowError, NonFiniteError
from gradientflow.memory import numpy_dtype
from gradientflow.pools.base import RangeReport
from gradientflow.pools.gradient import GradientPool
from gradientflow.pools.sparse import SparseGradientPool
from gradientflow.pools.top_k import TopKGradientPool
from gradientflow.strategies.contract import Strategy, Synchronizer
from gradientflow.strategies.layout import Layout
from gradientflow.strategies.update import Phase, Update

from .nonfinite import first_nonfinite_tensor, nonfinite_error
from .survivable import Survivable

Pool = GradientPool | SparseGradientPool | TopKGradientPool


class PoolStrategy(Strategy):
    """A strategy whose gradients lie in pools.

    Parameters
    ----------
    fusion_threshold, algorithm
        As in `gradientflow.GradientPool`.
    wire : str, optional
        Format to which float32 gradients are rounded between nodes, as in `gradientflow.Communicator.allreduce`;
        gradients of other dtypes travel as they are.
    """

    on_device = True
    pool: Callable[..., Pool]  # class of its pools

    options: ClassVar[tuple[str, ...]] = ("fusion_threshold", "wire", "algorithm")
    fusion_threshold: float | str
    wire: str | None
    algorithm: str

    def make_pool(
        self,
        comm: Communicator,
        shapes: Sequence[int | Sequence[int]],
        dtype: npt.DTypeLike | str = "float32",
        *,
        device: str | int = "cpu",
        extra: int = 0,
        **more: object,
    ) -> Pool:
        """Make a pool for tensors of one dtype, in the order in which backpropagation produces them. Collective.

        Parameters
        ----------
        comm : Communicator
            Ranks that take part.
        shapes, dtype, device, extra
            As in `gradientflow.GradientPool`.
        **more
            Further arguments of the pool.
        """
        return self.pool(
            comm,
            shapes,
            dtype,
            wire=self.wire_of(dtype),
            algorithm=self.algorithm,
            device=device,
            extra=extra,
            **{**more, **self.pool_options(len(shapes))},
        )

    @abstractmethod
    def pool_options(self, tensors: int) -> dict[str, object]:
        """Return further arguments for a pool of this number of tensors."""

    def wire_of(self, dtype: npt.DTypeLike | str) -> str | None:
        """Return the wire of pools of a dtype."""
        is_float32 = dtype != "bfloat16" and numpy_dtype(dtype) == np.float32
        return self.wire if is_float32 else None


class PoolSynchronizer(Survivable):
    """Pools of all dtypes, used together.

    `extra` travels in the first pool. Every pool has at least one such number, perhaps only a placeholder: once this
    number is ready, the iteration of the pool has begun, even if no gradient is ready.

    Attributes
    ----------
    pools : tuple
        The pools, one for each dtype.
    updates_every_weight : bool
        True if the core's step changes every weight, not only weights whose gradients were sent.
    """

    strategy: PoolStrategy
    pools: tuple[Pool, ...]
    uses_backward_order = True
    updates_every_weight: bool = True

    def __init__(self, comm: Communicator, layout: Layout, strategy: PoolStrategy) -> None:
        super().__init__(comm, layout, strategy)
        pools: list[Pool] = []
        for group, (dtype, indices) in enumerate(layout.groups):
            shapes = [layout.shapes[i] for i in indices]
            extra = max(1, layout.extra if group == 0 else 0)
            pools.append(strategy.make_pool(comm, shapes, dtype, device=layout.device, extra=extra))
        self.pools = tuple(pools)
        if all(isinstance(pool, GradientPool) for pool in pools):
            self.gradient_source = "any_place"
        self._place_of: Mapping[int, tuple[Pool, int]] = {
            index: (pool, place)
            for pool, (_, indices) in zip(pools, layout.groups, strict=True)
            for place, index in enumerate(indices)
        }

    # ---- memory --------------------------------------------------------------------------------------------------

    def memory(self, group: int) -> npt.NDArray[np.uint8] | DeviceArray:  # noqa: D102
        return self.pools[group].memory

    def offsets(self, group: int) -> Sequence[int]:  # noqa: D102
        return self.pools[group].offsets

    def spans(self, group: int) -> list[list[int]]:  # noqa: D102
        return cast("list[list[int]]", self.pools[group].spans.tolist())

    def zero(self, group: int, stream: object = None) -> None:  # noqa: D102
        self.pools[group].zero(stream)

    def _arrays(self, group: int) -> Sequence[TensorLike]:
        return self.pools[group].views

    # ---- the moments of an iteration -----------------------------------------------------------------------------

    def ready(self, index: int, stream: object = None, elsewhere: int | None = None) -> None:  # noqa: D102
        # This is `ready` of pools/base.py. In GradientPool an object of the core, made in
        # bindings/bind_gradient_pool.cpp, has replaced it (see gradientflow/_fast_paths.py): it serves calls without a
        # stream, and passes all others on to `ready`.
        pool, place = self._place_of[index]
        pool.ready(place, stream)

    def flush(self, stream: object = None) -> None:  # noqa: D102
        if len(self.extra):
            self.pools[0].extra[:] = self.extra
        for pool in self.pools:
            pool.ready(stream=stream)

    def wait(self, stream: object = None) -> Update:  # noqa: D102
        errors = [error for group in range(len(self.pools)) if (error := self._wait_for(group, stream)) is not None]
        for error in errors:
            if not isinstance(error, NonFiniteError):
                raise error
        if len(self.extra):
            self.extra[:] = self.pools[0].extra
        if errors:  # raised on all ranks
            self._undo(stream)
            raise errors[-1]
        if self.skips_nonfinite and any(pool.has_nonfinite(stream) for pool in self.pools):
            self._undo(stream)
            return Update("skipped")
        self._check_means(stream)
        return self.update()

    def _check_means(self, stream: object) -> None:
        """Look at the means before the step; raise after undoing the iteration, on all ranks alike."""

    def update(self) -> Update:  # noqa: D102
        return Update("apply", tuple(pool.update(self.updates_every_weight) for pool in self.pools))

    def take_over(self, other: Synchronizer) -> None:  # noqa: D102
        assert isinstance(other, PoolSynchronizer)
        theirs: dict[str, Any] = {pool.dtype: pool for pool in other.pools}
        for pool in self.pools:
            if pool.dtype in theirs:
                pool._native.take_over_means(theirs[pool.dtype]._native)

    def _wait_for(self, group: int, stream: object) -> GradientFlowError | None:
        """Wait for one pool. Return its error instead of raising it, so that the iteration is ended in all pools."""
        try:
            self.pools[group].wait(stream=stream)
        except NonFiniteError as error:
            return self._naming(error, group)
        except GradientFlowError as error:
            return error
        return None

    def rollback(self, phase: Phase, stream: object = None) -> None:  # noqa: D102
        if phase is Phase.AVERAGED:
            self._undo(stream)
        elif phase is not Phase.WAIT_FAILED or not self._undo_if_failed(stream):
            errors = [error for pool in self.pools if (error := self._give_up(pool, stream)) is not None]
            if errors:
                raise errors[0]

    def _undo(self, stream: object) -> None:
        """Undo the iteration that has ended in all pools; a dropped or failed iteration has changed nothing."""
        for pool in self.pools:
            pool.rollback(stream)

    def _undo_if_failed(self, stream: object = None) -> bool:
        """Undo, in all pools, an iteration that `wait` could not end in some pools; return True if there is one."""
        has_failed = any(pool.has_failed for pool in self.pools)
        if has_failed:
            self._undo(stream)
        return has_failed

    def _give_up(self, pool: Pool, stream: object) -> GradientFlowError | None:
        """Give up the iteration of one pool. Return its error instead of raising it, so that all pools give it up."""
        number = len(pool.shapes)
        try:
            if not pool.is_ready(number):
                if pool is self.pools[0] and len(self.extra):
                    pool.extra[:] = self.extra
                pool.ready(number)
            pool.rollback(stream)
        except GradientFlowError as error:
            return error
        return None

    def check_survival(self) -> None:
        """Raise on a device: only pools in memory of the host survive the loss of ranks.

        On the host, an iteration that fails in one pool is dropped or kept in all pools.
        """
        if self.layout.device != "cpu":
            message = "the ranks can go on without one that was lost only if gradients are in memory of the host"
            raise ArgumentError(message)

    def commit(self) -> None:
        """Commit the iteration in the pools in which it has failed: in all other pools it has ended."""
        for pool in self.pools:
            if pool.has_failed:
                pool.commit()

    def close(self, orderly: bool = True) -> None:  # noqa: D102
        for pool in self.pools:
            pool._native.close(orderly)

    # ---- information ---------------------------------------------------------------------------------------------

    @property
    def reports(self) -> tuple[RangeReport, ...]:  # noqa: D102
        return tuple(report for pool in self.pools for report in pool.reports)

    def _naming(self, error: NonFiniteError, group: int) -> NonFiniteError:
        """Return the error of a pool with the names of the tensors."""
        place = self.pools[group].nonfinite_tensors
        if place is None:
            return error
        rank, tensors = place
        indices = self.layout.groups[group][1]
        names = [self.layout.names[indices[i]] for i in tensors]
        which = names[0] if len(names) == 1 else f"{names[0]}, or of a parameter up to {names[-1]},"
        outcome = "no weight was changed, and the residuals are as before"
        return nonfinite_error(f"the gradient of {which}", rank if rank >= 0 else None, outcome)


class CheckedPools(PoolSynchronizer):
    """Pools whose means are looked at in every iteration. All ranks have the same bits, and so find the same."""

    pools: tuple[GradientPool, ...]

    def _check_means(self, stream: object) -> None:
        for pool, (_, indices) in zip(self.pools, self.layout.groups, strict=True):
            found = first_nonfinite_tensor(pool, stream)
            if found is not None:
                self._undo(stream)
                for group in range(len(self.pools)):
                    self.zero(group, stream)
                name = self.layout.names[indices[found]]
                raise nonfinite_error(f"the gradient of {name}", None, "no weight was changed")


__all__ = ["CheckedPools", "PoolStrategy", "PoolSynchronizer"]
