"""The part of a strategy's state that a training with another strategy continues from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gradientflow.annotations import State
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError
from gradientflow.pools.residual import check_rank
from gradientflow.server.optimizers import LARS, as_server_optimizer
from gradientflow.strategies.layout import Layout

from .state import check_names

Floats = npt.NDArray[np.float32]
Arrays = dict[str, np.ndarray]  # flat arrays by name of the tensor

_FINISH_FIRST = "call finish() in a training with {strategy}, save its state then, and load that with pending='drop'"


@dataclass(frozen=True)
class Pending:
    """The gradients and steps in a state that are not in the common weights yet, and the state of servers.

    All strategies keep them in the same form, so the strategy that saved a state is not needed: residuals in "pools" or
    "residuals"; a rank's own weights in "weights", beside the "common" weights of the last exchange; and "server".

    Attributes
    ----------
    residuals : dict of str to array
        Gradients that this rank has not sent. A step with their mean over the ranks is still to be made.
    has_momentum : bool
        True if residuals contain the momentum, so that the optimizer has none.
    weights : dict of str to array, or None
        Weights of this rank, if each rank trains on its own.
    common : dict of str to array, or None
        Common weights of the last exchange, if the state has them beside `weights`.
    servers : dict of str to dict of str to array
        "weights", and moments of the servers' optimizer, each by name of the tensor; empty without servers.
    momentum_has_rate : bool
        True if the momentum of the servers has the learning rate inside, other than with LARS.
    is_under_way : bool
        True if exchanges of weights are under way.
    takes_momentum : bool
        False if the optimizer of the training had to be one without momentum.
    obstacle : str
        The reason why the pending part cannot be applied, and the remedy; empty if it can.
    """

    residuals: Arrays = field(default_factory=dict)
    has_momentum: bool = False
    weights: Arrays | None = None
    common: Arrays | None = None
    servers: dict[str, dict[str, Any]] = field(default_factory=dict)
    momentum_has_rate: bool = False
    is_under_way: bool = False
    takes_momentum: bool = True
    obstacle: str = ""

    @classmethod
    def of(cls, state: State | None, strategy: str, layout: Layout, comm: Communicator) -> Pending:
        """Return the pending part of a state. Does not communicate.

        Parameters
        ----------
        state : mapping or None
            The state of a synchronizer, with arrays.
        strategy : str
            Name of the strategy that saved it, for messages.
        layout : Layout
            The tensors.
        comm : Communicator
            The ranks that load it.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If the state is of another rank or of other tensors, or has numbers that are not finite.
        """
        if not state:
            return cls()
        if "server" in state:
            check_names(layout, state)
            arrays = {key: value for key, value in state["server"].items() if isinstance(value, list)}
            servers = {key: dict(zip(state["names"], value, strict=True)) for key, value in arrays.items()}
            kind = as_server_optimizer(state["server"]["optimizer"])
            return cls(servers=servers, momentum_has_rate=kind.rate_in_momentum and not isinstance(kind, LARS))
        if "pools" in state:
            has_momentum = any("velocities" in pool for pool in state["pools"].values())
            return cls(_of_pools(state, layout, comm), has_momentum, takes_momentum=not has_momentum)
        if not cls.may_be_in(state):
            return cls(takes_momentum=set(state) != {"rounds"})
        check_names(layout, state)
        if state["rank"] is not None:
            check_rank(comm, state)
        names = state["names"]
        residuals, weights, common = (
            None if key not in state else _by_name(names, state[key], layout, key)
            for key in ("residuals", "weights", "common")
        )
        obstacle, is_under_way = "", any(due >= 0 for due in state.get("due", ()))
        if is_under_way:
            obstacle = f"exchanges of {strategy} are under way: {_FINISH_FIRST.format(strategy=strategy)}"
        elif weights is not None and any(each.any() for each in (residuals or {}).values()):
            obstacle = (
                f"the residuals of {strategy} are changes of weights, which only {strategy} can send: "
                f"{_FINISH_FIRST.format(strategy=strategy)}"
            )
        return cls(residuals or {}, False, weights, common, is_under_way=is_under_way, obstacle=obstacle)

    @staticmethod
    def may_be_in(state: State | None) -> bool:
        """Return True if a synchronizer's state has a part for pending gradients, weights or servers."""
        return bool({"pools", "residuals", "weights", "server"} & set(state or ()))

    @property
    def is_empty(self) -> bool:
        """True if a state of this kind never has anything pending, nor the state of servers."""
        return not self.residuals and self.weights is None and not self.servers

    def has_steps(self) -> bool:
        """Return True if this rank's weights are not those of the last exchange, or a later exchange is under way."""
        if self.weights is None or self.common is None:
            return False
        return self.is_under_way or any(
            not np.array_equal(each, self.common[name]) for name, each in self.weights.items()
        )


def _of_pools(state: State, layout: Layout, comm: Communicator) -> Arrays:
    """Return the residuals in the states of pools, one for each dtype; if they are sums over ranks, the means."""
    check_names(layout, state)
    dtypes = dict(zip(layout.names, layout.dtypes, strict=True))
    found: Arrays = {}
    for dtype, pool in state["pools"].items():
        names = [name for name in state["names"] if dtypes[name] == dtype]
        if len(names) != len(pool["residuals"]):
            raise ArgumentError(f"the state is of a model in which other parameters are {dtype}")
        if pool["rank"] is not None:
            check_rank(comm, pool)
        ranks = 1 if pool["rank"] is not None else int(pool["ranks"])
        residuals = [np.asarray(each, np.float32) / np.float32(ranks) for each in pool["residuals"]]
        found |= _by_name(names, residuals, layout, "residuals")
    return found


def _by_name(names: Sequence[str], values: object, layout: Layout, what: str) -> Arrays:
    """Return flat arrays by name, without the empty ones that stand for zeros."""
    if not isinstance(values, list) or len(values) != len(names):
        message = (
            f"the {what} in the state are no list with an array for each tensor: another strategy cannot load them"
        )
        raise ArgumentError(message)
    counts = dict(zip(layout.names, layout.counts, strict=True))
    found = {name: np.asarray(value).reshape(-1) for name, value in zip(names, values, strict=True)}
    found = {name: value for name, value in found.items() if value.size}
    for name, value in found.items():
        if value.size != counts[name]:
            raise ArgumentError(f"the state is of another model: its {what} of {name} have {value.size} elements")
        if not np.isfinite(value.astype(np.float32)).all():
            raise ArgumentError(f"the {what} of {name} in the state have numbers that are not finite in float32")
    return found


__all__ = ["Arrays", "Pending"]
