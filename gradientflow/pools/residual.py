"""The base of pools that keep residuals, which are gradient entries not sent yet; and their checkpoints."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from gradientflow._location import core
from gradientflow.annotations import StateDict, TensorLike
from gradientflow.arguments import checked_float, checked_int
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError, ArgumentTypeError, GradientFlowError

from .base import BasePool

_FORMAT = 1  # format of state dicts


def check_rank(comm: Communicator, state: Mapping[str, object]) -> None:
    """Raise unless a state was saved by this rank, with the same number of ranks."""
    mine, theirs = (comm.rank, comm.size), (state["rank"], state["ranks"])
    if mine != theirs:
        raise ArgumentError(
            f"this is the state of rank {theirs[0]} of {theirs[1]}, and this is rank {mine[0]} of {mine[1]}: save "
            "consolidated_state_dict(), which any number of ranks load, or each rank's own state_dict(), for that rank"
        )


class ResidualPool(BasePool, ABC):
    """The base class of `SparseGradientPool` and `TopKGradientPool`."""

    _native: core.SparsePool | core.TopKPool
    _comm: Communicator
    _kind: str  # name of the kind of pool, for messages
    _kept: tuple[str, ...] = ("residuals",)  # entries of a state that are arrays by tensor

    @property
    def skip_nonfinite(self) -> bool:
        """True to drop an iteration with infinite or NaN gradients on all ranks, False to raise an error."""
        return bool(self._native.skip_nonfinite)

    @skip_nonfinite.setter
    def skip_nonfinite(self, skip: bool) -> None:
        self._native.skip_nonfinite = bool(skip)

    def has_nonfinite(self, stream: object = None) -> bool:
        """Return True if the last iteration was dropped because a gradient was not finite."""
        return self.overflowed

    def has_gradient(self, index: int) -> bool:
        """Return True if tensor `index` has a nonzero gradient after the last iteration."""
        nbytes = math.prod(self._shapes[index]) * self._itemsize
        memory = self._array(self.offsets[index], (nbytes,), "uint8")
        on_host = memory if isinstance(memory, np.ndarray) else memory.get()
        return bool(as_float32(on_host, self.dtype).any())

    @property
    def residuals(self) -> tuple[npt.NDArray[np.float32], ...]:
        """The residuals of this rank, by tensor: copies, in memory of the host."""
        return self._by_tensor(self._native.residuals)

    def _by_tensor(self, flat: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float32], ...]:
        """Split a flat array, which is laid out like the gradients, into arrays by tensor."""
        starts = [offset // self._itemsize for offset in self.offsets]
        return tuple(
            flat[start : start + math.prod(shape)].reshape(shape)
            for start, shape in zip(starts, self._shapes, strict=True)
        )

    @property
    def overflowed(self) -> bool:
        """True if the last iteration was dropped because a gradient was not finite."""
        return bool(self._native.overflowed)

    @property
    def nonfinite_tensors(self) -> tuple[int, range] | None:
        """The rank whose gradient has raised `NonFiniteError`, and the tensors to which the gradient may belong.

        The rank is -1 if the gradients of all ranks were finite and their mean was not.
        """
        place = self._native.nonfinite
        return None if place is None else (place[0], range(place[1], place[2] + 1))

    @property
    def loss_scale(self) -> float:
        """The factor in the gradients of the views, which residuals do not have. A power of two."""
        return float(self._native.loss_scale)

    @loss_scale.setter
    def loss_scale(self, scale: float) -> None:
        self._native.loss_scale = checked_float("loss_scale", scale)

    @property
    def bookkeeping_seconds(self) -> float:
        """Seconds that this rank took in the last iteration to select, gather and scatter entries.

        On a CUDA device it is the host's time to launch this work; in a top-k pool, the device's time to do it.
        """
        return float(self._native.bookkeeping_seconds)

    # ---- checkpoints ---------------------------------------------------------------------------------------------

    @abstractmethod
    def _own_state(self) -> dict[str, object]:
        """Return the entries of a state other than rank, iteration and the arrays by tensor."""

    @abstractmethod
    def _restore(self, state: Mapping[str, object], kept: Sequence[npt.NDArray[np.float32]]) -> None:
        """Load a checked state; `kept` has its arrays by tensor, laid out as the gradients. Collective."""

    @abstractmethod
    def _check_own_state(self, state: Mapping[str, object]) -> None:
        """Check the entries of a state that `_own_state` returns."""

    def state_dict(self) -> StateDict:
        """Return this rank's checkpoint: residuals, velocities if any, the next selection, and the iteration.

        Between iterations. Each rank has to save and load its own state. For another number of ranks, or another
        layout, save `consolidated_state_dict`.
        """
        return self._state(self._comm.rank, {name: list(getattr(self, name)) for name in self._kept})

    def consolidated_state_dict(self) -> StateDict:
        """Return residuals, and velocities if any, summed over the ranks, and the iteration. Collective.

        The same on all ranks. Any number of ranks can load it: each then has the mean over the ranks that saved it.
        Residuals enter later updates as a mean over the ranks, so the updates are as large as without the checkpoint.
        The residuals of single ranks are lost, so a run does not continue bit for bit.
        """
        kept = {name: [each.copy() for each in getattr(self, name)] for name in self._kept}
        for arrays in kept.values():
            for each in arrays:
                self._comm.allreduce(each.reshape(-1), "sum")
        return self._state(None, kept)

    def _state(self, rank: int | None, kept: StateDict) -> StateDict:
        own = self._own_state()
        return {"format": _FORMAT, "rank": rank, "ranks": self._comm.size, "iteration": self.iteration, **own, **kept}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Load a state of `state_dict` of the same rank, or of `consolidated_state_dict`. Between iterations.

        Collective: all ranks load states of the same iteration.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If it is the state of another rank, of another number of ranks, or of other tensors, or has numbers that are
            not finite in float32. Nothing is changed then.
        gradientflow.errors.MismatchError
            On every rank, if the ranks would continue differently, or another rank has refused its state. Nothing is
            changed then.
        """
        try:
            kept = self._checked_state(state)
        except GradientFlowError as error:
            self._refuse_state(error)
            raise
        self._restore(state, kept)

    def _refuse_state(self, why: GradientFlowError) -> None:
        """Tell all other ranks that load a state that this rank refuses its own, with the reason."""
        self._native.refuse_state(str(why))

    def set_residuals(self, residuals: Sequence[npt.NDArray[np.float32]]) -> None:
        """Replace the residuals of this rank, by tensor, and zero the gradients. Between iterations; not collective.

        On a CUDA device the gradients are zeroed in the default stream.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If arrays and tensors differ in number or shape, or a number is not finite in float32: before anything is
            changed.
        gradientflow.errors.ArgumentTypeError
            If they are not arrays of numbers.
        """
        self._native.set_residuals(self._flat(residuals, "the residuals"), 0)

    def check_state_dict(self, state: Mapping[str, object]) -> None:
        """Raise the error that `load_state_dict` would raise for this rank's state; change nothing."""
        self._checked_state(state)

    def _checked_state(self, state: Mapping[str, object]) -> list[npt.NDArray[np.float32]]:
        """Check a state; return its arrays by tensor, each laid out as the gradients."""
        if not isinstance(state, Mapping):
            raise ArgumentTypeError(f"a state is a dictionary, not a {type(state).__name__}")
        missing = {"format", "rank", "ranks", "iteration", *self._own_state(), *self._kept} - set(state)
        if missing or state["format"] != _FORMAT:
            raise ArgumentError(f"this is not the state of a {self._kind}")
        if state["rank"] is not None:
            check_rank(self._comm, state)
        kept = [self._flat(state[name], f"the {name} of the state") for name in self._kept]
        self._check_own_state(state)
        checked_int("iteration", state["iteration"], 0)
        saved_by = checked_int("ranks", state["ranks"], 1)
        return [each / np.float32(saved_by) for each in kept] if state["rank"] is None else kept

    def _flat(self, residual: object, what: str) -> npt.NDArray[np.float32]:
        """Check arrays by tensor; return them in one array, laid out as the gradients."""
        if not isinstance(residual, Sequence | np.ndarray):
            message = f"{what} is a sequence of arrays, one for each tensor, not a {type(residual).__name__}"
            raise ArgumentTypeError(message)
        arrays = [array_of(f"{what} of tensor {index}", each) for index, each in enumerate(residual)]
        shapes = [array.shape for array in arrays]
        if shapes != self._shapes:
            theirs, mine = _brief(shapes), _brief(self._shapes)
            raise ArgumentError(f"{what} is that of another model: it has tensors of {theirs}, this pool {mine}")
        flat = np.zeros(self.nbytes // self._itemsize, np.float32)
        for index, (offset, array) in enumerate(zip(self.offsets, arrays, strict=True)):
            start = offset // self._itemsize
            place = flat[start : start + array.size]
            with np.errstate(over="ignore"):
                place[...] = array.reshape(-1)
            if not np.isfinite(place).all():
                raise ArgumentError(f"{what} of tensor {index} has numbers that are not finite in float32")
        return flat

    @property
    def _itemsize(self) -> int:
        return 4 if self.dtype == "float32" else 2


def array_of(name: str, values: TensorLike) -> np.ndarray:
    """Return an array of real numbers or flags."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentTypeError(f"{name} is not an array: {error}") from error
    if array.size and array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise ArgumentTypeError(f"{name} is an array of numbers, not of {array.dtype}")
    return array


def as_float32(memory: npt.NDArray[np.uint8], dtype: str) -> npt.NDArray[np.float32]:
    """Return numbers of a dtype as float32."""
    if dtype == "bfloat16":
        return (memory.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return memory.view(dtype).astype(np.float32)


def _brief(shapes: Sequence[tuple[int, ...]]) -> str:
    shown = ", ".join(map(str, shapes[:4]))
    return f"{len(shapes)} shapes, {shown}, ..." if len(shapes) > 4 else f"shapes {shown}"


__all__ = ["ResidualPool", "array_of", "as_float32", "check_rank"]
