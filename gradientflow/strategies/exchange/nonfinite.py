"""Infinite and NaN values: the search for them, and the error that reports them."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from gradientflow._location import core
from gradientflow.annotations import TensorLike
from gradientflow.device import DeviceArray
from gradientflow.errors import NonFiniteError
from gradientflow.memory import itemsize
from gradientflow.pools.gradient import GradientPool

ALONE = "this rank has skipped its step; the others go on"  # outcome if ranks are not in step

_NARROW = ("float16", "bfloat16", "float32")  # dtypes that the core checks


def is_finite(array: TensorLike) -> bool:
    """Tell whether all elements of a contiguous array are finite."""
    name = array.dtype.name
    if name in _NARROW:
        return not core.local_updates.count_nonfinite(array.ctypes.data, name, array.size)
    return bool(np.isfinite(array).all())


def first_nonfinite(arrays: Iterable[TensorLike]) -> int | None:
    """Return the index of the first array that is not finite, or None."""
    return next((index for index, array in enumerate(arrays) if not is_finite(array)), None)


def first_nonfinite_tensor(pool: GradientPool, stream: object) -> int | None:
    """Return the index of the first tensor in the memory of a pool that is not finite, or None."""
    if pool.dtype != "float64" and not pool.has_nonfinite(stream):
        return None
    memory = pool.memory.get() if isinstance(pool.memory, DeviceArray) else pool.memory
    size = itemsize(pool.dtype)
    for index, (offset, shape) in enumerate(zip(pool.offsets, pool.shapes, strict=True)):
        count = math.prod(shape)
        part = memory[offset : offset + count * size]
        if pool.dtype == "float64":  # the core does not look at it
            if not np.isfinite(part.view(np.float64)).all():
                return index
        elif core.local_updates.count_nonfinite(part.ctypes.data, pool.dtype, count):
            return index
    return None


def nonfinite_error(what: str, rank: int | None, outcome: str) -> NonFiniteError:
    """Return an error that names the value that is not finite, its rank, and the outcome.

    Parameters
    ----------
    what : str
        Name of the value, such as "the gradient of fc.weight".
    rank : int or None
        The rank that has the value; None for a mean over the ranks.
    outcome : str
        Outcome, such as "no weight was changed".
    """
    where = "once averaged" if rank is None else f"on rank {rank}"
    return NonFiniteError(f"{what} is not finite {where}: {outcome}")


__all__ = ["ALONE", "first_nonfinite", "first_nonfinite_tensor", "is_finite", "nonfinite_error"]
