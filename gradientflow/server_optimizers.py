"""The optimizers of a parameter server, by their words."""

from __future__ import annotations

from typing import Any, ClassVar

from .description import Description, Words


class ServerOptimizer(Description):
    """How servers update weights. Parameters, and nothing that runs.

    Attributes
    ----------
    arrays : tuple of str
        What a server has of each tensor.
    """

    arrays: ClassVar[tuple[str, ...]] = ("weights", "momentum")

    @property
    def native(self) -> tuple[Any, ...]:
        """The arguments of the core."""
        return (self.name,)


class SGD(ServerOptimizer):
    """Momentum SGD, with weight decay."""

    name = "sgd"


class LARS(ServerOptimizer):
    """Momentum SGD at a local rate for each tensor whose settings have a trust coefficient."""

    name = "lars"


_WORDS: Words[ServerOptimizer] = Words(ServerOptimizer, "optimizer", (LARS, SGD))


def as_server_optimizer(optimizer: Any) -> ServerOptimizer:
    """Return an optimizer that is given as one, or in words.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the words name none.
    gradientflow.errors.ArgumentTypeError
        If it is something else.
    """
    return _WORDS.given(optimizer)


__all__ = ["LARS", "SGD", "ServerOptimizer", "as_server_optimizer"]
