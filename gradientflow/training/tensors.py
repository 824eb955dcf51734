"""The interface through which the training loop uses a framework's tensors."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from gradientflow.strategies import Settings, Synchronizer


class Tensors(Protocol):
    """A framework's gradients, by their indices in the layout."""

    @property
    def stream(self) -> int | None:
        """The stream in which gradients are now written and read."""

    def attach(self, synchronizer: Synchronizer) -> list[int]:
        """Put the gradients into this synchronizer's memory. Return the indices of gradients copied there."""

    def default_stream(self) -> AbstractContextManager[object]:
        """Return a context that orders the device's default stream after `stream` on entry, and before it on exit."""

    def check(self, final: list[int]) -> None:
        """Raise if tensors have changed, or gradients in `final` have been replaced after they became final."""

    def collect(self, index: int, used: bool) -> bool:
        """Put a gradient that is not final, or zeros, into its place. Return True if there is a gradient."""

    def set_present(self, index: int, present: bool) -> None:
        """Give the tensor the gradient in its place, or no gradient."""

    def zero(self, set_to_none: bool) -> None:
        """Zero all gradients in their places; with `set_to_none`, tensors may have no gradient afterwards."""

    def exchanged(self) -> None:
        """Note that the gradients are now the result of `Synchronizer.wait`."""

    def settings(self, index: int) -> Settings:
        """Return the optimizer's settings for a tensor in the next step."""


__all__ = ["Tensors"]
