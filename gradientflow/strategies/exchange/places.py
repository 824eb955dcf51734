"""Places for the gradients of synchronizers without pools: in memory of the host, one block for each dtype."""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError
from gradientflow.memory import aligned_offsets, array_over, numpy_dtype
from gradientflow.strategies.contract import Strategy, Synchronizer
from gradientflow.strategies.layout import Layout


class PlacedSynchronizer(Synchronizer):
    """A synchronizer whose gradients lie side by side in memory of the host.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the tensors are on a device.
    """

    def __init__(self, comm: Communicator, layout: Layout, strategy: Strategy) -> None:
        super().__init__(comm, layout, strategy)
        if layout.device != "cpu":
            raise ArgumentError(
                f"{strategy.name} works in memory of the host, and the tensors are on CUDA device {layout.device}: "
                "they are copied unless the strategy says on_device = True"
            )
        self._memory: list[npt.NDArray[np.uint8]] = []
        self._offsets: list[list[int]] = []
        self._addresses = [0] * len(layout)
        for dtype, indices in layout.groups:
            offsets = aligned_offsets([layout.counts[index] * self._itemsize(dtype) for index in indices])
            memory = self._allocate(offsets.pop())
            self._memory.append(memory)
            self._offsets.append(offsets)
            for index, offset in zip(indices, offsets, strict=True):
                self._addresses[index] = memory.ctypes.data + offset

    def _itemsize(self, dtype: str) -> int:
        """Return the bytes of an element; raise where NumPy has no such dtype."""
        return numpy_dtype(dtype).itemsize

    def _allocate(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return zero-filled node memory, where an allreduce is fastest; if gradients are not sent, this rank's memory.

        Collective.
        """
        return aligned_zeros(nbytes) if self.gradient_source == "none" else self.comm.empty(nbytes, "uint8")

    def memory(self, group: int) -> npt.NDArray[np.uint8]:  # noqa: D102
        return self._memory[group]

    def offsets(self, group: int) -> Sequence[int]:  # noqa: D102
        return self._offsets[group]

    def zero(self, group: int, stream: object = None) -> None:  # noqa: D102
        self._memory[group][...] = 0

    def _arrays(self, group: int) -> Sequence[object]:
        dtype, indices = self.layout.groups[group]
        return [
            array_over(self._memory[group], offset, self.layout.shapes[index], numpy_dtype(dtype))
            for offset, index in zip(self._offsets[group], indices, strict=True)
        ]


def aligned_zeros(nbytes: int) -> npt.NDArray[np.uint8]:
    """Return zero-filled memory of this process, in pages of its own. A page is taken when it is first written."""
    memory = np.zeros(nbytes + 2 * mmap.PAGESIZE, np.uint8)
    start = -memory.ctypes.data % mmap.PAGESIZE
    return memory[start : start + nbytes]


__all__ = ["PlacedSynchronizer", "aligned_zeros"]
