"""Checkpoints of a parameter server: checking, writing and reading its state."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from gradientflow.annotations import StateDict, TensorLike
from gradientflow.arguments import checked_int, checked_list, checked_mapping
from gradientflow.errors import ArgumentError
from gradientflow.whole_file import whole_file

from .optimizers import ServerOptimizer

Array = npt.NDArray[np.float32]
Shapes = tuple[tuple[int, ...], ...]

FORMAT = 2  # in format 1, SGD's momentum included the learning rate, and counts covered all tensors together


def flat(arrays: Sequence[Array]) -> Array:
    """Return the elements of all arrays as one array, in order."""
    return np.concatenate([np.zeros(0, np.float32), *(each.reshape(-1) for each in arrays)])


def by_tensor(elements: Array, shapes: Shapes) -> list[Array]:
    """Cut the result of `flat` into the arrays of the tensors."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
    return [each.reshape(shape) for each, shape in zip(np.split(elements, ends), shapes, strict=True)]


def rows_of(state: Mapping[str, object], optimizer: ServerOptimizer, shapes: Shapes) -> list[Array]:
    """Return the arrays and counts of a state, each with one element per weight, as the core takes them.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the state belongs to other tensors or to another optimizer.
    """
    given = checked_mapping("state", state)
    if given.get("format") != FORMAT or given.get("optimizer") != repr(optimizer):
        raise ArgumentError(
            f"the state is of format {FORMAT} and of the optimizer {optimizer!r}, "
            f"not of {given.get('format')!r} and {given.get('optimizer')!r}"
        )
    rows = []
    for name in optimizer.arrays:
        arrays = [np.asarray(each, np.float32) for each in checked_list(name, given.get(name), "arrays")]
        found = tuple(each.shape for each in arrays)
        if found != shapes:
            raise ArgumentError(f"{name} of the state have shapes {found}, not {shapes}")
        rows.append(flat([np.ascontiguousarray(each) for each in arrays]))
    return rows + [_spread(name, given.get(name), shapes) for name in optimizer.counts]


def _spread(name: str, counts: object, shapes: Shapes) -> Array:
    """Return an array with one element per weight: the count of the weight's tensor."""
    found = [checked_int(name, each) for each in checked_list(name, counts, "whole numbers")]
    if len(found) != len(shapes):
        raise ArgumentError(f"{name} of the state are {len(shapes)}, one for each tensor, not {len(found)}")
    return np.repeat(np.array(found, np.float32), [math.prod(shape) for shape in shapes])


def write(path: str | os.PathLike[str], state: Mapping[str, object]) -> None:
    """Write a state to a file, atomically."""
    arrays: dict[str, TensorLike] = {}
    for name, value in state.items():
        if isinstance(value, list):
            arrays.update({f"{name}.{i:06}": each for i, each in enumerate(value)})
        else:
            arrays[name] = np.array(value)
    with whole_file(path) as file:
        np.savez(file, **arrays)


def read(path: str | os.PathLike[str]) -> StateDict:
    """Read a state from a file that `write` made."""
    state: StateDict = {}
    with open(path, "rb") as file:
        arrays = np.load(file, allow_pickle=False)
        if not isinstance(arrays, Mapping):
            raise ArgumentError("it is a single array")
        for key in sorted(arrays):
            name, dot, _ = key.partition(".")
            if dot:
                state.setdefault(name, []).append(arrays[key])
            else:
                state[name] = arrays[key].item()
    return state


__all__ = ["FORMAT", "by_tensor", "flat", "read", "rows_of", "write"]
