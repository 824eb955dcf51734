"""The gradient pool: all gradients of a model in one stretch of node memory."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from ._location import load_core
from .communicator import Communicator
from .errors import ArgumentError, ArgumentTypeError
from .memory import NodeArray, array_over, checked_bytes, checked_shape, numpy_dtype

_NO_LIMIT = 2**64 - 1  # a fusion threshold that is never reached


@dataclass(frozen=True)
class PoolRange:
    """Tensors of a pool that travel together.

    Attributes
    ----------
    tensors : range
        Their indices.
    offset : int
        Where the first of them begins, in bytes.
    nbytes : int
        How many bytes they take, with what lies between them.
    """

    tensors: range
    offset: int
    nbytes: int


@dataclass(frozen=True)
class RangeReport:
    """How a range went in the last iteration. Times are seconds on the clock of `time.monotonic`.

    Attributes
    ----------
    nbytes : int
        Bytes of the range.
    bytes_sent : int or None
        Bytes this rank sent to others in messages: 0 where ranks share memory, None where the MPI library sent them.
    nonfinite : int or None
        Infinite and NaN elements of the result, the same number on all ranks; counted where values were rounded for
        the wire.
    path : str
        Which way the allreduce went.
    ready, started, ended : float
        When the last of its tensors was ready, and when its allreduce began and ended.
    """

    nbytes: int
    bytes_sent: int | None
    nonfinite: int | None
    path: str
    ready: float
    started: float
    ended: float


class GradientPool:
    """Gradient tensors side by side in node memory, averaged over the ranks without a copy, in the background.

    Gradients are written straight into the views. Neighbouring tensors are put together into ranges of at least
    `fusion_threshold` bytes; a range is reduced while others are not ready yet, as soon as all of its tensors are and
    all ranges before it are under way. What is reduced together depends on the shapes and the threshold alone, so no
    rank has to ask the others. Collective: all ranks make the pool with the same arguments. (GradientFlow paper,
    sections 2.6 and 3.1: lazy allreduce.)

    The pool's messages never mix with those of `comm` or of other pools, whatever the order of calls; it is closed
    with `comm`.

    Parameters
    ----------
    comm : Communicator
        Whose ranks take part.
    shapes : sequence of int or of sequences of int
        The shape of each tensor. They lie in memory in this order, each at a multiple of 64 bytes; best is the order
        in which backpropagation produces them, last layer first.
    dtype : dtype, default "float32"
        A floating dtype, of all tensors.
    fusion_threshold : int, float or str, default "auto"
        Bytes, or text such as "64KiB". With 0 every tensor travels alone; with ``math.inf`` or "inf" all travel
        together, once the last is ready. "auto" is 8 MiB; inside a node, where the threads that call `ready` reduce the
        ranges (GRADIENTFLOW_PROGRESS), it is 256 KiB.
    wire : {"float32", "float16", "bfloat16"}, optional
        What values of float32 are rounded to where they travel between nodes, see `Communicator.allreduce`.
    algorithm : str, default "auto"
        As in `Communicator.allreduce`.

    Attributes
    ----------
    memory : numpy.ndarray
        The whole pool of this rank, as bytes. Keeps the memory as long as it is held.
    offsets : tuple of int
        Where each tensor begins in it, in bytes.
    nbytes : int
        Memory of the pool on this rank; there is no second copy of the gradients.
    ranges : tuple of PoolRange
        What travels together.
    fusion_threshold : int or float
        In bytes.
    wire : str or None
        As given.
    dtype : str
        Its name.

    Raises
    ------
    gradientflow.errors.ArgumentTypeError
        If dtype is not a floating one, or wire does not fit it.
    gradientflow.errors.MismatchError
        If the ranks make different pools.
    gradientflow.errors.NodeMemoryError
        If there is not enough memory.

    Examples
    --------
    >>> import gradientflow as gf
    >>> with gf.init() as comm:
    ...     pool = gf.GradientPool(comm, [(784, 10), (10,)])
    ...     pool.views[0][...] = 1.0
    ...     pool.ready(0)
    ...     pool.views[1][...] = 2.0
    ...     pool.ready(1)
    ...     pool.wait()
    """

    def __init__(
        self,
        comm: Communicator,
        shapes: Sequence[int | Sequence[int]],
        dtype: npt.DTypeLike | str = "float32",
        fusion_threshold: float | str = "auto",
        wire: str | None = None,
        algorithm: str = "auto",
    ) -> None:
        is_bfloat16 = isinstance(dtype, str) and dtype == "bfloat16"  # which NumPy alone does not know
        element = np.dtype(np.uint16) if is_bfloat16 else numpy_dtype(dtype)
        self._shapes = [checked_shape(shape) for shape in shapes]
        for shape in self._shapes:
            checked_bytes(shape, element)
        self.dtype: str = "bfloat16" if is_bfloat16 else element.name
        self.wire = wire
        threshold = checked_threshold(fusion_threshold)
        self._native = load_core().GradientPool(
            comm._native,
            [math.prod(shape) for shape in self._shapes],
            self.dtype,
            _NO_LIMIT if threshold == math.inf else threshold,
            wire or "",
            algorithm,
        )
        self.nbytes: int = self._native.bytes
        given: int = self._native.fusion_threshold
        self.fusion_threshold: int | float = math.inf if given == _NO_LIMIT else given
        self.memory: npt.NDArray[np.uint8] = array_over(self._native.segment, 0, (self.nbytes,), np.dtype(np.uint8))
        self.offsets: tuple[int, ...] = tuple(self._native.offset(i) for i in range(len(self._shapes)))
        self.ranges: tuple[PoolRange, ...] = tuple(
            PoolRange(range(first, end), offset, nbytes) for first, end, offset, nbytes in self._native.ranges
        )

    @cached_property
    def views(self) -> tuple[NodeArray, ...]:
        """One array a tensor, in the order given, zero-filled at first.

        Other frameworks take them through DLPack (``torch.from_dlpack(view)``). They stay valid as long as they are
        held. Those of bfloat16 need the package ml_dtypes.
        """
        element = numpy_dtype(self.dtype)
        return tuple(
            array_over(self._native.segment, offset, shape, element)
            for offset, shape in zip(self.offsets, self._shapes, strict=True)
        )

    def ready(self, index: int | None = None) -> None:
        """Say that tensor `index` is final for this iteration; without an index, all that are not yet. From any thread.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If there is no such tensor, or it was already ready in this iteration.
        gradientflow.errors.ClosedError
            If the pool or its communicator is closed.
        """
        if index is None:
            self._native.ready_all()
            return
        number, index = len(self._shapes), operator.index(index)
        if not -number <= index < number:
            message = f"tensor {index} is not in the pool, which has {number}"
            raise ArgumentError(message)
        self._native.ready(index if index >= 0 else index + number)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until every tensor is replaced by its mean over the ranks, and start the next iteration.

        Tensors that are not ready count as zeros on this rank.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most; by default as long as the calls themselves may take.

        Raises
        ------
        gradientflow.errors.CommunicationTimeoutError
            If the timeout passed first: the iteration goes on, and can be waited for again. Or if ranks are missing.
        gradientflow.errors.ClosedError
            If the pool or its communicator is closed.
        """
        self._native.wait(timeout)

    def abandon(self) -> None:
        """End an iteration that has begun, without its result, for example after an exception.

        The other ranks get zeros for what is not ready here. Does nothing where no tensor is ready.
        """
        self._native.abandon()

    @property
    def ready_count(self) -> int:
        """How many tensors are ready in this iteration."""
        return int(self._native.ready_count)

    @property
    def iteration(self) -> int:
        """How many iterations have ended."""
        return int(self._native.iteration)

    @property
    def reports(self) -> tuple[RangeReport, ...]:
        """How each range went in the last iteration; empty before the first, and after one that failed."""
        return tuple(
            RangeReport(of.nbytes, *report) for of, report in zip(self.ranges, self._native.reports, strict=False)
        )

    def close(self) -> None:
        """End the pool, after what is on its way. Its memory stays as long as an array over it is held."""
        self._native.close(True)

    @property
    def closed(self) -> bool:
        """Whether the pool or its communicator has been closed."""
        return bool(self._native.closed)

    def __enter__(self) -> GradientPool:
        """Return the pool itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it; after an exception without waiting for what is on its way."""
        self._native.close(kind is None)


def checked_threshold(threshold: Any) -> int | float | None:
    """Return a fusion threshold in bytes: a whole number of 0 or more, or infinity; None for "auto".

    Raises
    ------
    gradientflow.errors.ArgumentError
        If it is none.
    gradientflow.errors.ArgumentTypeError
        If it is neither a number nor text.
    """
    if isinstance(threshold, str):
        if threshold == "auto":
            return None
        if threshold.lower() in ("inf", "infinity"):
            return math.inf
        return int(load_core().parse_bytes(threshold))
    try:
        number = float(min(threshold, _NO_LIMIT))
    except TypeError as error:
        message = f"fusion_threshold is a number of bytes or text such as '8MiB', not a {type(threshold).__name__}"
        raise ArgumentTypeError(message) from error
    if number == math.inf or number >= _NO_LIMIT:
        return math.inf
    if not number >= 0 or number != int(number):
        message = f"fusion_threshold is a whole number of bytes of 0 or more, not {threshold!r}"
        raise ArgumentError(message)
    return int(threshold)


__all__ = ["GradientPool", "PoolRange", "RangeReport"]
