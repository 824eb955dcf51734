"""The state of training in a checkpoint: strategy and loss scale, with the kind of training and its tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from gradientflow.agreement import failing_together, require_same
from gradientflow.annotations import State, StateDict
from gradientflow.errors import ArgumentError

from .consolidation import consolidated
from .loop import Loop

_KEYS = {"of", "shapes", "loss_scale", "order_is_known", "synchronizer"}


class TrainingState:
    """Checkpoints of a training loop, for all frameworks.

    A state can only be loaded into a training of the same `kind`, such as the name of the strategy.
    """

    def __init__(self, loop: Loop, kind: str) -> None:
        self._loop = loop
        self._kind = kind

    def own(self) -> StateDict:
        """Return this rank's state. Does not communicate."""
        self._loop.take_weights()
        with self._loop.tensors.default_stream():
            return self._with(self._loop.synchronizer.state_dict())

    def common(self) -> StateDict:
        """Return the part of the state that is the same on all ranks, without the strategy's. Does not communicate."""
        return self._with(None)

    def consolidated(self) -> StateDict:
        """Return a state that any number of ranks can load, the same on all. Collective."""
        self._loop.take_weights()
        with self._loop.tensors.default_stream():
            state = self._with(self._loop.synchronizer.consolidated_state_dict())
        return cast("StateDict", consolidated(self._loop.comm, state, means=False))

    def _with(self, of_synchronizer: Mapping[str, object] | None) -> StateDict:
        scale = self._loop.loss_scale
        return {
            "of": self._kind,
            "shapes": self._shapes,
            "loss_scale": None if scale is None else scale.state_dict(),
            "order_is_known": self._loop.backward_order.is_known,
            "synchronizer": of_synchronizer,
        }

    @property
    def _shapes(self) -> dict[str, list[int]]:
        layout = self._loop.layout
        return {name: list(shape) for name, shape in zip(layout.names, layout.shapes, strict=True)}

    def check(self, state: State) -> None:
        """Raise unless a state is of this kind and of a model with these tensors."""
        missing = _KEYS - set(state)
        if missing:
            message = f"the state has no {', '.join(sorted(missing))}: it was not made by a DistributedOptimizer"
            raise ArgumentError(message)
        if state["of"] != self._kind:
            raise ArgumentError(f"the state is of {state['of']}, and this is {self._kind}")
        shapes = self._shapes
        for name, shape in shapes.items():
            if name not in state["shapes"]:
                raise ArgumentError(f"the state is of another model, which has no {name}")
            if list(state["shapes"][name]) != shape:
                message = f"the state is of another model, whose {name} has shape {state['shapes'][name]}, not {shape}"
                raise ArgumentError(message)
        for name in state["shapes"]:
            if name not in shapes:
                raise ArgumentError(f"the state is of another model, which has {name}")
        if state["synchronizer"] is not None:
            self._loop.synchronizer.check_state_dict(state["synchronizer"])

    def load(self, state: State | None, check: Callable[[], object]) -> None:
        """Load the strategy's part of a state; without a state, reset the strategy. Collective.

        `check` raises unless this rank can load the state. Nothing is changed if it raises on any rank, or if the
        states of the ranks do not belong together.
        """
        with failing_together(self._loop.comm):
            check()
        own = None if state is None else state["synchronizer"]
        entries = {"the kind of state": "a state of an optimizer alone" if own is None else "a state of a strategy"}
        entries |= {} if own is None else self._loop.synchronizer.summary(own)
        require_same(self._loop.comm, "states", entries)
        self._loop.load(own, state is not None and bool(state["order_is_known"]))

    def load_loss_scale(self, state: State | None) -> None:
        """Load the loss scale of a state."""
        scale = self._loop.loss_scale
        if state is not None and state["loss_scale"] is not None and scale is not None:
            scale.load_state_dict(state["loss_scale"])


__all__ = ["TrainingState"]
