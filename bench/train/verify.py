"""What a right gradient is: the mean of the ranks' own, but for the rounding that the contestant's wire allows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

# Of rounding to nearest: the largest error over the value, and where values are tiny.
_ROUNDING = {"float32": (2.0**-24, 2.0**-150), "float16": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, 2.0**-134)}


def count_wrong(gradient: NDArray[Any], gradients: NDArray[Any], dtype: str) -> int:
    """Count the elements that are not the mean over the ranks.

    Parameters
    ----------
    gradient : array
        What a contestant made of them.
    gradients : array
        The ranks' own, one in each row.
    dtype : str
        What values are rounded to where they travel. Each is rounded once or twice before it is added, and each sum
        again.

    Returns
    -------
    int
        How many are further from the mean than rounding can bring them.
    """
    roundings = len(gradients) + 1
    relative, smallest = _ROUNDING[dtype]
    mean = gradients.mean(axis=0, dtype=np.float64)
    allowed = roundings * (relative * np.abs(gradients).mean(axis=0, dtype=np.float64) + smallest)
    right = np.abs(gradient - mean) <= 1.01 * allowed
    return int(np.count_nonzero(~right))
