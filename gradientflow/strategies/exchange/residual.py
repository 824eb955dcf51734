"""Synchronizers with pools that send a part of the gradients, and keep the rest in residuals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import methodcaller
from typing import ClassVar

import numpy as np

from gradientflow.annotations import State, StateDict, TensorLike
from gradientflow.errors import ArgumentError
from gradientflow.pools.residual import ResidualPool
from gradientflow.pools.sparse import SparseGradientPool
from gradientflow.pools.top_k import TopKGradientPool
from gradientflow.strategies.contract import Synchronizer
from gradientflow.strategies.update import Withheld

from .pooled import PoolSynchronizer
from .state import check_keys


class ResidualSynchronizer(PoolSynchronizer):
    """Pools with residuals: their settings, dropped updates, and checkpoints.

    Attributes
    ----------
    initial_state : dict of str to object
        The entries of a pool's state that do not hold for other tensors, with their initial values.
    """

    pools: tuple[SparseGradientPool | TopKGradientPool, ...]
    initial_state: ClassVar[State] = {}

    @property
    def residuals(self) -> tuple[TensorLike, ...]:
        """The residuals of this rank, one array for each tensor."""
        pairs = zip(self.layout.groups, self.pools, strict=True)
        found = {
            i: residual for (_, indices), pool in pairs for i, residual in zip(indices, pool.residuals, strict=True)
        }
        return tuple(found[index] for index in range(len(self.layout)))

    def withheld(self) -> Withheld:
        """Return residuals, and the seconds that selecting, gathering and scattering took in all threads."""
        return Withheld(self.residuals, bookkeeping_seconds=sum(pool.bookkeeping_seconds for pool in self.pools))

    def prepare(self) -> None:
        """Set the loss scale of the pools."""
        for pool in self.pools:
            pool.skip_nonfinite = self.skips_nonfinite
            if pool.loss_scale != self.loss_scale:
                pool.loss_scale = self.loss_scale

    def has_gradient(self, index: int) -> bool:
        """Return True if the tensor's gradient is nonzero, for example from residuals."""
        group = next(number for number, (_, indices) in enumerate(self.layout.groups) if index in indices)
        return bool(self.pools[group].has_gradient(self.layout.groups[group][1].index(index)))

    # ---- state ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> StateDict:
        """Return the states of this rank's pools."""
        return self._state(methodcaller("state_dict"))

    def consolidated_state_dict(self) -> StateDict:
        """Return the states of the pools with residuals summed over the ranks, the same on all ranks. Collective."""
        return self._state(methodcaller("consolidated_state_dict"))

    def _state(self, state_of: Callable[[ResidualPool], StateDict]) -> StateDict:
        return {"names": list(self.layout.names), "pools": {pool.dtype: state_of(pool) for pool in self.pools}}

    def check_state_dict(self, state: State) -> None:
        """Raise unless the state is for these tensors, in any order."""
        check_keys(self.strategy.name, ("names", "pools"), state)
        order = {name: number for number, name in enumerate(state["names"])}
        for (dtype, indices), pool in zip(self.layout.groups, self.pools, strict=True):
            mine = [self.layout.names[i] for i in indices]
            known = [name for name in mine if name in order]
            there = state["pools"].get(dtype)
            if len(known) < len(mine) or there is None or len(there["residuals"]) != len(mine):
                raise ArgumentError(f"the state is of a model in which other parameters are {dtype}")
            places = np.argsort(np.argsort([order[name] for name in mine]))
            arrays = {key: [there[key][place] for place in places] for key in _arrays_by_tensor(there)}
            pool.check_state_dict({**there, **arrays})

    def load_state_dict(self, state: State | None) -> None:
        """Load a state with the tensors in this order; without a state, reset residuals to zero. Collective."""
        for pool in self.pools:
            if state is None:
                own = pool.state_dict()
                zeros = {key: [np.zeros_like(each) for each in own[key]] for key in _arrays_by_tensor(own)}
                pool.load_state_dict({**own, **zeros, "iteration": 0, **self.initial_state})
            else:
                pool.load_state_dict(state["pools"][pool.dtype])

    @property
    def takes_residuals(self) -> bool:
        """True: residuals of gradients are the same for all of these strategies."""
        return True

    def take_residuals(self, residuals: Mapping[str, TensorLike]) -> None:
        """Set the residuals of the pools."""
        for (_, indices), pool in zip(self.layout.groups, self.pools, strict=True):
            names = [self.layout.names[index] for index in indices]
            given = [residuals.get(name) for name in names]
            pool.set_residuals(
                [
                    zeros if each is None else each.reshape(zeros.shape)
                    for each, zeros in zip(given, pool.residuals, strict=True)
                ]
            )

    def summary(self, state: State) -> dict[str, str]:
        """Return iteration and order of a state, and all other values on which the ranks agree."""
        entries = {"the order of gradients": ", ".join(state["names"])}
        for dtype, pool in state["pools"].items():
            entries[f"the iteration of {dtype} gradients"] = str(pool["iteration"])
            entries |= self._summary_of(dtype, pool)
        return entries

    def _summary_of(self, dtype: str, state: Mapping[str, object]) -> dict[str, str]:
        """Return the values in a pool's state that have to be the same on all ranks."""
        return {}

    def take_over(self, other: Synchronizer) -> None:
        """Take the residuals of another synchronizer, by the names of tensors, and the latest iteration of any rank.

        If an iteration of `other` has failed, it is undone first, unless it was committed.
        """
        assert isinstance(other, ResidualSynchronizer)
        other._undo_if_failed()
        latest = max((pool.iteration for pool in other.pools), default=0)
        iteration = int(self.comm.allreduce(np.array([latest]), "max")[0])
        there: dict[str, StateDict] = {}
        for (_, indices), pool in zip(other.layout.groups, other.pools, strict=True):
            names, state = [other.layout.names[i] for i in indices], pool.state_dict()
            for key in _arrays_by_tensor(state):
                there.setdefault(key, {}).update(zip(names, state[key], strict=True))
        for (_, indices), pool in zip(self.layout.groups, self.pools, strict=True):
            names, own = [self.layout.names[i] for i in indices], pool.state_dict()
            arrays = {
                key: [there.get(key, {}).get(name, mine) for name, mine in zip(names, own[key], strict=True)]
                for key in _arrays_by_tensor(own)
            }
            pool.load_state_dict({**own, **arrays, "iteration": iteration, **self.initial_state})
        super().take_over(other)


def _arrays_by_tensor(state: Mapping[str, object]) -> list[str]:
    """Return the keys of a pool's state whose values have an array for each tensor."""
    return [key for key in ("residuals", "velocities") if key in state]


__all__ = ["ResidualSynchronizer"]
