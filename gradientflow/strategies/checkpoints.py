"""The state of a synchronizer beside the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradientflow.annotations import StateDict, TensorLike


class Checkpointed:
    """The part of `Synchronizer` for checkpoints, and for a synchronizer that replaces another.

    A synchronizer without state needs none of these methods.
    """

    @property
    def has_state(self) -> bool:
        """True if the synchronizer has state beside the weights."""
        return bool(self.state_dict())

    def state_dict(self) -> StateDict:
        """Return this rank's state beside the weights. Between iterations; does not communicate.

        The state has arrays, numbers, text, None, lists, and dictionaries with text as keys. Arrays have the same
        shapes at the same places on all ranks. PyTorch's checkpoints save the states of all ranks. Another number of
        ranks gets means of arrays of floats, and rank 0's values for everything else; but in dictionaries with "ranks",
        "rank" is None.
        """
        return {}

    def consolidated_state_dict(self) -> StateDict:
        """Return a state that any number of ranks can load, the same on all. Collective."""
        return {}

    def check_state_dict(self, state: Mapping[str, object]) -> None:
        """Raise the error that `load_state_dict` would raise on this rank; change nothing."""

    def load_state_dict(self, state: Mapping[str, object] | None) -> None:
        """Load a state; without a state, reset. Between iterations; collective."""

    @property
    def takes_residuals(self) -> bool:
        """True if residuals of gradients from another strategy can be kept here."""
        return False

    def take_residuals(self, residuals: Mapping[str, TensorLike]) -> None:
        """Keep residuals of gradients, flat arrays by name, from now on. Between iterations; after a reset.

        They are this rank's, and their mean over the ranks enters later updates. Tensors without residuals have zeros.
        """

    def take_momentum(self, momentum: Mapping[str, TensorLike]) -> None:
        """Take the optimizer's momentum, flat arrays by name, if steps are made here. After a reset; collective.

        The learning rate is not inside the momentum, except with LARS.
        """

    def summary(self, state: Mapping[str, object]) -> dict[str, str]:
        """Return, as text, the values that have to be the same in the states that the ranks load."""
        return {}

    def check_change(self) -> None:
        """Raise unless another synchronizer can take over now."""

    def take_over(self, other: Any) -> None:
        """Take the state of another synchronizer of the same strategy, by the names of tensors. Between iterations.

        Collective. `other` may be closed, and may have had more ranks. The gradients of its last update are copied to
        the places here afterwards; `update` then describes these.
        """


__all__ = ["Checkpointed"]
