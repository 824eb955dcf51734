"""Batches for a DataLoader that are dealt again when ranks die or join."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

from gradientflow.errors import ArgumentError, ArgumentTypeError
from gradientflow.training import Deal

from .optimizer import DistributedOptimizer

Batch = TypeVar("Batch")


class ElasticSampler:
    """Batch sampler that deals the samples of a data set to the current ranks, which may change from step to step.

    It is the ``batch_sampler`` of a `torch.utils.data.DataLoader`, and `steps` is the training loop::

        sampler = ElasticSampler(dataset, optimizer, batch_size=96)
        loader = DataLoader(dataset, batch_sampler=sampler, num_workers=2)
        for step, (x, y) in sampler.steps(loader, total):
            ...

    The batch of a step depends on the step and the seed only; each rank gets its part. So when ranks die or join, no
    sample is left out or repeated in an epoch, and batches keep their size: the learning rate need not change. Samples
    after the last whole batch of an epoch are not dealt.

    Parameters
    ----------
    dataset : Dataset or int
        The data set to deal, or its number of samples.
    optimizer : DistributedOptimizer
        The optimizer, which knows the current ranks.
    batch_size, seed, shuffle
        Same as for `gradientflow.training.Deal`.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the data set has fewer samples than a batch.
    """

    def __init__(
        self,
        dataset: Sized | int,
        optimizer: DistributedOptimizer,
        *,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        if not isinstance(optimizer, DistributedOptimizer):
            message = f"the optimizer is a {type(optimizer).__name__}: what is needed is a DistributedOptimizer"
            raise ArgumentTypeError(message)
        self._deal = Deal(len(dataset) if isinstance(dataset, Sized) else dataset, batch_size, seed, shuffle)
        self._optimizer = optimizer
        self._ahead: range | None = None  # steps whose batches the DataLoader loads next

    def steps(self, loader: Iterable[Batch], total: int) -> Iterator[tuple[int, Batch]]:
        """Return an iterator over ``optimizer.steps(total)``, with this rank's part of each batch.

        When ranks have died or joined, or a step gets another number, iteration over the loader starts again: batches
        loaded ahead are dropped.

        Parameters
        ----------
        loader : DataLoader
            A loader with this sampler as its ``batch_sampler``.
        total : int
            The number of steps.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If the loader has another sampler; in a step, if a batch has fewer samples than there are ranks.
        """
        sampler: object = getattr(loader, "batch_sampler", None)
        if sampler is not self:
            message = "the loader has another sampler: what is needed is DataLoader(dataset, batch_sampler=sampler)"
            raise ArgumentError(message)
        return self._steps(loader, total)

    def _steps(self, loader: Iterable[Batch], total: int) -> Iterator[tuple[int, Batch]]:
        batches: Iterator[Batch] = iter(())
        loaded = None  # step, rank and size of the next batch
        for step in self._optimizer.steps(total):
            now = self._optimizer.membership
            if loaded != (step, now.rank, now.size):
                batches = iter(())  # end the workers of the former iteration before new workers begin
                self._ahead = range(step, total)
                batches = iter(loader)
                self._ahead = None
            loaded = step + 1, now.rank, now.size
            yield step, next(batches)

    def __iter__(self) -> Iterator[list[int]]:
        """Return an iterator over the numbers of this rank's samples, for the loader of `steps`."""
        if self._ahead is None:
            raise ArgumentError("the loader of an ElasticSampler is iterated over by sampler.steps(loader, total)")
        now = self._optimizer.membership
        return (self._deal.part(step, now.rank, now.size).tolist() for step in self._ahead)


__all__ = ["ElasticSampler"]
