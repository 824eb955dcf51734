"""States of synchronizers: checks of their origin, and reordering of their items to the order of the tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gradientflow.annotations import State, TensorLike
from gradientflow.errors import ArgumentError
from gradientflow.strategies.layout import Layout


def check_keys(name: str, needed: Iterable[str], state: Mapping[str, object]) -> None:
    """Raise unless a state of the strategy of this name has these keys."""
    missing = set(needed) - set(state)
    if missing:
        raise ArgumentError(f"this is not the state of {name}: it has no {', '.join(sorted(missing))}")


def check_names(layout: Layout, state: State) -> None:
    """Raise unless a state has the tensors of the layout, in any order."""
    if sorted(state["names"]) != sorted(layout.names):
        raise ArgumentError("the state is of another model, whose tensors have other names")


def in_order(
    values: Sequence[TensorLike], names: Sequence[str], layout: Layout, instead: Sequence[object] | None = None
) -> list[TensorLike]:
    """Return a list with an item for each tensor of `names`, in the order of the layout.

    Tensors that `names` lacks get the items of `instead`.
    """
    there = dict(zip(names, values, strict=True))
    if instead is None:
        return [there[name] for name in layout.names]
    return [there.get(name, own) for name, own in zip(layout.names, instead, strict=True)]


__all__ = ["check_keys", "check_names", "in_order"]
