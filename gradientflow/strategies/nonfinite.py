"""Numbers that are infinite or NaN: looking for them before they are kept, and what is said of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gradientflow._location import load_core
from gradientflow.errors import NonFiniteError

ALONE = "this rank has skipped its step; the others go on"  # where ranks are not in step

_NARROW = ("float16", "bfloat16", "float32")  # which the core looks at


def is_finite(array: Any) -> bool:
    """Tell whether no number of a contiguous array is infinite or NaN."""
    name = array.dtype.name
    if name in _NARROW:
        return not load_core().local_updates.count_nonfinite(array.ctypes.data, name, array.size)
    return bool(np.isfinite(array).all())


def first_nonfinite(arrays: Iterable[Any]) -> int | None:
    """Return which is the first array that is not finite, if one is."""
    return next((index for index, array in enumerate(arrays) if not is_finite(array)), None)


def nonfinite_error(what: str, rank: int | None, outcome: str) -> NonFiniteError:
    """Return the error that says of what, and on which rank, numbers are not finite, and what has become of them.

    Parameters
    ----------
    what : str
        Such as "the gradient of fc.weight".
    rank : int or None
        Where that is so; None: once all ranks had put theirs together.
    outcome : str
        Such as "no weight was changed".
    """
    where = "once averaged" if rank is None else f"on rank {rank}"
    return NonFiniteError(f"{what} is not finite {where}: {outcome}")


__all__ = ["ALONE", "first_nonfinite", "is_finite", "nonfinite_error"]
