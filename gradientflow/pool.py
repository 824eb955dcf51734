"""The gradient pool: all gradients of a model in one stretch of node memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy.typing as npt

from ._location import load_core
from .communicator import Communicator
from .memory import NodeArray, array_over, checked_bytes, checked_shape, numpy_dtype


class GradientPool:
    """Gradient tensors side by side in node memory, averaged over the ranks in one pass and without a copy.

    Gradients are written straight into the views; `wait` replaces them by their mean over all ranks. Collective: all
    ranks make the pool with the same shapes and dtype. (GradientFlow paper, section 3.1.)

    Parameters
    ----------
    comm : Communicator
        Whose ranks take part.
    shapes : sequence of int or of sequences of int
        The shape of each tensor. They lie in memory in this order, each at a multiple of 64 bytes.
    dtype : dtype, default "float32"
        A floating dtype, of all tensors.

    Attributes
    ----------
    views : tuple of numpy.ndarray
        One array a tensor, in the order given, zero-filled at first. Other frameworks take them through DLPack
        (``torch.from_dlpack(view)``). They stay valid as long as they are held.
    nbytes : int
        Memory of the pool on this rank; there is no second copy of the gradients.

    Raises
    ------
    gradientflow.errors.ArgumentTypeError
        If dtype is not a floating one.
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
        self, comm: Communicator, shapes: Sequence[int | Sequence[int]], dtype: npt.DTypeLike | str = "float32"
    ) -> None:
        element = numpy_dtype(dtype)
        sizes = [checked_shape(shape) for shape in shapes]
        for shape in sizes:
            checked_bytes(shape, element)
        self._native = load_core().GradientPool(comm._native, [math.prod(shape) for shape in sizes], element.name)
        self._comm = comm  # keeps the tensors of its asynchronous calls alive
        self.nbytes: int = self._native.bytes
        self.views: tuple[NodeArray, ...] = tuple(
            array_over(self._native.segment, self._native.offset(i), shape, element) for i, shape in enumerate(sizes)
        )

    def ready(self, index: int) -> None:
        """Say that tensor `index` is final for this iteration. From any thread.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If there is no such tensor, or it was already ready in this iteration.
        """
        if index < 0:
            index += len(self.views)
        self._native.ready(index if index >= 0 else len(self.views))

    def wait(self) -> None:
        """Replace every tensor by its mean over the ranks, and start the next iteration.

        Tensors that nobody called ready are reduced as they are.
        """
        self._native.wait()
