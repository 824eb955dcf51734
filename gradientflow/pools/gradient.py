"""The gradient pool: all gradients of a model in one stretch of node memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradientflow._fast_paths import has_fast_path, take_fast_paths
from gradientflow._location import core
from gradientflow.annotations import TensorLike
from gradientflow.arguments import checked_int
from gradientflow.communicator import Communicator
from gradientflow.memory import itemsize

from .base import BasePool, RangeReport, native_communicator, native_threshold, stream_number, threshold_from


@dataclass(frozen=True)
class PoolRange:
    """Neighboring tensors of a pool that are reduced together.

    Attributes
    ----------
    tensors : range
        Indices of the tensors.
    offset : int
        Byte offset of the first tensor.
    nbytes : int
        Size in bytes, with the padding between tensors.
    """

    tensors: range
    offset: int
    nbytes: int


class GradientPool(BasePool):
    """Gradient tensors side by side in node memory, averaged over the ranks without a copy, in the background.

    Gradients are written straight into the views. Neighboring tensors are put together into ranges of at least
    `fusion_threshold` bytes. A range is reduced once all of its tensors are ready and all earlier ranges are under way.
    The ranges depend on the shapes and the threshold alone, so ranks need not agree on them. Collective: all ranks make
    the pool with the same arguments. (GradientFlow paper, sections 2.6 and 3.1: lazy allreduce.)

    The pool's messages never mix with messages of `comm` or of other pools, whatever the order of calls; it is closed
    with `comm`.

    Parameters
    ----------
    comm : Communicator
        Ranks that take part.
    shapes : sequence of int or of sequences of int
        The shape of each tensor. They lie in memory in this order, each at a multiple of 64 bytes; best is the order
        in which backpropagation produces them, last layer first.
    dtype : dtype, default "float32"
        Floating dtype of all tensors.
    fusion_threshold : int, float or str, default "auto"
        Bytes, or text such as "64KiB". With 0 every tensor is reduced alone; with ``math.inf`` or "inf" all are reduced
        together, once the last is ready. "auto" between nodes is a sixteenth of the pool, at least 256 KiB and at most
        4 MiB. "auto" inside a node is 8 MiB, or 256 KiB if the threads that call `ready` reduce the ranges
        (GRADIENTFLOW_PROGRESS).
    wire : str, optional
        Format to which float32 values are rounded when they travel between nodes, as in `Communicator.allreduce`.
    algorithm : str, default "auto"
        As in `Communicator.allreduce`.
    device : str or int, default "cpu"
        "cpu" for memory of the host; "cuda", "cuda:1" or a number for memory of a CUDA device.
    extra : int, default 0
        Count of numbers, in the array `extra`, that are averaged with the gradients. They are rounded to `dtype`,
        unless the pool is on a device.

    Attributes
    ----------
    memory : numpy.ndarray or DeviceArray
        The whole pool of this rank, as bytes. Keeps the memory alive.
    offsets : tuple of int
        Byte offset of each tensor in `memory`.
    nbytes : int
        Memory of the pool on this rank; there is no second copy of the gradients.
    ranges : tuple of PoolRange
        The tensors that are reduced together.
    fusion_threshold : int or float
        The threshold in bytes.
    wire : str or None
        The wire dtype, as given.
    dtype : str
        Name of the dtype.

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

    corrects_momentum = False  # all gradients are sent in every iteration
    skip_nonfinite = True  # infinite and NaN gradients raise no error
    loss_scale = 1.0  # factor in the gradients, which this pool ignores
    nonfinite_tensors: tuple[int, range] | None = None

    _native: core.GradientPool

    def __init__(
        self,
        comm: Communicator,
        shapes: Sequence[int | Sequence[int]],
        dtype: npt.DTypeLike | str = "float32",
        fusion_threshold: float | str = "auto",
        wire: str | None = None,
        algorithm: str = "auto",
        device: str | int = "cpu",
        *,
        extra: int = 0,
    ) -> None:
        take_fast_paths(GradientPool, core.GradientPool)
        native = native_communicator(comm)
        counts = self._prepare(shapes, dtype, device)
        self.wire = wire
        self._adopt(
            core.GradientPool(
                native,
                counts,
                self.dtype,
                native_threshold(fusion_threshold),
                wire,
                algorithm,
                self.device,
                checked_int("extra", extra, 0),
            )
        )
        self._take_ranges()

    def _take_ranges(self) -> None:
        self.fusion_threshold: int | float = threshold_from(self._native.fusion_threshold)
        self.ranges: tuple[PoolRange, ...] = tuple(
            PoolRange(range(first, end), offset, nbytes) for first, end, offset, nbytes in self._native.ranges
        )

    def regroup(self, fusion_threshold: float | str = "auto", wire: str | None = None) -> None:
        """Change the fusion threshold and the wire dtype from now on.

        Between iterations, with the same arguments on all ranks. The tensors stay in their places.

        Parameters
        ----------
        fusion_threshold, wire
            As for the class.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If a tensor is ready already.
        gradientflow.errors.ArgumentTypeError
            If wire does not fit the dtype.
        gradientflow.errors.ClosedError
            If the pool or its communicator is closed.
        """
        self._native.regroup(native_threshold(fusion_threshold), wire)
        self.wire = wire
        self._take_ranges()

    @has_fast_path
    def wait(self, timeout: float | None = None, stream: object = None) -> None:
        """Wait until every tensor is replaced by its mean over the ranks, and start the next iteration.

        Tensors that are not ready on this rank count as zeros; at least one tensor must be ready on some rank. On a
        CUDA device the host does not wait for the device: work put into `stream` from then on sees the means.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most; by default the timeout of the calls themselves.
        stream : optional
            As in `ready`.

        Raises
        ------
        gradientflow.errors.ArgumentError
            On every rank, if no rank has made any tensor ready in this iteration.
        gradientflow.errors.CommunicationTimeoutError
            If the timeout passed first: the iteration continues, and `wait` can be called again. Or if ranks are
            missing.
        gradientflow.errors.ClosedError
            If the pool or its communicator is closed.
        """
        self._native.wait(timeout, stream_number(stream))

    def update(self, everywhere: bool = True) -> TensorLike:
        """Return the input of a step of the core's optimizers: all gradients.

        Raises
        ------
        gradientflow.errors.ArgumentError
            Unless the gradients are averaged, that is after `wait` and before the next tensor is ready.
        """
        return self._native.update()

    @property
    def spans(self) -> npt.NDArray[np.int64]:
        """The elements of the memory that hold gradients: a single row with the first element and one past the last."""
        return np.array([[0, self.nbytes // itemsize(self.dtype)]])

    def has_nonfinite(self, stream: object = None) -> bool:
        """Return True if a gradient in memory is infinite or NaN, by `count_nonfinite`."""
        return self.count_nonfinite(stream) > 0

    def count_nonfinite(self, stream: object = None) -> int:
        """Return the number of elements of gradients in memory that are infinite or NaN.

        On a CUDA device the host waits for the work in `stream`.

        Raises
        ------
        gradientflow.errors.ArgumentTypeError
            If the dtype is float64.
        """
        return int(self._native.count_nonfinite(stream_number(stream)))


__all__ = ["GradientPool", "PoolRange", "RangeReport"]
