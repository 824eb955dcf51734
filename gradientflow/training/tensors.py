"""What a framework's adapter does with its tensors, as the loop of training needs it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from gradientflow.strategies import Settings, Synchronizer


class Tensors(Protocol):
    """The gradients of a framework, by their indices in the layout."""

    @property
    def stream(self) -> Any:
        """The stream in which gradients are written and read now."""

    def attach(self, synchronizer: Synchronizer) -> list[int]:
        """Make the places of this synchronizer the gradients. Return those to which a gradient was written."""

    def default_stream(self) -> AbstractContextManager[object]:
        """Return a context in which work in the device's default stream comes behind that in `stream`, and before."""

    def check(self, final: list[int]) -> None:
        """Raise unless tensors and gradients are what and where they were; those in `final` are final already."""

    def collect(self, index: int, used: bool) -> bool:
        """See to it that a gradient that is not final is in its place, or zeros. Return whether there is one."""

    def show(self, index: int, present: bool) -> None:
        """Let a tensor have the gradient in its place, or none."""

    def zero(self, forget: bool) -> None:
        """Zero all gradients, in their places, and let tensors have them; or, with `forget`, perhaps none."""

    def exchanged(self) -> None:
        """Note that the gradients are what `Synchronizer.wait` has left."""

    def settings(self, index: int) -> Settings:
        """Return what the optimizer does with a tensor in the step that comes next."""


__all__ = ["Tensors"]
