"""What all strategies have: they make pools, keep their state, and tell what to expect of them."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gradientflow.base_pool import BasePool
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError, GradientFlowError
from gradientflow.memory import numpy_dtype
from gradientflow.pool import GradientPool
from gradientflow.sparse_pool import SparseGradientPool

from .explanation import Explanation, Sparsity, Subject, measure


class Strategy(ABC):
    """When and what the ranks send of their gradients.

    Parameters
    ----------
    fusion_threshold, algorithm
        As in `gradientflow.GradientPool`.
    wire : {"float32", "float16", "bfloat16"}, optional
        What gradients of float32 are rounded to between nodes; those of other dtypes travel as they are.

    Attributes
    ----------
    is_sparse : bool
        Whether a part of the gradients is sent, in a `gradientflow.SparseGradientPool`.
    """

    is_sparse: ClassVar[bool]

    def __init__(
        self, *, fusion_threshold: float | str = "auto", wire: str | None = None, algorithm: str = "auto"
    ) -> None:
        self.fusion_threshold = fusion_threshold
        self.wire = wire
        self.algorithm = algorithm
        self._pools: list[weakref.ref[BasePool]] = []

    @abstractmethod
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
    ) -> GradientPool | SparseGradientPool:
        """Make a pool for tensors of these shapes, in the order in which backpropagation produces them. Collective.

        Parameters
        ----------
        comm : Communicator
            Whose ranks take part.
        shapes, dtype
            As in `gradientflow.GradientPool`.
        device : str or int
            As in `gradientflow.GradientPool`.
        momentum : float
            That of the optimiser.
        extra, skip_nonfinite, first_iteration
            As in `gradientflow.SparseGradientPool`; a dense pool has none of them.
        """

    def explain(
        self,
        comm: Communicator,
        parameters: int,
        *,
        dtype: str = "float32",
        device: str | int = "cpu",
        compute_seconds: float | None = None,
        backward_seconds: float | None = None,
    ) -> Explanation:
        """Measure the link, and tell what a step will send and what gain over dense float32 to expect. Collective.

        Parameters
        ----------
        comm : Communicator
            Whose ranks take part.
        parameters : int
            How many the model has.
        dtype : {"float32", "float16", "bfloat16"}
            Of the gradients.
        device : str or int
            Where they are, as in `gradientflow.GradientPool`.
        compute_seconds : float, optional
            What a step takes without communication. Without it the gain is that of communication alone.
        backward_seconds : float, optional
            The part of it in which communication can hide; by default two thirds of it.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If a number is negative.
        """
        subject = Subject(type(self).__name__, parameters, dtype, self.wire, self.algorithm, self._sparsity, device)
        return measure(comm, subject, compute_seconds, backward_seconds)

    @property
    def _sparsity(self) -> Sparsity | None:
        """What of the gradients is sent, if not everything."""
        return None

    def wire_of(self, dtype: npt.DTypeLike | str) -> str | None:
        """Return the wire of pools of a dtype."""
        is_float32 = dtype != "bfloat16" and numpy_dtype(dtype) == np.float32
        return self.wire if is_float32 else None

    @property
    def pools(self) -> tuple[GradientPool | SparseGradientPool, ...]:
        """The pools that this strategy has made, as far as they are in use."""
        alive = [reference() for reference in self._pools]
        return tuple(pool for pool in alive if isinstance(pool, GradientPool | SparseGradientPool) and not pool.closed)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the pools that this strategy has made: this rank's own, see `SparseGradientPool`."""
        return {"pools": [pool.state_dict() for pool in self._sparse_pools]}

    def consolidated_state_dict(self) -> dict[str, Any]:
        """Return a state that any number of ranks can load, see `SparseGradientPool`. Collective."""
        return {"pools": [pool.consolidated_state_dict() for pool in self._sparse_pools]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Give the pools that this strategy has made the state of others.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If it is the state of other pools: before anything is changed.
        """
        pools, states = self._sparse_pools, state.get("pools") if isinstance(state, Mapping) else None
        if states is None or len(states) != len(pools):
            message = f"this is not the state of a strategy with {len(pools)} sparse pools"
            raise ArgumentError(message)
        try:
            for pool, each in zip(pools, states, strict=True):
                pool.check_state_dict(each)
        except GradientFlowError as error:
            pools[0]._refuse_state(error)
            raise
        for pool, each in zip(pools, states, strict=True):
            pool.load_state_dict(each)

    @property
    def _sparse_pools(self) -> list[SparseGradientPool]:
        return [pool for pool in self.pools if isinstance(pool, SparseGradientPool)]

    def _remember(self, pool: BasePool) -> None:
        self._pools = [reference for reference in self._pools if reference() is not None]
        self._pools.append(weakref.ref(pool))


__all__ = ["Strategy"]
