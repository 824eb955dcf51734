"""Checks of compute kernels: fresh values for their arrays, and the comparison with the right results."""

from __future__ import annotations

import secrets

import numpy as np

from ..core.data import Values
from .contestants import Kernel, stored

_BLOCK = 1_000_003  # number of random values that are repeated; a prime, so that misplaced values are noticed


class Trial:
    """Fresh random values for the arrays of one kernel, and the right results.

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    count : int
        Elements of each array.
    """

    def __init__(self, kernel: Kernel, count: int) -> None:
        blocks = kernel.fresh(min(_BLOCK, count), secrets.randbits(48))
        expected = kernel.expect(blocks)
        self._count = count
        self._addends = expected.addends
        self._before = {name: stored(blocks[name], dtype) for name, dtype in kernel.arrays.items()}
        self._after = {name: stored(values, kernel.arrays[name]) for name, values in expected.arrays.items()}

    def fill(self, name: str, target: Values) -> None:
        """Write the input values of an array."""
        block = self._before[name]
        for begin in range(0, len(target), len(block)):
            part = target[begin : begin + len(block)]
            part[...] = block[: len(part)]

    def differing(self, name: str, found: Values) -> int:
        """Count the elements of an array whose bits are wrong after the kernel."""
        block = self._after.get(name, self._before[name])
        bits = np.dtype(f"u{block.itemsize}")
        count = 0
        for begin in range(0, len(found), len(block)):
            part = found[begin : begin + len(block)].view(bits)
            count += int(np.count_nonzero(part != block[: len(part)].view(bits)))
        return count

    def is_wrong(self, number: float | None) -> bool:
        """Tell if the kernel's sum is wrong."""
        if self._addends is None:
            return False
        addends = self._addends.astype(np.float64)
        times, rest = divmod(self._count, len(addends))
        return bool(number != times * addends.sum() + addends[:rest].sum())
