"""The samples of each step's batch, and each rank's part of them, for any number of ranks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradientflow.arguments import checked_int
from gradientflow.errors import ArgumentError


class Deal:
    """Distribution of samples to ranks, step by step; the ranks may change between any two steps.

    The batch of a step depends on the step and the seed only, and each of its samples goes to one rank. So no state has
    to be kept or sent when ranks are lost or join. No sample is dealt twice in an epoch. Samples after the last whole
    batch of an epoch are not dealt.

    Parameters
    ----------
    samples : int
        Number of samples.
    batch_size : int
        Samples in the batch of a step, over all ranks.
    seed : int, optional
        Seed of the order of the samples, which differs between epochs. The same on all ranks.
    shuffle : bool, optional
        True to deal samples in this order, False to deal them from the first to the last.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If there are fewer samples than `batch_size`.
    """

    def __init__(self, samples: int, batch_size: int, seed: int = 0, shuffle: bool = True) -> None:
        self._samples, self._batch_size = checked_int("samples", samples), checked_int("batch_size", batch_size, 1)
        self._seed, self._shuffle = checked_int("seed", seed), shuffle
        if batch_size > samples:
            raise ArgumentError(f"a batch of {batch_size} samples is more than there are: {samples}")
        self._epoch = -1
        self._order: NDArray[np.int64] = np.arange(self._samples)

    def batch(self, step: int) -> NDArray[np.int64]:
        """Return the numbers of the samples of a step, over all ranks."""
        epoch, number = divmod(checked_int("step", step), self._samples // self._batch_size)
        if self._shuffle and epoch != self._epoch:
            self._epoch, self._order = epoch, np.random.default_rng([self._seed, epoch]).permutation(self._samples)
        batch: NDArray[np.int64] = self._order[number * self._batch_size : (number + 1) * self._batch_size].copy()
        return batch

    def part(self, step: int, rank: int, size: int) -> NDArray[np.int64]:
        """Return the numbers of a rank's samples in a step, where there are `size` ranks.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If there are more ranks than samples in a batch.
        """
        if checked_int("size", size, 1) > self._batch_size:
            raise ArgumentError(f"a batch of {self._batch_size} samples is too small for {size} ranks: each needs one")
        return self.batch(step)[checked_int("rank", rank, 0, size - 1) :: size]


__all__ = ["Deal"]
