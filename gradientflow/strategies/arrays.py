"""The base of strategies that are written in Python: gradients as arrays, and the calls of a communicator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gradientflow._location import load_core
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError, ArgumentTypeError
from gradientflow.memory import array_over, numpy_dtype

from .layout import Layout
from .strategy import Strategy
from .synchronizer import Synchronizer
from .update import Kind, Update

_ALIGNMENT = 64  # bytes, at whose multiples gradients begin


class ArraySynchronizer(Synchronizer):
    """What to derive from to write a strategy with NumPy arrays and the calls of `comm`. In memory of the host.

    A subclass has some of these methods, and may call `comm` in any of them but `begin` and `drop`:

    - ``gradient_ready(index, gradient)``: a gradient is final. It is called for all tensors, in the order of the layout
      on every rank, so all ranks make the same calls in the same order. A tensor that is ready early waits for those
      before it; one without a gradient has zeros. What is returned is ignored.
    - ``backward_done()``: all gradients were handed over; when it returns, `gradients` are what the step shall use. It
      returns None, or "written" if it has changed the weights (``layout.weights``) itself.
    - ``after_step()``, ``finish()``, ``begin()``: as in `Synchronizer`.

    ``state_names`` lists the attributes that are kept in checkpoints: numbers, and lists with an array for each tensor,
    such as residuals.

    The communicator is its own. When a rank gives up an iteration, it leaves the communicator: calls of the other ranks
    fail and name that rank, and all of them meet on a new one.

    Attributes
    ----------
    comm : Communicator
        For this strategy alone.
    gradients : tuple of arrays
        One for each tensor, in node memory, where an allreduce is fastest.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the tensors are on a device.
    """

    state_names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, comm: Communicator, layout: Layout, strategy: Strategy) -> None:
        super().__init__(comm, layout, strategy)
        if layout.device != "cpu":
            message = f"{strategy.name} works in memory of the host, and the tensors are on CUDA device {layout.device}"
            raise ArgumentError(message)
        self._parent = comm
        self.comm = self._new_communicator()
        self._memory: list[npt.NDArray[np.uint8]] = []
        self._offsets: list[list[int]] = []
        for dtype, indices in layout.groups:
            itemsize = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
            places = [0]
            for index in indices:
                nbytes = layout.counts[index] * itemsize
                places.append(places[-1] + -(-nbytes // _ALIGNMENT) * _ALIGNMENT)
            self._memory.append(comm.empty(places.pop(), "uint8"))
            self._offsets.append(places)
        self._lock = threading.RLock()
        self._is_ready = [False] * len(layout)
        self._next = 0  # tensor to be handed over

    # ---- for subclasses ------------------------------------------------------------------------------------------

    def gradient_ready(self, index: int, gradient: Any) -> object:
        """Take a gradient that is final."""

    def backward_done(self) -> Kind | None:
        """End the exchange: the gradients are what the step shall use, or the weights are written."""

    # ---- memory --------------------------------------------------------------------------------------------------

    def memory(self, group: int) -> npt.NDArray[np.uint8]:  # noqa: D102
        return self._memory[group]

    def offsets(self, group: int) -> Sequence[int]:  # noqa: D102
        return self._offsets[group]

    def zero(self, group: int, stream: Any = None) -> None:  # noqa: D102
        self._memory[group][...] = 0

    def _arrays(self, group: int) -> Sequence[Any]:
        dtype, indices = self.layout.groups[group]
        return [
            array_over(self._memory[group], offset, self.layout.shapes[index], numpy_dtype(dtype))
            for offset, index in zip(self._offsets[group], indices, strict=True)
        ]

    # ---- the moments of an iteration -----------------------------------------------------------------------------

    def ready(self, index: int, stream: Any = None) -> None:  # noqa: D102
        with self._lock:
            if self._is_ready[index]:
                message = f"the gradient of {self.layout.names[index]} was already ready in this iteration"
                raise ArgumentError(message)
            self._is_ready[index] = True
            while self._next < len(self._is_ready) and self._is_ready[self._next]:
                self.gradient_ready(self._next, self.gradients[self._next])
                self._next += 1

    def flush(self, stream: Any = None) -> None:  # noqa: D102
        for index, is_ready in enumerate(self._is_ready):
            if not is_ready:
                self.ready(index, stream)

    def wait(self, stream: Any = None) -> Update:  # noqa: D102
        if not all(self._is_ready):
            self.flush(stream)
        if len(self.numbers) and self.strategy.gradients == "mean":
            self.comm.allreduce(self.numbers, "mean")
        kind = self.backward_done() or "apply"
        self._start_next_iteration()
        if kind not in ("apply", "written"):
            message = f"backward_done of {self.strategy.name} returned {kind!r}: it returns None or 'written'"
            raise ArgumentTypeError(message)
        if kind == "apply" and self.skips_nonfinite and not self._is_finite():
            return Update("skipped")
        return Update(kind, self._native_updates() if kind == "apply" else ())

    def abandon(self, stream: Any = None) -> None:  # noqa: D102
        self._start_next_iteration()
        self.comm._native.close(False)  # calls of the others that need this rank end now
        self.comm = self._new_communicator()

    def close(self, orderly: bool = True) -> None:  # noqa: D102
        if orderly:
            self.comm.close()
        else:
            self.comm._native.close(False)

    def _new_communicator(self) -> Communicator:
        """Return a communicator of the same ranks. Collective."""
        communicator = self._parent.split(0)
        assert communicator is not None  # this rank has a color
        return communicator

    def _start_next_iteration(self) -> None:
        self._is_ready = [False] * len(self.layout)
        self._next = 0

    def _is_finite(self) -> bool:
        return all(bool(np.isfinite(gradient).all()) for gradient in self.gradients)

    def _native_updates(self) -> tuple[Any, ...]:
        update = load_core().Update
        return tuple(
            update(memory, dtype, offsets)
            for memory, (dtype, _), offsets in zip(self._memory, self.layout.groups, self._offsets, strict=True)
        )

    # ---- state ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the attributes in `state_names`, of this rank."""
        return self._state(self.comm.rank, lambda array: array.copy())

    def consolidated_state_dict(self) -> dict[str, Any]:
        """Return the attributes in `state_names`, with arrays averaged over the ranks. Collective."""
        return self._state(None, lambda array: self.comm.allreduce(array.copy(), "mean"))

    def _state(self, rank: int | None, taken: Callable[[Any], Any]) -> dict[str, Any]:
        if not self.state_names:
            return {}
        kept = {name: getattr(self, name) for name in self.state_names}
        return {
            "names": list(self.layout.names),
            "rank": rank,
            "ranks": self.comm.size,
            **{name: [*map(taken, value)] if isinstance(value, list) else value for name, value in kept.items()},
        }

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raise unless the state has the attributes in `state_names`, and is one of this rank and these tensors."""
        missing = {"names", "rank", "ranks", *self.state_names} - set(state) if self.state_names else ()
        if missing:
            message = f"this is not the state of {self.strategy.name}: it has no {', '.join(sorted(missing))}"
            raise ArgumentError(message)
        if not self.state_names:
            return
        mine, theirs = (self.comm.rank, self.comm.size), (state["rank"], state["ranks"])
        if state["rank"] is not None and mine != theirs:
            message = (
                f"this is the state of rank {theirs[0]} of {theirs[1]}, and this is rank {mine[0]} of {mine[1]}: each "
                "rank loads its own, and any rank what consolidated_state_dict() gave"
            )
            raise ArgumentError(message)
        for name in self.state_names:
            mine_now = getattr(self, name)
            if isinstance(mine_now, list) and [np.shape(a) for a in mine_now] != [np.shape(a) for a in state[name]]:
                message = f"the state is of another model: its {name} have other shapes"
                raise ArgumentError(message)

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Go on from a state, or, without one, with zeros for arrays and numbers."""
        for name in self.state_names:
            mine = getattr(self, name)
            if isinstance(mine, list):
                for index, array in enumerate(mine):
                    array[...] = 0 if state is None else state[name][index]
            else:
                setattr(self, name, type(mine)(0 if state is None else state[name]))

    def summary(self, state: Mapping[str, Any]) -> dict[str, str]:
        """Say the numbers of a state: they are the same on all ranks."""
        values = {name: state[name] for name in self.state_names}
        return {name: str(value) for name, value in values.items() if not isinstance(value, list)}


__all__ = ["ArraySynchronizer"]
