"""Comparison of learning rates between ranks in every iteration, by numbers sent with the gradients."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from gradientflow.communicator import Communicator

_BITS = 16


class Rates:
    """Encoder of this rank's learning rates as numbers, whose means over the ranks show if rates differ.

    The numbers sent may be rounded, but a mean is 0 only if all are 0. So each bit of a checksum is sent together with
    its complement: both means are nonzero if and only if two ranks differ in this bit.

    Attributes
    ----------
    now : callable
        Function that returns the learning rates of the next step; none if unknown.
    """

    numbers = 2 * _BITS

    def __init__(self) -> None:
        self.now: Callable[[], Sequence[float]] = tuple
        self._last: tuple[Sequence[float], npt.NDArray[np.float64]] = (), np.zeros(self.numbers)

    def write(self, numbers: npt.NDArray[np.float64], has_step: bool) -> None:
        """Write the numbers to send: zeros if this rank has no step of its own to make."""
        rates = tuple(self.now()) if has_step else ()
        if rates != self._last[0]:
            checksum = zlib.crc32(struct.pack(f"{len(rates)}d", *rates))
            bits = np.array([checksum >> bit & 1 for bit in range(_BITS)], np.float64)
            self._last = rates, np.concatenate([bits, 1 - bits]) if rates else np.zeros(self.numbers)
        numbers[:] = self._last[1]

    @staticmethod
    def differ(means: npt.NDArray[np.float64]) -> bool:
        """Tell from the means over the ranks whether two ranks have different rates."""
        return bool(np.any((means[:_BITS] != 0) & (means[_BITS:] != 0)))

    def difference(self, comm: Communicator, has_step: bool) -> str:
        """Name a rank whose rates differ from the rates of the first rank that has a step to make. Collective."""
        rates = list(self.now())
        rows = comm.allgather(np.array([float(has_step), *rates]))
        ranks = np.flatnonzero(rows[:, 0])
        first = int(ranks[0])
        other = int(next((rank for rank in ranks if (rows[rank] != rows[first]).any()), first))
        group = int(np.flatnonzero(rows[other, 1:] != rows[first, 1:])[:1].sum())
        of_group = f" of parameter group {group}" if len(rates) > 1 else ""
        mine, theirs = float(rows[other, 1 + group]), float(rows[first, 1 + group])
        return f"the learning rate{of_group} is {mine} on rank {other} and {theirs} on rank {first}"


__all__ = ["Rates"]
