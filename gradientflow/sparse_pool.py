"""A gradient pool that sends the important chunks, and keeps the rest: coarse-grained sparse communication."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ._location import load_core
from .arguments import number as _number
from .arguments import whole
from .base_pool import BasePool, RangeReport, native_communicator, native_threshold, stream_number
from .communicator import Communicator
from .errors import ArgumentError, ArgumentTypeError, GradientFlowError

Density = float | Callable[[int], float]

_FORMAT = 1  # of state dicts


class SparseGradientPool(BasePool):
    """Gradients of which only the most important chunks are averaged over the ranks; the rest waits in residuals.

    The memory is cut into chunks of `chunk_size` elements. In each iteration the chunks that all ranks have agreed on
    are averaged, as in a `GradientPool`: in the background, as soon as they are complete, neighbours together. What is
    in the other chunks is added to this rank's residuals of them, multiplied by `momentum`, and added to the
    gradients of the next iteration. After `wait` the views have the mean gradients where they were sent and zeros
    elsewhere, the same on all ranks: what a step shall use. Then the chunks with the largest L1 norms, summed over the
    ranks, are chosen for the next iteration; of equal ones the first. The first iteration sends everything, since there
    are no norms yet to choose by. (GradientFlow paper, section 3.2 and algorithm 1.)

    Collective: all ranks make the pool with the same arguments. It is closed with `comm`.

    Parameters
    ----------
    comm : Communicator
        Whose ranks take part.
    shapes : sequence of int or of sequences of int
        The shape of each tensor. They lie in memory in this order, each at a multiple of 64 bytes; best is the order in
        which backpropagation produces them. A chunk may span tensors, and the padding between them.
    dtype : {"float32", "float16", "bfloat16"}
        Of all tensors. Residuals are float32.
    density : float or callable, default 0.1
        The share of the chunks that is sent, above 0 and at most 1; or a function of the iteration, 0, 1, ..., that
        gives it. The same on all ranks.
    momentum : float, default 0.9
        The residuals are multiplied by it in every iteration: the momentum of the optimiser. With 1 nothing is lost;
        with 0 what is not sent is dropped.
    chunk_size : int, default 32768
        Elements of a chunk; the last one may have fewer.
    extra : int, default 0
        So many float64 numbers, in `extra`, are averaged along in every iteration.
    fusion_threshold, wire, algorithm
        As in `GradientPool`; they apply to the chunks that are sent. Between nodes "auto" is 512 KiB.
    skip_nonfinite : bool, default False
        Whether an iteration whose gradients are not finite is dropped on all ranks, for a loss scale, rather than an
        error.
    first_iteration : int, default 0
        Number of the first iteration.
    device : str or int, default "cpu"
        As in `GradientPool`. All memory of the pool is there, residuals too, and the results have the same bits
        as on the host.

    Attributes
    ----------
    memory, device, offsets, nbytes, dtype, wire, fusion_threshold
        As in `GradientPool`.
    extra : numpy.ndarray
        The numbers that are averaged along; "tensor" ``len(shapes)`` for `ready`.
    chunk_size : int
        Elements of a chunk.
    chunks : int
        How many there are.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If density, momentum or chunk_size is out of range.
    gradientflow.errors.ArgumentTypeError
        If the dtype is another one.
    gradientflow.errors.MismatchError
        If the ranks make different pools.

    Examples
    --------
    >>> import gradientflow as gf
    >>> with gf.init() as comm:
    ...     pool = gf.SparseGradientPool(comm, [(784, 2048), (2048,)], density=0.1)
    ...     weights = [np.zeros((784, 2048), np.float32), np.zeros(2048, np.float32)]
    ...     optimizer = gf.optimizers.SGD(pool, weights, lr=0.1, momentum=0.9)
    ...     for index, view in enumerate(pool.views):
    ...         view[...] = 1.0
    ...         pool.ready(index)
    ...     pool.wait()
    ...     optimizer.step()
    """

    def __init__(
        self,
        comm: Communicator,
        shapes: Sequence[int | Sequence[int]],
        dtype: npt.DTypeLike | str = "float32",
        density: Density = 0.1,
        momentum: float = 0.9,
        chunk_size: int = 32768,
        *,
        extra: int = 0,
        fusion_threshold: float | str = "auto",
        wire: str | None = None,
        algorithm: str = "auto",
        skip_nonfinite: bool = False,
        first_iteration: int = 0,
        device: str | int = "cpu",
    ) -> None:
        native = native_communicator(comm)
        counts = self._prepare(shapes, dtype, device)
        self.wire = wire
        momentum = _number("momentum", momentum)
        self._density = density
        self._comm = comm
        chunk_size = whole("chunk_size", chunk_size, 1)
        extra = whole("extra", extra, 0)
        first_iteration = whole("first_iteration", first_iteration, 0)
        self.density_at(first_iteration + 1)  # before anything is made
        self._adopt(
            load_core().SparsePool(
                native,
                counts,
                self.dtype,
                chunk_size,
                momentum,
                extra,
                bool(skip_nonfinite),
                first_iteration,
                native_threshold(fusion_threshold),
                wire,
                algorithm,
                self.device,
            )
        )
        self.chunk_size: int = self._native.chunk_size
        self.chunks: int = self._native.chunks

    has_residuals = True  # what is not sent is kept for later

    @property
    def momentum(self) -> float:
        """The residuals are multiplied by it in every iteration. It can be changed between iterations."""
        return float(self._native.momentum)

    @momentum.setter
    def momentum(self, momentum: float) -> None:
        self._native.momentum = _number("momentum", momentum)

    @property
    def skip_nonfinite(self) -> bool:
        """Whether an iteration with gradients that are not finite is dropped, in place of an error, on all ranks."""
        return bool(self._native.skip_nonfinite)

    @skip_nonfinite.setter
    def skip_nonfinite(self, skip: bool) -> None:
        self._native.skip_nonfinite = bool(skip)

    def density_at(self, iteration: int) -> float:
        """Return the density of an iteration.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If it is not above 0 and at most 1.
        """
        density = _number("density", self._density(iteration) if callable(self._density) else self._density)
        load_core().important_count(density, 1)  # which checks it
        return density

    def wait(self, timeout: float | None = None, stream: Any = None) -> None:
        """Wait until the views have the mean gradients where they were sent, and start the next iteration.

        Tensors that are not ready count as zeros on this rank, which may have none where others have some. On a CUDA
        device the host waits, too: it needs the norms to choose chunks by.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most; by default as long as the calls themselves may take.
        stream : optional
            As in `ready`: where the gradients are used next.

        Raises
        ------
        gradientflow.errors.ArgumentError
            On every rank, if no rank has made any tensor ready in this iteration: residuals are as before.
        gradientflow.errors.NonFiniteError
            On every rank, if a gradient is infinite or NaN, unless `skip_nonfinite`. The gradients are zero then, and
            residuals are as before.
        gradientflow.errors.MismatchError
            On every rank, if they want different densities next.
        gradientflow.errors.CommunicationTimeoutError
            If the timeout passed first: the iteration goes on, and can be waited for again. Or if ranks are missing.
        gradientflow.errors.ClosedError
            If the pool or its communicator is closed.
        """
        self._native.wait(timeout, self.density_at(self.iteration + 1), stream_number(stream))

    def update(self, everywhere: bool = False) -> Any:
        """Return what the core's optimizers take for a step: what was sent, or all, with zeros for what was not.

        Raises
        ------
        gradientflow.errors.ArgumentError
            Unless it is averaged: after `wait`, and before the next tensor is ready.
        """
        return self._native.update(everywhere)

    def has_nonfinite(self, stream: Any = None) -> bool:
        """Tell whether the last iteration was dropped because a gradient was not finite."""
        return self.overflowed

    def has_gradient(self, index: int) -> bool:
        """Tell whether the last iteration has left a gradient of tensor `index` that is not zero."""
        nbytes = math.prod(self._shapes[index]) * self._itemsize
        memory = self._array(self.offsets[index], (nbytes,), "uint8")
        on_host = memory if isinstance(memory, np.ndarray) else memory.get()
        return bool(_as_float32(on_host, self.dtype).any())

    def take_back(self, stream: Any = None) -> None:
        """Return to the residuals what the last iteration sent, an equal part each, and zero the gradients.

        So nothing is lost where no step follows. `stream` is as in `ready`.
        """
        memory = self.memory if isinstance(self.memory, np.ndarray) else self.memory.get()
        gradients = _as_float32(memory, self.dtype)
        residual = self._native.residuals
        for begin, end in self.spans:
            residual[begin:end] += gradients[begin:end] / np.float32(self.loss_scale)
        self._native.set_residuals(residual, stream_number(stream))

    @property
    def important(self) -> npt.NDArray[np.bool_]:
        """By chunk, whether this iteration sends it."""
        return np.asarray(self._native.important, np.bool_)

    @property
    def sent(self) -> npt.NDArray[np.intp]:
        """Indices of the chunks that the last iteration has sent, in their order; all, before the first."""
        return np.asarray(self._native.sent, np.intp)

    @property
    def spans(self) -> npt.NDArray[np.int64]:
        """Which elements of the memory have gradients, for a step: rows of first and one past the last, in order."""
        return np.asarray(self._native.spans, np.int64)

    @property
    def norms(self) -> npt.NDArray[np.float64]:
        """L1 norms of the chunks in the last iteration, summed over the ranks; zeros before the first."""
        return np.asarray(self._native.norms, np.float64)

    @property
    def residuals(self) -> tuple[npt.NDArray[np.float32], ...]:
        """The residuals of this rank, by tensor: copies, in memory of the host."""
        flat = np.asarray(self._native.residuals)
        starts = [offset // self._itemsize for offset in self.offsets]
        return tuple(
            flat[start : start + int(np.prod(shape))].reshape(shape)
            for start, shape in zip(starts, self._shapes, strict=True)
        )

    @property
    def overflowed(self) -> bool:
        """Whether the last iteration was dropped because a gradient was not finite."""
        return bool(self._native.overflowed)

    @property
    def nonfinite_tensors(self) -> tuple[int, range] | None:
        """After a `NonFiniteError`, the rank where the gradient was found, and of which tensors it is one.

        The rank is -1 if the gradient of every rank was finite, and their mean was not.
        """
        place = self._native.nonfinite
        return None if place is None else (place[0], range(place[1], place[2] + 1))

    @property
    def loss_scale(self) -> float:
        """How many times too large the gradients in the views are; residuals are not. A power of two."""
        return float(self._native.loss_scale)

    @loss_scale.setter
    def loss_scale(self, scale: float) -> None:
        self._native.loss_scale = _number("loss_scale", scale)

    @property
    def reports(self) -> tuple[RangeReport, ...]:
        """How each range of chunks went in the last iteration, and at last the exchange of norms."""
        return tuple(RangeReport(*report) for report in self._native.reports)

    @property
    def bookkeeping_seconds(self) -> float:
        """How long this rank took in the last iteration to gather, update residuals, scatter and choose chunks.

        On a CUDA device it is what the host took to have it done, and to choose.
        """
        return float(self._native.bookkeeping_seconds)

    # ---- checkpoints ---------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the residuals of this rank, which chunks are sent next, and the iteration. Between iterations.

        It is this rank's own: each rank has to save and load its own. With another number of ranks, or another layout,
        `consolidated_state_dict` is the one to save.
        """
        return {
            "format": _FORMAT,
            "rank": self._comm.rank,
            "ranks": self._comm.size,
            "iteration": self.iteration,
            "chunk_size": self.chunk_size,
            "important": self.important,
            "residuals": list(self.residuals),
        }

    def consolidated_state_dict(self) -> dict[str, Any]:
        """Return the sum over the ranks of the residuals, and the iteration, the same on all ranks. Collective.

        Any number of ranks can load it: each then has an equal part of the sum, so that nothing is lost. Since
        what each rank had is no longer known, a run does not go on bit by bit as it would have.
        """
        residual = [each.copy() for each in self.residuals]
        for each in residual:
            self._comm.allreduce(each.reshape(-1), "sum")
        return {
            "format": _FORMAT,
            "rank": None,
            "ranks": self._comm.size,
            "iteration": self.iteration,
            "chunk_size": self.chunk_size,
            "important": self.important,
            "residuals": residual,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `state_dict` of the same rank, or of `consolidated_state_dict`. Between iterations.

        Collective: all ranks load states of the same iteration. Where the chunks are others than those of the state,
        the next iteration sends everything.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If it is the state of another rank, of another number of ranks, or of other tensors, or has numbers that are
            not finite in float32: before anything is changed.
        gradientflow.errors.MismatchError
            On every rank, if they would go on differently, or if another rank has refused its state: before anything is
            changed.
        """
        try:
            flat, important = self._checked_state(state)
        except GradientFlowError as error:
            self._refuse_state(error)
            raise
        is_same = state["chunk_size"] == self.chunk_size and len(important) == self.chunks
        self._native.restore(flat, important.tolist() if is_same else [], int(state["iteration"]))

    def _refuse_state(self, why: GradientFlowError) -> None:
        """Tell the other ranks, which load a state, that this one does not, and why."""
        self._native.refuse_state(str(why))

    def set_residuals(self, residuals: Sequence[npt.NDArray[np.float32]]) -> None:
        """Replace the residuals of this rank, by tensor, and zero the gradients. Between iterations; not collective.

        On a CUDA device the gradients are zeroed in the default stream.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If there are not as many arrays as tensors, of their shapes, or numbers are not finite in float32: before
            anything is changed.
        gradientflow.errors.ArgumentTypeError
            If they are not arrays of numbers.
        """
        self._native.set_residuals(self._flat(residuals, "the residuals"), 0)

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raise what `load_state_dict` would of this rank's state, and change nothing."""
        self._checked_state(state)

    def _checked_state(self, state: Mapping[str, Any]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
        """Return the residuals as they lie in memory, and the important chunks."""
        if not isinstance(state, Mapping):
            message = f"a state is a dictionary, not a {type(state).__name__}"
            raise ArgumentTypeError(message)
        missing = {"format", "rank", "ranks", "iteration", "chunk_size", "important", "residuals"} - set(state)
        if missing or state["format"] != _FORMAT:
            message = "this is not the state of a sparse gradient pool"
            raise ArgumentError(message)
        if state["rank"] is not None and (state["rank"], state["ranks"]) != (self._comm.rank, self._comm.size):
            message = (
                f"this is the state of rank {state['rank']} of {state['ranks']}, and this is rank {self._comm.rank} of "
                f"{self._comm.size}: each rank loads its own, and any rank what consolidated_state_dict() gave"
            )
            raise ArgumentError(message)
        flat = self._flat(state["residuals"], "the residuals of the state")
        important = _array("important", state["important"])
        if important.ndim != 1 or not np.isin(important, (0, 1)).all():
            message = f"important is a row of True and False, not {state['important']!r}"
            raise ArgumentError(message)
        whole("chunk_size", state["chunk_size"], 1)
        whole("iteration", state["iteration"], 0)
        return flat / np.float32(self._comm.size if state["rank"] is None else 1), important.astype(np.uint8)

    def _flat(self, residual: Any, what: str) -> npt.NDArray[np.float32]:
        """Return the residuals as they lie in memory, after checking them."""
        if not isinstance(residual, Sequence | np.ndarray):
            message = f"{what} is a sequence of arrays, one for each tensor, not a {type(residual).__name__}"
            raise ArgumentTypeError(message)
        arrays = [_array(f"{what} of tensor {index}", each) for index, each in enumerate(residual)]
        shapes = [array.shape for array in arrays]
        if shapes != self._shapes:
            theirs, mine = _brief(shapes), _brief(self._shapes)
            message = f"{what} is that of another model: it has tensors of {theirs}, this pool {mine}"
            raise ArgumentError(message)
        flat = np.zeros(self.nbytes // self._itemsize, np.float32)
        for index, (offset, array) in enumerate(zip(self.offsets, arrays, strict=True)):
            start = offset // self._itemsize
            place = flat[start : start + array.size]
            with np.errstate(over="ignore"):
                place[...] = array.reshape(-1)
            if not np.isfinite(place).all():
                message = f"{what} of tensor {index} has numbers that are not finite in float32"
                raise ArgumentError(message)
        return flat

    @property
    def _itemsize(self) -> int:
        return 4 if self.dtype == "float32" else 2


def _array(name: str, values: Any) -> npt.NDArray[Any]:
    """Return an array of real numbers or flags."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        message = f"{name} is not an array: {error}"
        raise ArgumentTypeError(message) from error
    if array.size and array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        message = f"{name} is an array of numbers, not of {array.dtype}"
        raise ArgumentTypeError(message)
    return array


def _as_float32(memory: npt.NDArray[np.uint8], dtype: str) -> npt.NDArray[np.float32]:
    """Return numbers of a dtype as float32."""
    if dtype == "bfloat16":
        return (memory.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return memory.view(dtype).astype(np.float32)


def _brief(shapes: Sequence[tuple[int, ...]]) -> str:
    shown = ", ".join(map(str, shapes[:4]))
    return f"{len(shapes)} shapes, {shown}, ..." if len(shapes) > 4 else f"shapes {shown}"


__all__ = ["Density", "SparseGradientPool"]
