"""The base of strategies written in Python, with gradients as arrays and the calls of a communicator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, cast

import numpy as np

from gradientflow._location import core
from gradientflow.annotations import State, StateDict, TensorLike
from gradientflow.communicator import Communicator
from gradientflow.description import did_you_mean
from gradientflow.errors import ArgumentError, ArgumentTypeError
from gradientflow.pools.residual import check_rank
from gradientflow.strategies.contract import Strategy, Synchronizer, require_one_of
from gradientflow.strategies.layout import Layout
from gradientflow.strategies.update import Iteration, Kind, Phase, Update, Withheld

from .nonfinite import ALONE, first_nonfinite, is_finite, nonfinite_error
from .places import PlacedSynchronizer
from .state import check_keys, check_names, in_order

# Read for each gradient: a name of the module is faster than an attribute of the enum.
_IDLE, _FAILED = Phase.IDLE, Phase.WAIT_FAILED


class ArraySynchronizer(PlacedSynchronizer):
    """The base class of strategies written with NumPy arrays and the calls of `comm`, in memory of the host.

    A subclass overrides some of these methods, and may call `comm` in any method but `prepare`:

    - ``gradient_ready(index, gradient)``: a gradient is final. It is called for all tensors, in the order of the layout
      on every rank, so all ranks make the same calls in the same order. A tensor that is ready early waits for earlier
      ones. A tensor without a gradient is handed over as zeros, and so is a gradient that is not finite if
      `checks_finite` is True.
    - ``backward_done()``: all gradients were handed over; when it returns, the step can use `gradients`. It returns
      None, or "written" if it has changed the weights (``layout.weights``) itself.
    - ``after_step()``, ``finish()``, ``prepare()``: as in `Synchronizer`.

    ``state_names`` lists the attributes of a checkpoint: numbers, arrays, and lists of them. A list with an array for
    each tensor, such as residuals, is matched by the names of the tensors. Changes that `gradient_ready` and
    `backward_done` make to these attributes are undone when the iteration is skipped or given up; `prepare` must not
    change them. A gradient or mean that is not finite never stays in them: where gradients are averaged and there are
    such attributes, it ends the iteration in `NonFiniteError` on all ranks, or skips it if there is a loss scale.
    Where gradients are local, it skips the step on its rank, which gets the error after the step.

    Each synchronizer has a communicator of its own. A rank that gives up an iteration leaves this communicator: calls
    of all other ranks fail and name that rank, and all ranks continue on a new communicator.

    Attributes
    ----------
    comm : Communicator
        The communicator of this synchronizer alone.
    gradients : tuple of arrays
        One array for each tensor, in node memory, where an allreduce is fastest.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the tensors are on a device.
    gradientflow.errors.ArgumentTypeError
        If some tensors are bfloat16, and the package ml_dtypes is not installed.
    """

    state_names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, comm: Communicator, layout: Layout, strategy: Strategy) -> None:
        reserved = {"names", "rank", "ranks"}.intersection(self.state_names)
        if isinstance(self.state_names, str) or reserved:
            raise ArgumentError(
                f"state_names of {type(self).__name__} are {self.state_names!r}: what is needed is a tuple of names of "
                "attributes, other than names, rank and ranks"
            )
        super().__init__(comm, layout, strategy)
        self._parent = comm
        self.comm = self._parent._own_part(0)
        self._sent_before: int | None = 0  # bytes sent through communicators that the synchronizer has left
        self._lock = threading.RLock()
        self._before: StateDict | None = None  # state before the iteration
        self._is_ready: list[bool] = []
        self._next = 0  # next tensor to be handed over
        self._phase = Phase.IDLE  # IDLE, HANDING_OVER, or WAIT_FAILED once a moment of the iteration has failed
        self._found: int | None = None  # first gradient of the iteration on this rank that is not finite
        self._start_next_iteration()

    # ---- for subclasses ------------------------------------------------------------------------------------------

    def gradient_ready(self, index: int, gradient: TensorLike) -> object:
        """Take a gradient that is final."""

    def backward_done(self) -> Kind | None:
        """End the exchange: the gradients are ready for the step, or the weights are written."""

    def withheld(self) -> Withheld:
        """Return the attribute `residuals`, if there is one."""
        return Withheld(getattr(self, "residuals", ()))

    def check_complete(self) -> None:
        """Raise unless all attributes in `state_names` exist, and `gradient_source` has an allowed value."""
        super().check_complete()
        require_one_of(self, "gradient_source", ("place", "any_place", "none"))
        for name in self.state_names:
            if not hasattr(type(self), name) and not hasattr(self, name):  # a property is not read
                raise ArgumentError(
                    f"state_names of {type(self).__name__} have {name!r}, and it has no such attribute when bind "
                    f"returns it{did_you_mean(name, vars(self))}"
                )

    def nonfinite_mean(self) -> int | None:
        """Return the first tensor whose gradient is not finite after the exchange."""
        return first_nonfinite(self.gradients)

    def state_before(self) -> StateDict:
        """Return copies of the state that `gradient_ready` and `backward_done` may change: all in `state_names`."""
        return {name: _mapped(getattr(self, name), np.copy) for name in self.state_names}

    # ---- the moments of an iteration -----------------------------------------------------------------------------

    def begin(self, iteration: Iteration) -> None:
        """Begin an iteration. Calls of `comm` are refused in `prepare`."""
        comm = self.comm
        self.comm = cast("Communicator", _RefusingCommunicator(comm, f"prepare() of {type(self).__name__}"))
        try:
            super().begin(iteration)
        finally:
            self.comm = comm

    def ready(self, index: int, stream: object = None, elsewhere: int | None = None) -> None:  # noqa: D102
        with self._lock, self._in_iteration():
            if self._is_ready[index]:
                raise ArgumentError(f"the gradient of {self.layout.names[index]} was already ready in this iteration")
            self._is_ready[index] = True
            while self._next < len(self._is_ready) and self._is_ready[self._next]:
                self._hand_over(self._next)
                self._next += 1

    def _hand_over(self, index: int) -> None:
        gradient = self.gradients[index]
        if self.checks_finite and not is_finite(gradient):
            if self._found is None:
                self._found = index
            gradient[...] = 0
        returned = self.gradient_ready(index, gradient)
        if returned is not None:
            raise ArgumentTypeError(
                f"gradient_ready of {self.strategy.name} returned a {type(returned).__name__}: it returns nothing, and "
                "changes the gradient in its place"
            )

    def flush(self, stream: object = None) -> None:  # noqa: D102
        for index, is_ready in enumerate(self._is_ready):
            if not is_ready:
                self.ready(index, stream)

    def wait(self, stream: object = None) -> Update:  # noqa: D102
        self.flush(stream)
        with self._in_iteration():
            kind = self.backward_done() or "apply"
            if kind not in ("apply", "written"):
                message = f"backward_done of {self.strategy.name} returned {kind!r}: it returns None or 'written'"
                raise ArgumentTypeError(message)
            rank, found = self._exchange_status(kind)
        self._start_next_iteration()
        if found is None:
            return self.update() if kind == "apply" else Update(kind)
        if kind == "apply":
            self._restore()
        if self.skips_nonfinite:
            return Update("skipped")
        for memory in self._memory:
            memory[...] = 0
        if kind == "written":
            outcome = f"{self.strategy.name} has written weights with zeros in its place"
        elif self.strategy.gradients == "mean":
            outcome = f"no weight was changed, and what is kept ({', '.join(self.state_names)}) is as before"
        else:
            outcome = ALONE
        error = nonfinite_error(f"the gradient of {self.layout.names[found]}", rank, outcome)
        if self.strategy.gradients == "mean":
            raise error
        self._pending_error = error
        return Update("skipped")

    @property
    def checks_finite(self) -> bool:
        """True if gradients have to be checked before they get into the state."""
        kind = self.strategy.gradients
        return self.skips_nonfinite or kind == "local" or bool(kind == "mean" and self.state_names)

    def _exchange_status(self, kind: Kind) -> tuple[int | None, int | None]:
        """Exchange `extra`, and marks for gradients that are not finite. Comes last, after all calls that may fail.

        Each rank has two marks, which are 0 or a tensor's index plus 1: the first tensor whose own gradient is not
        finite, and the first whose mean is not. Returns the rank (None for a mean) and the tensor (None if none).
        """
        mine, averaged = self._found, None
        if self.checks_finite and kind == "apply" and self.gradient_source != "none":
            averaged = self.nonfinite_mean()
        if self.strategy.gradients != "mean":
            return self.comm.rank, mine if mine is not None else averaged
        marks = np.zeros((2, self.comm.size))
        marks[:, self.comm.rank] = [0 if each is None else each + 1 for each in (mine, averaged)]
        status = np.concatenate([self.extra, marks.ravel()])
        self.comm.allreduce(status, "mean")
        self.extra[:] = status[: len(self.extra)]
        places = np.flatnonzero(status[len(self.extra) :])
        if not len(places):
            return None, None
        place = int(places[0])
        tensor = round(float(status[len(self.extra) + place]) * self.comm.size) - 1
        return place if place < self.comm.size else None, tensor

    def update(self) -> Update:  # noqa: D102
        return Update("apply", self._native_updates())

    def _restore(self) -> None:
        """Restore the state from before the iteration."""
        if self._before is not None:
            self._take(self._before)
            self._before = None

    def rollback(self, phase: Phase, stream: object = None) -> None:  # noqa: D102
        if self._phase is not Phase.IDLE or phase is Phase.AVERAGED:
            self._restore()
        if phase is Phase.AVERAGED:
            return
        is_local = self.strategy.gradients == "local" and phase is not Phase.STEP_FAILED
        self._start_next_iteration()
        if is_local:  # the iteration had nothing to exchange
            return
        self._sent_before = self.bytes_sent
        self.comm._end(False)  # ends calls of peers that need this rank
        self.comm = self._parent._own_part(0)

    def close(self, orderly: bool = True) -> None:  # noqa: D102
        self.comm._end(orderly)

    @property
    def bytes_sent(self) -> int | None:
        """Bytes that this rank has sent in messages through `comm`, its parts and its pools; None if unknown."""
        sent = self.comm.bytes_sent
        return None if sent is None or self._sent_before is None else self._sent_before + sent

    @contextmanager
    def _in_iteration(self) -> Iterator[None]:
        """Refuse further moments of an iteration once one has failed."""
        if self._phase is _FAILED:
            message = "the iteration has failed: give it up with zero_grad() or abandon(), and begin a new one"
            raise ArgumentError(message)
        if self._phase is _IDLE:
            self._phase = Phase.HANDING_OVER
            self._before = self.state_before()
        try:
            yield
        except BaseException:
            self._phase = Phase.WAIT_FAILED
            raise

    def _start_next_iteration(self) -> None:
        self._is_ready = [False] * len(self.layout)
        self._next = 0
        self._phase = Phase.IDLE
        self._found = None

    def _native_updates(self) -> tuple[TensorLike, ...]:
        update = core.Update
        return tuple(
            update(memory, dtype, offsets)
            for memory, (dtype, _), offsets in zip(self._memory, self.layout.groups, self._offsets, strict=True)
        )

    # ---- state ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> StateDict:
        """Return this rank's attributes in `state_names`, and its weights if weights differ between ranks."""
        return self._state(self.comm.rank, np.copy)

    def consolidated_state_dict(self) -> StateDict:
        """Return that state with float arrays averaged over the ranks, everything else as on rank 0. Collective."""
        return self._state(None, self._averaged)

    def _averaged(self, array: np.ndarray) -> TensorLike:
        is_whole = array.dtype.kind in "iub"
        return self.comm.broadcast(array.copy()) if is_whole else self.comm.allreduce(array.copy(), "mean")

    def _entries(self) -> StateDict:
        """Return the entries of a state, by name."""
        entries = {name: getattr(self, name) for name in self.state_names}
        if self.strategy.gradients != "mean" and self.layout.weights:
            entries["weights"] = list(self.weights)
        return entries

    def _state(self, rank: int | None, taken: Callable[[TensorLike], TensorLike]) -> StateDict:
        entries = {name: _mapped(value, taken) for name, value in self._entries().items()}
        return {"names": list(self.layout.names), "rank": rank, "ranks": self.comm.size, **entries} if entries else {}

    def check_state_dict(self, state: State) -> None:
        """Raise unless the state has the attributes in `state_names`, and is for this rank and these tensors."""
        entries = self._entries()
        if not entries:
            return
        check_keys(self.strategy.name, {"names", "rank", "ranks", *entries}, state)
        if state["rank"] is not None:
            check_rank(self.comm, state)
        check_names(self.layout, state)
        for name, value in entries.items():
            if _shapes(value) != _shapes(self._in_order(state[name], state["names"])):
                raise ArgumentError(f"the state is of another model: its {name} have other shapes")

    def load_state_dict(self, state: State | None) -> None:
        """Load a state; without a state, restore the strategy's initial state. Collective."""
        if state is not None:
            self._take({name: self._in_order(state[name], state["names"]) for name in self._entries()})
        elif self.state_names:
            fresh = self.strategy.bind(self._parent, self.layout)
            self._take({name: getattr(fresh, name) for name in self.state_names})
            fresh.close()

    def take_over(self, other: Synchronizer) -> None:
        """Take the attributes in `state_names` of another synchronizer, by the names of tensors.

        If an iteration of `other` has failed, it is undone first, unless it was committed.
        """
        assert isinstance(other, ArraySynchronizer)
        if other._phase is not Phase.IDLE:
            other._restore()
        moved = self._move_from(other) if other.comm.closed else ()
        for name in self.state_names:
            if name in moved:
                continue
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, list) and len(mine) == len(self.layout) and len(theirs) == len(other.layout):
                theirs = in_order(theirs, other.layout.names, self.layout, mine)
            self._take({name: theirs})

    def _move_from(self, other: Any) -> Sequence[str]:
        """Take over memory of a closed synchronizer. Return the names of the attributes that need no copy."""
        return ()

    def _in_order(self, value: TensorLike, names: Sequence[str]) -> TensorLike:
        """Return a list with an item for each tensor in the order of the layout, and any other value as it is."""
        is_per_tensor = isinstance(value, list) and len(value) == len(names)
        return in_order(value, names, self.layout) if is_per_tensor else value

    def _take(self, values: Mapping[str, TensorLike]) -> None:
        """Set entries of the state: arrays in place, everything else as a copy."""
        entries = self._entries()
        for name, value in values.items():
            mine = entries[name]
            if isinstance(mine, list) and _shapes(mine) == _shapes(value):
                for index, (old, new) in enumerate(zip(mine, value, strict=True)):
                    if isinstance(old, np.ndarray):
                        old[...] = new
                    else:
                        mine[index] = new
            elif isinstance(mine, np.ndarray) and _shapes(mine) == _shapes(value):
                mine[...] = value
            else:
                number = isinstance(mine, bool | int | float) and value is not None
                setattr(self, name, type(mine)(value) if number else _mapped(value, np.copy))

    def summary(self, state: Mapping[str, object]) -> dict[str, str]:
        """Return the numbers of a state: these have to be the same on all ranks."""
        values = {name: state[name] for name in self.state_names}
        return {name: str(value) for name, value in values.items() if not isinstance(value, list | np.ndarray)}


class _RefusingCommunicator:
    """A communicator that has attributes, and refuses calls."""

    def __init__(self, comm: Communicator, who: str) -> None:
        self._comm = comm
        self._who = who

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the communicator, unless it is a call."""
        value = getattr(self._comm, name)
        if callable(value) and name not in ("describe", "span"):
            raise ArgumentError(
                f"{self._who} uses comm.{name}: at the beginning of an iteration the ranks make no calls, since one "
                "that gives up might not come; gradient_ready, backward_done and after_step may"
            )
        return value


def _mapped(value: object, function: Callable[[TensorLike], TensorLike]) -> object:
    """Return an attribute with a function applied to each of its arrays."""
    if isinstance(value, np.ndarray):
        return function(value)
    return [_mapped(each, function) for each in value] if isinstance(value, list) else value


def _shapes(value: object) -> object:
    """Return the shapes of the arrays of an attribute, nested as they are."""
    if isinstance(value, list):
        return [_shapes(each) for each in value]
    return value.shape if isinstance(value, np.ndarray) else None


__all__ = ["ArraySynchronizer"]
