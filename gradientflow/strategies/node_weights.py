"""Weights in node memory, with marks that reveal an incomplete step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from gradientflow.communicator import Communicator
from gradientflow.errors import AbandonedError, CommunicationError
from gradientflow.memory import aligned_offsets, itemsize

from .layout import Layout

_LINE = 64  # bytes: no two ranks write to one cache line

Bytes = npt.NDArray[np.uint8]


class NodeWeights:
    """One copy of weights and optimizer state for all ranks of a node, and the coordination of their steps.

    Ranks write in `step` only. Each rank has a mark in node memory, which is odd while the rank is writing. The weights
    are consistent if all marks are the same even number. So the marks reveal an incomplete step, whichever rank died in
    it.

    Parameters
    ----------
    comm : Communicator
        The ranks that train together.
    layout : Layout
        The tensors.

    Attributes
    ----------
    node : Communicator
        The ranks of this node.
    offsets : list of lists of int
        The offset of each tensor, in elements, by dtype of the layout: the same for weights, gradients and `extra`.
    slices : list of pairs of int
        The elements that this rank updates, by dtype: the first, and one past the last.
    """

    def __init__(self, comm: Communicator, layout: Layout) -> None:
        self.node = node = comm._own_part(comm.node)
        self._ranks = node.allgather(np.array([comm.rank])).ravel().tolist()
        self._marks = self.parts(np.dtype(np.uint64).itemsize)[:, :8].view(np.uint64)[:, 0]
        self.offsets: list[list[int]] = []
        self.slices: list[tuple[int, int]] = []
        self._counts: list[int] = []  # elements, by dtype
        self._sizes: list[int] = []  # bytes of an element
        for dtype, indices in layout.groups:
            size = itemsize(dtype)
            offsets = [offset // size for offset in aligned_offsets([layout.counts[index] * size for index in indices])]
            count = offsets.pop()
            self.offsets.append(offsets)
            self._counts.append(count)
            self._sizes.append(size)
            lines = -(-count * size // _LINE)
            first, end = (lines * rank // node.size * _LINE // size for rank in (node.rank, node.rank + 1))
            self.slices.append((min(first, count), min(end, count)))

    # ---- memory --------------------------------------------------------------------------------------------------

    def parts(self, nbytes: int) -> Bytes:
        """Return new zero-filled memory of the node: a row of at least `nbytes` bytes for each rank. Collective."""
        return self.node._native.allocate(max(1, nbytes)).parts

    def weights(self, group: int) -> Bytes:
        """Return new memory for the weights of a dtype, the same on all ranks of the node. Collective."""
        return self._common(self._counts[group] * self._sizes[group])

    def numbers(self, group: int) -> npt.NDArray[np.float32]:
        """Return new memory with one float32 for each weight of a dtype, at the same offsets. Collective."""
        return self._common(self._counts[group] * 4).view(np.float32)

    def _common(self, nbytes: int) -> Bytes:
        return self.parts(-(-nbytes // self.node.size)).reshape(-1)[:nbytes]

    # ---- steps ---------------------------------------------------------------------------------------------------

    @property
    def is_whole(self) -> bool:
        """True if all steps on the weights have been completed."""
        first = self._marks[0]
        return bool(first % 2 == 0 and (self._marks == first).all())

    def check(self) -> None:
        """Raise if a step on the weights has not been completed.

        Raises
        ------
        gradientflow.errors.CommunicationError
            If a step has not been completed.
        """
        if not self.is_whole:
            last = self._marks.max()
            torn = [str(self._ranks[local]) for local in np.flatnonzero((self._marks != last) | (self._marks % 2 == 1))]
            which = f"rank {torn[0]}" if len(torn) == 1 else f"ranks {', '.join(torn)}"
            raise CommunicationError(
                f"the weights that the ranks of this node share are updated in part: {which} did not complete a step; "
                "go on from a checkpoint, with a model and an optimizer made anew"
            )

    @contextmanager
    def step(self, error: Exception | None) -> Iterator[None]:
        """Wait until no rank of the node reads weights, write this rank's slice, and wait for all ranks. Collective.

        Parameters
        ----------
        error : Exception or None
            The reason why this rank cannot make the step: no rank makes it then.
        """
        self.check()
        refused = np.zeros(self.node.size, np.float32)
        refused[self.node.rank] = error is not None
        self.node.allreduce(refused, "max")
        if error is not None:
            raise error
        if refused.any():
            ranks = ", ".join(str(self._ranks[local]) for local in np.flatnonzero(refused))
            message = f"rank {ranks} of this node did not make the step, after an error there: no weight was changed"
            raise AbandonedError(message)
        self._marks[self.node.rank] += np.uint64(1)
        try:
            yield
            self._marks[self.node.rank] += np.uint64(1)
        finally:
            self.node.barrier()
        self.check()

    def close(self, orderly: bool) -> None:
        """Close the communicator of the node; the memory stays as long as it is referenced."""
        self.node._end(orderly)


__all__ = ["NodeWeights"]
