"""Weights that the ranks of a node share: one copy in node memory, of which each rank updates a slice in every step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gradientflow._location import load_core
from gradientflow.communicator import Communicator
from gradientflow.errors import AbandonedError, ArgumentError, CommunicationError
from gradientflow.memory import itemsize
from gradientflow.strategies.contract import Strategy, Synchronizer
from gradientflow.strategies.layout import Layout
from gradientflow.strategies.update import SettingsOf, Update

from .places import PlacedSynchronizer, aligned_offsets
from .pooled import PoolStrategy, PoolSynchronizer

_LINE = 64  # bytes: no two ranks write to one cache line

Bytes = npt.NDArray[np.uint8]


class NodeWeights:
    """One copy of weights and optimizer state for all ranks of a node, and the coordination of their steps.

    Ranks write in `step` only. Each has a mark in node memory, which is odd while the rank is writing. The weights are
    consistent if all marks are the same even number: a step that was not completed shows, whichever rank died in it.

    Parameters
    ----------
    comm : Communicator
        Whose ranks train together.
    layout : Layout
        The tensors.

    Attributes
    ----------
    node : Communicator
        The ranks of this node.
    offsets : list of lists of int
        For each dtype of the layout, where its tensors begin, in elements: the same for weights, gradients and
        `extra`.
    slices : list of pairs of int
        For each dtype, which elements this rank updates: the first, and one past the last.
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
        """Return new zero-filled memory of the node: a row of at least so many bytes for each rank. Collective."""
        segment: Any = self.node._native.allocate(max(1, nbytes))
        parts: Bytes = segment.parts
        return parts

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
        """Whether all steps on the weights have been completed."""
        first = self._marks[0]
        return bool(first % 2 == 0 and (self._marks == first).all())

    def check(self) -> None:
        """Raise if a step on the weights has not been completed.

        Raises
        ------
        gradientflow.errors.CommunicationError
            If so.
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
        """Wait until no rank of the node reads weights, write this rank's slice, and wait for the others. Collective.

        Parameters
        ----------
        error : Exception or None
            Why this rank cannot make the step; then no rank does.
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


def _refuse_lars(layout: Layout, settings: SettingsOf) -> None:
    """Raise for LARS, which needs the norms of whole gradients: steps are made on slices."""
    if any(settings(index).trust for index in range(len(layout))):
        message = "share='node': each rank makes the step on a slice, and LARS needs the norms of whole gradients"
        raise ArgumentError(message)


def _refuse_survival() -> None:
    message = "share='node' needs on_failure='raise': a rank that dies leaves its slice of the weights half written"
    raise ArgumentError(message)


class SharedPools(PoolSynchronizer):
    """Several nodes: pools average the gradients, and each rank makes the step with the means of its slice."""

    shared: NodeWeights

    def __init__(self, comm: Communicator, layout: Layout, strategy: PoolStrategy) -> None:
        super().__init__(comm, layout, strategy)
        self.shared = NodeWeights(comm, layout)

    def check_settings(self, settings: SettingsOf) -> None:  # noqa: D102
        _refuse_lars(self.layout, settings)

    def check_survival(self) -> None:
        """Raise: a rank that dies leaves its slice half written."""
        _refuse_survival()

    def update(self) -> Update:  # noqa: D102
        parts = zip(super().update().gradients, self.shared.slices, strict=True)
        return Update("apply", tuple(gradients.part(*elements) for gradients, elements in parts))

    def close(self, orderly: bool = True) -> None:  # noqa: D102
        super().close(orderly)
        self.shared.close(orderly)


class SharedGradients(PlacedSynchronizer):
    """One node: gradients stay where they are, and the step averages them from the memory of all ranks."""

    gradient_source = "any_place"
    shared: NodeWeights

    def __init__(self, comm: Communicator, layout: Layout, strategy: Strategy) -> None:
        self.shared = NodeWeights(comm, layout)
        self._of_ranks: list[list[Bytes]] = []  # by dtype
        super().__init__(comm, layout, strategy)
        self._is_ready = [False] * len(layout)
        self._failed = False

    def _itemsize(self, dtype: str) -> int:
        return itemsize(dtype)

    def _allocate(self, nbytes: int) -> Bytes:
        rows: list[Bytes] = [row[:nbytes] for row in self.shared.parts(nbytes)]
        self._of_ranks.append(rows)
        return rows[self.shared.node.rank]

    # ---- the moments of an iteration -----------------------------------------------------------------------------

    def check_settings(self, settings: SettingsOf) -> None:  # noqa: D102
        _refuse_lars(self.layout, settings)

    def check_survival(self) -> None:
        """Raise: a rank that dies leaves its slice half written."""
        _refuse_survival()

    def ready(self, index: int, stream: Any = None, elsewhere: int | None = None) -> None:  # noqa: D102
        if self._is_ready[index]:
            raise ArgumentError(f"the gradient of {self.layout.names[index]} was already ready in this iteration")
        self._is_ready[index] = True

    def flush(self, stream: Any = None) -> None:
        """Leave gradients that are not ready as they are: zeros."""

    def wait(self, stream: Any = None) -> Update:  # noqa: D102
        overflowed = self.skips_nonfinite and not self._is_finite()
        try:
            skipped = self._exchange_numbers(overflowed)
        except BaseException:
            self._failed = True
            raise
        return Update("skipped") if skipped else self.update()

    def update(self) -> Update:  # noqa: D102
        update = load_core().Update
        return Update(
            "apply",
            tuple(
                update(self._memory[group], dtype, self._offsets[group]).part(*elements, self._of_ranks[group])
                for group, ((dtype, _), elements) in enumerate(zip(self.layout.groups, self.shared.slices, strict=True))
            ),
        )

    def abandon(self, stream: Any = None, failed: bool = False) -> None:  # noqa: D102
        if self._failed:
            self._failed = False
        else:
            self._exchange_numbers(False)

    def close(self, orderly: bool = True) -> None:  # noqa: D102
        self.shared.close(orderly)

    def _exchange_numbers(self, overflowed: bool) -> bool:
        """Average the numbers over the ranks. Return whether a gradient of any rank is not finite."""
        self._is_ready = [False] * len(self.layout)
        status = np.append(self.extra, float(overflowed))
        self.shared.node.allreduce(status, "mean")
        self.extra[:] = status[:-1]
        return bool(status[-1])

    def _is_finite(self) -> bool:
        count = load_core().local_updates.count_nonfinite
        return not any(
            count(memory.ctypes.data, dtype, memory.nbytes // itemsize(dtype))
            for memory, (dtype, _) in zip(self._memory, self.layout.groups, strict=True)
        )


def bind_shared(comm: Communicator, layout: Layout, strategy: PoolStrategy) -> Synchronizer:
    """Bind dense communication with weights that the ranks of a node share. Collective."""
    if layout.device != "cpu":
        raise ArgumentError(
            f"share='node' is for weights in memory of the host, and the tensors are on CUDA device {layout.device}"
        )
    kind: Any = SharedGradients if comm.nodes == 1 else SharedPools
    synchronizer: Synchronizer = kind(comm, replace(layout, weights=()), strategy)  # they will move to node memory
    return synchronizer


__all__ = ["NodeWeights", "SharedGradients", "SharedPools", "bind_shared"]
