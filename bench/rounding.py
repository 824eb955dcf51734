"""How far a mean may be from the exact one where values are rounded on their way."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

# Of rounding to nearest: the largest error over the value, and where values are tiny.
_ROUNDING = {"float32": (2.0**-24, 2.0**-150), "float16": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, 2.0**-134)}


def count_beyond_rounding(
    means: NDArray[Any], exact: NDArray[Any], magnitudes: NDArray[Any], ranks: int, dtype: str
) -> int:
    """Count the elements that are further from the exact mean than rounding can bring them.

    Parameters
    ----------
    means : array
        What came out.
    exact : array
        What should have.
    magnitudes : array
        The means of the absolute values that were added up.
    ranks : int
        Of so many ranks. Each value is rounded once or twice before it is added, and each sum again.
    dtype : str
        To what they are rounded.

    Returns
    -------
    int
        How many are wrong.
    """
    relative, smallest = _ROUNDING[dtype]
    allowed = (ranks + 1) * (relative * magnitudes + smallest)
    right = np.abs(means - exact) <= 1.01 * allowed
    return int(np.count_nonzero(~right))
