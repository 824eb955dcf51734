"""The tensors of a model, as a strategy gets them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gradientflow.annotations import TensorLike
from gradientflow.errors import ArgumentError


@dataclass(frozen=True)
class Layout:
    """The tensors of a model, in the order in which backpropagation reaches them: the last layer first.

    Attributes
    ----------
    names : tuple of str
        Names of the tensors; all different.
    shapes : tuple of tuples of int
        Shapes of the tensors.
    dtypes : tuple of str
        Dtypes of the gradients: "float16", "bfloat16", "float32" or "float64".
    device : str or int
        Device of gradients and weights: "cpu", or a CUDA device as in `gradientflow.GradientPool`.
    weights : tuple of arrays
        The weights in their place, one flat array per tensor, for strategies that write weights; otherwise empty.
    extra : int
        Count of numbers that travel along in every iteration, see `Synchronizer.extra`.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    device: str | int = "cpu"
    weights: tuple[TensorLike, ...] = ()
    extra: int = 0

    def __post_init__(self) -> None:
        """Check that names, shapes, dtypes and weights belong together."""
        if not len(self.names) == len(self.shapes) == len(self.dtypes):
            message = f"{len(self.names)} names, {len(self.shapes)} shapes and {len(self.dtypes)} dtypes do not match"
            raise ArgumentError(message)
        if len(set(self.names)) < len(self.names):
            raise ArgumentError("two tensors of a layout have the same name")
        if self.weights and len(self.weights) != len(self.names):
            raise ArgumentError(f"a layout of {len(self.names)} tensors has {len(self.weights)} weights")

    @classmethod
    def of(cls, weights: Sequence[TensorLike], names: Sequence[str] | None = None, device: str | int = "cpu") -> Layout:
        """Return the layout of weights that are arrays, in the order in which backpropagation reaches them.

        Parameters
        ----------
        weights : sequence of arrays
            Contiguous arrays with ``shape``, ``dtype`` and ``reshape``, such as NumPy arrays.
        names : sequence of str, optional
            Names of the tensors; by default the numbers from 0 on.
        device : str or int, default "cpu"
            Device of the weights.
        """
        for index, weight in enumerate(weights):
            if not all(hasattr(weight, name) for name in ("shape", "dtype", "reshape")):
                raise ArgumentError(f"weight {index} is a {type(weight).__name__}: what is needed is an array")
        return cls(
            tuple(names) if names is not None else tuple(map(str, range(len(weights)))),
            tuple(tuple(weight.shape) for weight in weights),
            tuple(str(weight.dtype) for weight in weights),
            device,
            tuple(weight.reshape(-1) for weight in weights),
        )

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Elements of each tensor."""
        return tuple(map(math.prod, self.shapes))

    @cached_property
    def groups(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The dtypes, each with the indices of its tensors."""
        found: dict[str, list[int]] = {}
        for index, dtype in enumerate(self.dtypes):
            found.setdefault(dtype, []).append(index)
        return tuple((dtype, tuple(indices)) for dtype, indices in found.items())

    @property
    def widest(self) -> str:
        """The widest dtype, as `Strategy.explain` takes it: float32 in place of float64."""
        return "float32" if {"float32", "float64"}.intersection(self.dtypes) else max(self.dtypes, default="float32")

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self.names)

    def in_order(self, order: Sequence[int]) -> Layout:
        """Return the same tensors in the order of these indices."""
        return replace(
            self,
            names=tuple(self.names[i] for i in order),
            shapes=tuple(self.shapes[i] for i in order),
            dtypes=tuple(self.dtypes[i] for i in order),
            weights=tuple(self.weights[i] for i in order) if self.weights else (),
        )


__all__ = ["Layout"]
