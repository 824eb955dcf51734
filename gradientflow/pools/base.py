"""The base of all gradient pools: tensors side by side in node memory, and iterations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from gradientflow._fast_paths import has_fast_path
from gradientflow._location import core
from gradientflow.annotations import TensorLike
from gradientflow.arguments import checked_instance, checked_list
from gradientflow.communicator import Communicator
from gradientflow.device import DeviceArray, device_number
from gradientflow.errors import ArgumentError, ArgumentTypeError
from gradientflow.memory import NodeArray, array_over, checked_bytes, checked_shape, numpy_dtype

NO_LIMIT = 2**64 - 1  # fusion threshold that is never reached

_Pool = TypeVar("_Pool", bound="BasePool")


@dataclass(frozen=True)
class RangeReport:
    """Report on one range in the last iteration. Times are seconds on the clock of `time.monotonic`.

    Attributes
    ----------
    nbytes : int
        Bytes of the range.
    bytes_sent : int or None
        Bytes this rank sent to other ranks in messages: 0 if ranks share memory, None if the MPI library sent them.
    nonfinite : int or None
        Infinite and NaN elements of the result, the same number on all ranks. None if no values were rounded for the
        wire.
    path : str
        The path of the allreduce.
    Times at which the last tensor of the range was ready, and at which its allreduce began and ended.
    """

    nbytes: int
    bytes_sent: int | None
    nonfinite: int | None
    path: str
    ready: float
    started: float
    ended: float


class BasePool:
    """The base class of all gradient pools.

    Attributes
    ----------
    memory : numpy.ndarray or DeviceArray
        The gradients of this rank, as bytes. Keeps the memory alive.
    device : int or None
        Number of the CUDA device with the gradients; None in memory of the host.
    extra : numpy.ndarray
        Float64 numbers that are averaged with the gradients; for `ready` they are tensor ``len(shapes)``.
    offsets : tuple of int
        Byte offset of each tensor in `memory`.
    nbytes : int
        Size of `memory`.
    dtype : str
        Name of the dtype.
    wire : str or None
        The wire dtype, as given.
    """

    _native: core.GradientPool | core.SparsePool | core.TopKPool
    device: int | None = None

    def _prepare(
        self, shapes: Sequence[int | Sequence[int]], dtype: npt.DTypeLike | str, device: str | int = "cpu"
    ) -> list[int]:
        """Check and keep shapes, dtype and device; return the number of elements of each tensor."""
        self.device = None if device == "cpu" else device_number(device)
        is_bfloat16 = isinstance(dtype, str) and dtype == "bfloat16"  # NumPy itself has no such dtype
        element = np.dtype(np.uint16) if is_bfloat16 else numpy_dtype(dtype)
        self._shapes = [checked_shape(shape) for shape in checked_list("shapes", shapes, "shapes")]
        for shape in self._shapes:
            checked_bytes(shape, element)
        self.dtype: str = "bfloat16" if is_bfloat16 else element.name
        return [math.prod(shape) for shape in self._shapes]

    def _adopt(self, native: core.GradientPool | core.SparsePool | core.TopKPool) -> None:
        """Take over a pool of the core, with its memory."""
        self._native = native
        self.extra: npt.NDArray[np.float64] = native.extra
        self.nbytes: int = native.bytes
        self.memory: NodeArray | DeviceArray = self._array(0, (self.nbytes,), "uint8")
        self.offsets: tuple[int, ...] = tuple(native.offset(i) for i in range(len(self._shapes)))

    def _array(self, offset: int, shape: tuple[int, ...], dtype: str) -> NodeArray | DeviceArray:
        segment = self._native.segment
        if isinstance(segment, core.Segment):
            return array_over(segment, offset, shape, numpy_dtype(dtype))
        assert self.device is not None
        return DeviceArray(segment, offset, shape, dtype, self.device)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of each tensor."""
        return tuple(self._shapes)

    @cached_property
    def views(self) -> tuple[TensorLike, ...]:
        """One array per tensor, in the order given, zero-filled at first.

        NumPy arrays in memory of the host (bfloat16 needs the package ml_dtypes); `gradientflow.device.DeviceArray` on
        a CUDA device. Other frameworks take these arrays through DLPack (``torch.from_dlpack(view)``). A view stays
        valid as long as it is held.
        """
        return tuple(
            self._array(offset, shape, self.dtype) for offset, shape in zip(self.offsets, self._shapes, strict=True)
        )

    def is_ready(self, index: int) -> bool:
        """Tell whether tensor `index` is ready in this iteration."""
        return bool(self._native.is_ready(index))

    def zero(self, stream: object = None) -> None:
        """Zero the gradients that the last iteration left in the views. Between iterations.

        `stream` is as in `ready`.
        """
        self._native.zero(stream_number(stream))

    @has_fast_path
    def ready(self, index: int | None = None, stream: object = None) -> None:
        """Mark tensor `index` as final for this iteration; without an index, all remaining tensors. From any thread.

        Parameters
        ----------
        index : int, optional
            Index of the tensor in the order given.
        stream : optional
            The stream that writes the tensor, for a pool on a CUDA device: the tensor is final once the work now in the
            stream is done. A number, or a stream of CuPy or PyTorch; by default the device's default stream.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If there is no such tensor, or it was already ready in this iteration.
        gradientflow.errors.ClosedError
            If the pool or its communicator is closed.
        """
        if index is None:
            self._native.ready_all(stream_number(stream))
        else:
            self._native.ready(index, stream_number(stream))

    def rollback(self, stream: object = None) -> None:
        """Undo the iteration under way, for example after an exception. Otherwise undo the last, unless a step uses it.

        Other ranks get zeros for tensors that are not ready on this rank. Gradients are not averaged then, and
        residuals and velocities, if any, are as before the iteration. Either all ranks roll it back or none does,
        because ranks that use its means have counted this rank's share. Does nothing after `zero`, or if the last
        iteration was dropped or undone. A failed iteration cannot be committed afterwards. `stream` is as in `ready`.
        """
        self._native.rollback(stream_number(stream))

    def commit(self) -> None:
        """Commit the last iteration, which has failed on this rank, because other ranks have finished it.

        All values that this rank has sent are in their means, and leave this rank's residuals. After
        `Communicator.recover`.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If the last iteration has not failed, or was that of a `TopKGradientPool` on a CUDA device.
        """
        self._native.commit()

    @property
    def has_failed(self) -> bool:
        """True if the last iteration has failed on this rank, and was neither committed nor rolled back."""
        return bool(self._native.has_failed)

    @property
    def ready_count(self) -> int:
        """The number of tensors that are ready in this iteration."""
        return int(self._native.ready_count)

    @property
    def iteration(self) -> int:
        """The number of iterations that have ended."""
        return int(self._native.iteration)

    @property
    def reports(self) -> tuple[RangeReport, ...]:
        """A report on each range in the last iteration; empty before the first, and after a failed iteration."""
        return tuple(RangeReport(*report) for report in self._native.reports)

    def close(self) -> None:
        """Close the pool once its calls under way are done. Its memory lives as long as an array over it."""
        self._native.close(True)

    @property
    def closed(self) -> bool:
        """True if the pool or its communicator has been closed."""
        return bool(self._native.closed)

    def __enter__(self: _Pool) -> _Pool:
        """Return the pool itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the pool; after an exception without waiting for calls under way."""
        self._native.close(kind is None)


def native_communicator(comm: object) -> core.Communicator:
    """Return the core's object of a communicator.

    Raises
    ------
    gradientflow.errors.ArgumentTypeError
        If it is not a communicator.
    """
    return checked_instance("comm", comm, Communicator)._native


def stream_number(stream: object) -> int:
    """Return CUDA's number of a stream: a number, a stream of CuPy or PyTorch, or None for the default stream.

    Raises
    ------
    gradientflow.errors.ArgumentTypeError
        If it is none of these.
    """
    if stream is None:
        return 0
    number = getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**64:
        raise ArgumentTypeError(f"a stream is a number, or a stream of CuPy or PyTorch, not a {type(stream).__name__}")
    return number


def threshold_from(native: int) -> int | float:
    """Return a threshold of the core, in bytes or infinity."""
    return math.inf if native == NO_LIMIT else native


def native_threshold(threshold: Any, name: str = "fusion_threshold") -> int | None:
    """Return a threshold as the core takes it: bytes, `NO_LIMIT` for infinity, None for "auto".

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the number of bytes is invalid: it is 0 or more.
    gradientflow.errors.ArgumentTypeError
        If it is neither a number nor text.
    """
    if isinstance(threshold, str):
        if threshold == "auto":
            return None
        if threshold.lower() in ("inf", "infinity"):
            return NO_LIMIT
        return int(core.parse_bytes(threshold))
    try:
        number = float(min(threshold, NO_LIMIT))
    except TypeError as error:
        message = f"{name} is a number of bytes or text such as '8MiB', not a {type(threshold).__name__}"
        raise ArgumentTypeError(message) from error
    if number >= NO_LIMIT:
        return NO_LIMIT
    if not number >= 0 or number != int(number):
        raise ArgumentError(f"{name} is a whole number of bytes of 0 or more, not {threshold!r}")
    return int(threshold)
