"""The state of training in a checkpoint: strategy and loss scale, with the kind of training and its tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from gradientflow.agreement import failing_together, require_same
from gradientflow.annotations import State, StateDict
from gradientflow.errors import ArgumentError
from gradientflow.strategies import Layout
from gradientflow.strategies.exchange.pending import Pending

from .consolidation import consolidated
from .loop import Loop
from .moving import Settled, check_choice, settle

_KEYS = {"of", "shapes", "loss_scale", "order_is_known", "synchronizer"}


class TrainingState:
    """Checkpoints of a training loop, for all frameworks.

    The state of another strategy is loaded in two parts: `load` decides on what is pending in it, `begin` resets the
    strategy here.

    Parameters
    ----------
    loop : Loop
        The training.
    optimizer : str
        The kind of optimizer, for frameworks whose state includes the optimizer's.
    remark : str
        Text about the optimizer, also kept in states.
    """

    def __init__(self, loop: Loop, optimizer: str = "", remark: str = "") -> None:
        self._loop = loop
        self._optimizer = optimizer
        self._kind = kind_of(loop.strategy.name, optimizer, remark)

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
        return shapes_of(self._loop.layout)

    def moves(self, state: State) -> bool:
        """Return True if a state is of another strategy."""
        return is_of_another(state, self._kind)

    def pending_in(self, state: State) -> Pending:
        """Return what is pending in a state of another strategy. Does not communicate."""
        return Pending.of(state["synchronizer"], strategy_of(state), self._loop.layout, self._loop.comm)

    def check(self, state: State) -> None:
        """Raise unless a state is of this kind of optimizer, and of a model with these tensors."""
        check_origin(state, self._loop.layout, self._loop.strategy.name, self._optimizer)
        if self.moves(state):
            self.pending_in(state)
        elif state["synchronizer"] is not None:
            self._loop.synchronizer.check_state_dict(state["synchronizer"])

    def load(self, state: State | None, check: Callable[[], object], pending: str | None = None) -> Settled | None:
        """Load the strategy's part of a state; without a state, reset the strategy. Collective.

        `check` raises unless this rank can load the state. Nothing is changed if it raises on any rank, or if the
        states of the ranks do not belong together. With a state of another strategy, nothing is changed at all: the
        result is the decision on what is `pending` in it, and `begin` comes next.
        """
        with failing_together(self._loop.comm):
            check_choice(pending)
            check()
        own = None if state is None else state["synchronizer"]
        entries = {"the kind of state": "a state of an optimizer alone" if own is None else "a state of a strategy"}
        if state is not None and self.moves(state):
            source = strategy_of(state)
            entries = {"the kind of state": f"a state of {source}", "pending": str(pending)}
            require_same(self._loop.comm, "states", entries)
            names = source, self._loop.strategy.name
            takes = self._loop.synchronizer.takes_residuals
            return settle(self._loop.comm, self.pending_in(state), pending, names, takes)
        entries |= {} if own is None else self._loop.synchronizer.summary(own)
        require_same(self._loop.comm, "states", entries)
        self._loop.load(own, state is not None and bool(state["order_is_known"]))
        return None

    def begin(self, settled: Settled) -> None:
        """Reset the strategy, and give it the residuals that it takes. Collective if the strategy has a state."""
        self._loop.load(None, order_is_known=False)
        if settled.residuals:
            self._loop.synchronizer.take_residuals(settled.residuals)

    def load_loss_scale(self, state: State | None) -> None:
        """Load the loss scale of a state."""
        scale = self._loop.loss_scale
        if state is not None and state["loss_scale"] is not None and scale is not None:
            scale.load_state_dict(state["loss_scale"])


def kind_of(strategy: str, optimizer: str, remark: str) -> str:
    """Return the text that a state has about the training that saved it."""
    return f"{strategy} with {optimizer}, {remark}" if optimizer else strategy


def strategy_of(state: State) -> str:
    """Return the name of the strategy that saved a state."""
    return str(state.get("of")).partition(" with ")[0]


def is_of_another(state: State, kind: str) -> bool:
    """Return True if a state is of another strategy than a training with a text of `kind_of`."""
    return strategy_of(state) != strategy_of({"of": kind})


def shapes_of(layout: Layout) -> dict[str, list[int]]:
    """Return the shapes of the tensors, by name."""
    return {name: list(shape) for name, shape in zip(layout.names, layout.shapes, strict=True)}


def check_origin(state: State, layout: Layout, strategy: str, optimizer: str) -> None:
    """Raise unless a state is of this kind of optimizer, and of a model with these tensors."""
    missing = _KEYS - set(state)
    if missing:
        message = f"the state has no {', '.join(sorted(missing))}: it was not made by a DistributedOptimizer"
        raise ArgumentError(message)
    saved_by, _, _ = str(state["of"]).partition(",")
    if saved_by.partition(" with ")[2] != optimizer:
        mine = kind_of(strategy, optimizer, "").partition(",")[0]
        raise ArgumentError(f"the state is of {saved_by}, and this is {mine}: load it into an optimizer of its kind")
    shapes = shapes_of(layout)
    for name, shape in shapes.items():
        if name not in state["shapes"]:
            raise ArgumentError(f"the state is of another model, which has no {name}")
        if list(state["shapes"][name]) != shape:
            message = f"the state is of another model, whose {name} has shape {state['shapes'][name]}, not {shape}"
            raise ArgumentError(message)
    for name in state["shapes"]:
        if name not in shapes:
            raise ArgumentError(f"the state is of another model, which has {name}")


__all__ = ["TrainingState", "check_origin", "is_of_another", "strategy_of"]
