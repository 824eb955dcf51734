"""The memory in which a synchronizer's gradients lie."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from gradientflow.annotations import TensorLike
from gradientflow.device import DeviceArray
from gradientflow.memory import itemsize

from .layout import Layout


class GradientMemory(ABC):
    """The part of `Synchronizer` for the memory of gradients: all gradients of a dtype lie side by side."""

    layout: Layout

    @abstractmethod
    def memory(self, group: int) -> npt.NDArray[np.uint8] | DeviceArray:
        """Return the memory with the gradients of a dtype, ``layout.groups[group]``, as bytes."""

    @abstractmethod
    def offsets(self, group: int) -> Sequence[int]:
        """Return the offsets of the gradients of a dtype in their memory, in bytes."""

    def spans(self, group: int) -> list[list[int]]:
        """Return the ranges of that memory with gradients of the last update, in elements: first, one past the last."""
        return [[0, self.memory(group).nbytes // itemsize(self.layout.groups[group][0])]]

    @abstractmethod
    def zero(self, group: int, stream: object = None) -> None:
        """Zero the gradients of a dtype that the last update has left. Between iterations."""

    @property
    def gradients(self) -> tuple[TensorLike, ...]:
        """The gradients, one array a tensor, in their places."""
        return self._places

    @cached_property
    def _places(self) -> tuple[TensorLike, ...]:
        arrays: list[TensorLike] = [None] * len(self.layout)
        for group, (_, indices) in enumerate(self.layout.groups):
            for index, array in zip(indices, self._arrays(group), strict=True):
                arrays[index] = array
        return tuple(arrays)

    @abstractmethod
    def _arrays(self, group: int) -> Sequence[object]:
        """Return the gradients of a dtype as arrays."""


__all__ = ["GradientMemory"]
