"""The move of a training to another strategy: the state that it continues from, and the part that is applied."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from gradientflow.agreement import failing_together
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError
from gradientflow.strategies.exchange.pending import Arrays, Pending


@dataclass(frozen=True)
class Settled:
    """The decision on a `Pending`, equal on all ranks except for `residuals`. Flat arrays, by name of the tensor.

    Attributes
    ----------
    weights : dict of str to array
        Weights to continue from; empty if these are the weights of the model.
    gradients : dict of str to array
        Gradients for one step on these weights, for each tensor that has something pending.
    residuals : dict of str to array
        Residuals of this rank for the new strategy to keep.
    momentum : dict of str to array
        Momentum of the servers that had the weights.
    """

    weights: Arrays = field(default_factory=dict)
    gradients: Arrays = field(default_factory=dict)
    residuals: Arrays = field(default_factory=dict)
    momentum: Arrays = field(default_factory=dict)


def check_choice(pending: object) -> None:
    """Raise unless the choice is "apply", "drop" or None."""
    if pending not in ("apply", "drop", None):
        raise ArgumentError(f"pending is 'apply', 'drop' or None, not {pending!r}")


def settle(
    comm: Communicator, found: Pending, pending: str | None, names: tuple[str, str], takes_residuals: bool
) -> Settled:
    """Decide on what is pending in a state; raise on all ranks, or on none. Collective, unless the state is empty.

    Parameters
    ----------
    comm : Communicator
        The ranks that load the state.
    found : Pending
        The pending part of this rank's state.
    pending : {"apply", "drop"} or None
        The choice of the caller, the same on all ranks.
    names : pair of str
        The strategies that have saved the state, and load it.
    takes_residuals : bool
        True if the new strategy keeps residuals of gradients.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If something is pending, and there is no choice, or it cannot be applied or dropped.
    """
    if found.is_empty:
        return Settled()
    if found.servers:
        # Each rank may have read the servers at another moment.
        return Settled(
            _of_rank_0(comm, found.servers["weights"]), momentum=_of_rank_0(comm, found.servers.get("momentum", {}))
        )
    source, target = names
    has_residuals = any(each.any() for each in found.residuals.values())
    steps = found.has_steps() or (found.common is None and _differ(comm, found.weights))
    has_residuals, has_steps = comm.allreduce(np.array([has_residuals, steps], np.int64), "max").astype(bool).tolist()
    takes = takes_residuals and not found.has_momentum and found.weights is None
    kept = [
        *(["gradients that ranks have not sent"] if has_residuals and not takes else []),
        *(["steps that ranks have made on weights of their own"] if has_steps else []),
    ]
    what = f"the state of {source} has {' and '.join(kept)}"
    with failing_together(comm):
        if kept and pending is None:
            raise ArgumentError(
                f"{what}, which {target} does not take: load_state_dict(state, pending='apply') puts their mean into "
                "the weights, and pending='drop' drops them"
            )
        if kept and pending == "apply" and found.obstacle:
            raise ArgumentError(f"{what}, and they cannot be applied: {found.obstacle}")
        if has_steps and pending == "drop" and found.common is None:
            raise ArgumentError(f"{what}, and no weights to go back to: load_state_dict(state, pending='apply')")
    weights: Arrays = {}
    if found.weights is not None:
        drops = pending == "drop" and found.common is not None
        own = found.common if drops and found.common is not None else found.weights
        weights = _means(comm, own) if has_steps and not drops else dict(own)
    gradients: Arrays = {}
    if has_residuals and not takes and pending == "apply":
        gradients = {name: mean for name, mean in _means(comm, found.residuals).items() if mean.any()}
    return Settled(weights, gradients, found.residuals if takes else {})


def _of_rank_0(comm: Communicator, arrays: Arrays) -> Arrays:
    """Return rank 0's arrays. Collective."""
    return {name: comm.broadcast(np.array(each, np.float32)).reshape(-1) for name, each in arrays.items()}


def _means(comm: Communicator, arrays: Arrays) -> Arrays:
    """Return the means over the ranks. Collective."""
    return {name: comm.allreduce(arrays[name].copy(), "mean") for name in sorted(arrays)}


def _differ(comm: Communicator, weights: Arrays | None) -> bool:
    """Return True if the ranks have different weights. Collective if there are any."""
    if weights is None:
        return False
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(np.ascontiguousarray(weights[name]).tobytes())
    digests = comm.allgather(np.frombuffer(digest.digest(), np.uint8))
    return bool((digests != digests[0]).any())


__all__ = ["Settled", "check_choice", "settle"]
