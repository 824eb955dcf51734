"""What a right gradient is: the mean of the ranks' own, but for the rounding that the contestant's wire allows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradientflow.bench.rounding import count_beyond_rounding


def count_wrong(gradient: NDArray[Any], gradients: NDArray[Any], dtype: str) -> int:
    """Count the elements that are not the mean over the ranks.

    Parameters
    ----------
    gradient : array
        What a contestant made of them.
    gradients : array
        The ranks' own, one in each row.
    dtype : str
        What values are rounded to where they travel.

    Returns
    -------
    int
        How many are further from the mean than rounding can bring them.
    """
    mean = gradients.mean(axis=0, dtype=np.float64)
    magnitudes = np.abs(gradients).mean(axis=0, dtype=np.float64)
    wrong: int = count_beyond_rounding(gradient, mean, magnitudes, len(gradients), dtype)
    return wrong
