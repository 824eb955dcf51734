"""A gradient pool that sends the important chunks, and keeps the rest: coarse-grained sparse communication."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from gradientflow._location import core
from gradientflow.annotations import State, TensorLike
from gradientflow.arguments import checked_float, checked_int
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError

from .base import RangeReport, native_communicator, native_threshold, stream_number, threshold_from
from .residual import ResidualPool, array_of

Density = float | Callable[[int], float]


class SparseGradientPool(ResidualPool):
    """Gradients of which only the most important chunks are averaged over the ranks. The rest stays in residuals.

    The memory is cut into chunks of `chunk_size` elements. Each iteration averages the chunks that all ranks have
    agreed on, as a `GradientPool` does: in the background, as soon as they are complete, neighbors together. The
    gradients of other chunks are added to this rank's residuals. Residuals are multiplied by `momentum` and added to
    the gradients of the next iteration. After `wait` the views have the gradients for a step, the same on all ranks:
    means where they were sent, and zeros elsewhere. Then the chunks with the largest L1 norms, summed over the ranks,
    are chosen for the next iteration; among equal norms the first chunks. The first iteration sends all chunks, since
    there are no norms yet. (GradientFlow paper, section 3.2 and algorithm 1.)

    Collective: all ranks make the pool with the same arguments. It is closed with `comm`.

    Parameters
    ----------
    comm : Communicator
        Ranks that take part.
    shapes : sequence of int or of sequences of int
        The shape of each tensor. They lie in memory in this order, each at a multiple of 64 bytes; best is the order in
        which backpropagation produces them. A chunk may span several tensors, and the padding between them.
    dtype : {"float32", "float16", "bfloat16"}
        Dtype of all tensors. Residuals are float32.
    density : float or callable, default 0.1
        The share of the chunks that is sent, above 0 and at most 1; or a function of the iteration, 0, 1, ..., that
        gives it. The same on all ranks.
    momentum : float, default 0.9
        The factor that multiplies the residuals in every iteration: the momentum of the optimizer. With 1 nothing is
        lost; with 0 gradients that are not sent are dropped.
    chunk_size : int, default 32768
        Elements of a chunk; the last may have fewer.
    extra : int, default 0
        Count of float64 numbers, in the array `extra`, that are averaged with the gradients.
    fusion_threshold, wire, algorithm
        As in `GradientPool`; they apply to the chunks that are sent. Between nodes "auto" is 512 KiB.
    skip_nonfinite : bool, default False
        True to drop an iteration with infinite or NaN gradients on all ranks, for a loss scale, instead of raising an
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
        Numbers that are averaged with the gradients; for `ready` they are tensor ``len(shapes)``.
    chunk_size : int
        Elements of a chunk.
    chunks : int
        Number of chunks.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If density, momentum or chunk_size is out of range.
    gradientflow.errors.ArgumentTypeError
        If the dtype is not among these three.
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
        momentum = checked_float("momentum", momentum)
        self._density = density
        self._comm = comm
        chunk_size = checked_int("chunk_size", chunk_size, 1)
        extra = checked_int("extra", extra, 0)
        first_iteration = checked_int("first_iteration", first_iteration, 0)
        self.density_at(first_iteration + 1)  # raises before anything is made
        self._adopt(
            core.SparsePool(
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
        self.fusion_threshold: int | float = threshold_from(self._native.fusion_threshold)
        self.chunk_size: int = self._native.chunk_size
        self.chunks: int = self._native.chunks

    corrects_momentum = True  # residuals carry the momentum of gradients that are not sent
    _native: core.SparsePool
    _kind = "sparse gradient pool"

    @property
    def momentum(self) -> float:
        """The factor that multiplies the residuals in every iteration. It can be changed between iterations."""
        return float(self._native.momentum)

    @momentum.setter
    def momentum(self, momentum: float) -> None:
        self._native.momentum = checked_float("momentum", momentum)

    def density_at(self, iteration: int) -> float:
        """Return the density of an iteration.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If it is not above 0 and at most 1.
        """
        density = checked_float("density", self._density(iteration) if callable(self._density) else self._density)
        core.important_count(density, 1)  # raises unless the density is valid
        return density

    def wait(self, timeout: float | None = None, stream: object = None) -> None:
        """Wait until the views have the mean gradients where they were sent, and start the next iteration.

        Tensors that are not ready on this rank count as zeros; at least one tensor must be ready on some rank. On a
        CUDA device the host waits for the device: it needs the norms to choose chunks.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most; by default the timeout of the calls themselves.
        stream : optional
            The stream that uses the gradients next, as in `ready`.

        Raises
        ------
        gradientflow.errors.ArgumentError
            On every rank, if no rank has made any tensor ready in this iteration: residuals are as before.
        gradientflow.errors.NonFiniteError
            On every rank, if a gradient is infinite or NaN, unless `skip_nonfinite`. The gradients are zero then, and
            residuals are as before.
        gradientflow.errors.MismatchError
            On every rank, if the ranks want different densities for the next iteration.
        gradientflow.errors.CommunicationTimeoutError
            If the timeout passed first: the iteration continues, and `wait` can be called again. Or if ranks are
            missing.
        gradientflow.errors.ClosedError
            If the pool or its communicator is closed.
        """
        self._native.wait(timeout, self.density_at(self.iteration + 1), stream_number(stream))

    def update(self, everywhere: bool = False) -> TensorLike:
        """Return the input of a step of the core's optimizers: the chunks sent, or all, with zeros for the rest.

        Raises
        ------
        gradientflow.errors.ArgumentError
            Unless the gradients are averaged, that is after `wait` and before the next tensor is ready.
        """
        return self._native.update(everywhere)

    @property
    def important(self) -> npt.NDArray[np.bool_]:
        """Flags of the chunks that this iteration sends."""
        return np.asarray(self._native.important, np.bool_)

    @property
    def sent(self) -> npt.NDArray[np.intp]:
        """Indices of the chunks that the last iteration has sent, in their order; all before the first iteration."""
        return np.asarray(self._native.sent, np.intp)

    @property
    def spans(self) -> npt.NDArray[np.int64]:
        """The elements of the memory that a step uses: rows with the first element and one past the last, in order."""
        return np.asarray(self._native.spans, np.int64)

    @property
    def norms(self) -> npt.NDArray[np.float64]:
        """L1 norms of the chunks in the last iteration, summed over the ranks; zeros before the first."""
        return np.asarray(self._native.norms, np.float64)

    @property
    def reports(self) -> tuple[RangeReport, ...]:
        """A report on each range of chunks in the last iteration; the last report is on the norms."""
        return tuple(RangeReport(*report) for report in self._native.reports)

    # ---- checkpoints ---------------------------------------------------------------------------------------------

    def _own_state(self) -> dict[str, object]:
        return {"chunk_size": self.chunk_size, "important": self.important}

    def _check_own_state(self, state: Mapping[str, object]) -> None:
        important = array_of("important", state["important"])
        if important.ndim != 1 or not np.isin(important, (0, 1)).all():
            raise ArgumentError(f"important is a row of True and False, not {state['important']!r}")
        checked_int("chunk_size", state["chunk_size"], 1)

    def _restore(self, state: State, kept: Sequence[npt.NDArray[np.float32]]) -> None:
        """Load a checked state; if its chunks differ from the pool's, the next iteration sends everything."""
        important = np.asarray(state["important"]).astype(np.uint8)
        is_same = state["chunk_size"] == self.chunk_size and len(important) == self.chunks
        self._native.restore(kept[0], important.tolist() if is_same else [], int(state["iteration"]))


__all__ = ["Density", "SparseGradientPool"]
