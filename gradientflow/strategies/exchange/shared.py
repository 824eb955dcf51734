"""Weights that the ranks of a node share: one copy in node memory, of which each rank updates a slice in every step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from gradientflow._location import core
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError
from gradientflow.memory import itemsize
from gradientflow.strategies.contract import Strategy, Synchronizer
from gradientflow.strategies.layout import Layout
from gradientflow.strategies.node_weights import NodeWeights
from gradientflow.strategies.update import Phase, SettingsOf, Update

from .places import PlacedSynchronizer
from .pooled import PoolStrategy, PoolSynchronizer
from .survivable import Survivable

Bytes = npt.NDArray[np.uint8]


def _refuse_lars(layout: Layout, settings: SettingsOf) -> None:
    """Raise for LARS: it needs the norms of whole gradients, and steps are made on slices."""
    if any(settings(index).trust for index in range(len(layout))):
        message = "share='node': each rank makes the step on a slice, and LARS needs the norms of whole gradients"
        raise ArgumentError(message)


def _refuse_survival() -> None:
    message = "share='node' needs on_failure='raise': a rank that dies leaves its slice of the weights half written"
    raise ArgumentError(message)


class SharedPools(PoolSynchronizer):
    """Pools on several nodes: they average the gradients, and each rank makes the step with the means of its slice."""

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


class SharedGradients(PlacedSynchronizer, Survivable):
    """Gradients on one node: they stay where they are, and the step averages them from the memory of all ranks."""

    gradient_source = "any_place"
    shared: NodeWeights

    def __init__(self, comm: Communicator, layout: Layout, strategy: Strategy) -> None:
        self.shared = NodeWeights(comm, layout)
        self._of_ranks: list[list[Bytes]] = []  # gradients of each rank of the node, by dtype
        super().__init__(comm, layout, strategy)
        self._is_ready = [False] * len(layout)

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

    def ready(self, index: int, stream: object = None, elsewhere: int | None = None) -> None:  # noqa: D102
        if self._is_ready[index]:
            raise ArgumentError(f"the gradient of {self.layout.names[index]} was already ready in this iteration")
        self._is_ready[index] = True

    def flush(self, stream: object = None) -> None:
        """Leave gradients that are not ready as they are: zeros."""

    def wait(self, stream: object = None) -> Update:  # noqa: D102
        overflowed = self.skips_nonfinite and not self._is_finite()
        return Update("skipped") if self._exchange_numbers(overflowed) else self.update()

    def update(self) -> Update:  # noqa: D102
        update = core.Update
        return Update(
            "apply",
            tuple(
                update(self._memory[group], dtype, self._offsets[group]).part(*elements, self._of_ranks[group])
                for group, ((dtype, _), elements) in enumerate(zip(self.layout.groups, self.shared.slices, strict=True))
            ),
        )

    def rollback(self, phase: Phase, stream: object = None) -> None:  # noqa: D102
        if phase not in (Phase.AVERAGED, Phase.WAIT_FAILED):
            self._exchange_numbers(False)

    def close(self, orderly: bool = True) -> None:  # noqa: D102
        self.shared.close(orderly)

    def _exchange_numbers(self, overflowed: bool) -> bool:
        """Average the numbers over the ranks. Return True if a gradient of any rank is not finite."""
        self._is_ready = [False] * len(self.layout)
        status = np.append(self.extra, float(overflowed))
        self.shared.node.allreduce(status, "mean")
        self.extra[:] = status[:-1]
        return bool(status[-1])

    def _is_finite(self) -> bool:
        count = core.local_updates.count_nonfinite
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
    kind = SharedGradients if comm.nodes == 1 else SharedPools
    synchronizer: Synchronizer = kind(comm, replace(layout, weights=()), strategy)  # they will move to node memory
    return synchronizer


__all__ = ["SharedGradients", "SharedPools", "bind_shared"]
