"""Batches for a DataLoader that are dealt anew when ranks are lost or come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any

from gradientflow.errors import ArgumentError, ArgumentTypeError
from gradientflow.training import Deal

from .optimizer import DistributedOptimizer


class ElasticSampler:
    """Deals the samples of a data set to the ranks that take part, whoever they are in a step.

    It is the ``batch_sampler`` of a `torch.utils.data.DataLoader`, and `steps` is the training loop::

        sampler = ElasticSampler(dataset, optimizer, batch_size=96)
        loader = DataLoader(dataset, batch_sampler=sampler, num_workers=2)
        for step, (x, y) in sampler.steps(loader, total):
            ...

    The batch of a step depends on the step and the seed only; each rank gets its part of it. So no sample is left out
    or comes twice in an epoch when ranks are lost or come, batches stay as large as they were, and so the learning rate
    may. What is left of an epoch behind its last whole batch is not dealt.

    Parameters
    ----------
    dataset : Dataset or int
        Whose samples are dealt, or how many there are.
    optimizer : DistributedOptimizer
        It knows who takes part.
    batch_size, seed, shuffle
        As in `gradientflow.training.Deal`.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If there are fewer samples than a batch has.
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
        self._ahead: range | None = None  # the steps whose batches a DataLoader is to take

    def steps(self, loader: Iterable[Any], total: int) -> Iterator[tuple[int, Any]]:
        """Return an iterator over ``optimizer.steps(total)``, with this rank's part of each batch.

        Where ranks were lost or have come, or a step is numbered again, the loader is iterated over anew: what it has
        loaded ahead is not used.

        Parameters
        ----------
        loader : DataLoader
            It has this sampler as its ``batch_sampler``.
        total : int
            The number of steps.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If it has another one. In a step, if there are more ranks than samples in a batch.
        """
        sampler: object = getattr(loader, "batch_sampler", None)
        if sampler is not self:
            message = "the loader has another sampler: what is needed is DataLoader(dataset, batch_sampler=sampler)"
            raise ArgumentError(message)
        return self._steps(loader, total)

    def _steps(self, loader: Iterable[Any], total: int) -> Iterator[tuple[int, Any]]:
        batches: Iterator[Any] = iter(())
        loaded = None  # for which step, rank and size the next batch is
        for step in self._optimizer.steps(total):
            now = self._optimizer.membership
            if loaded != (step, now.rank, now.size):
                batches = iter(())  # the workers of the former one end before others begin
                self._ahead = range(step, total)
                batches = iter(loader)
                self._ahead = None
            loaded = step + 1, now.rank, now.size
            yield step, next(batches)

    def __iter__(self) -> Iterator[list[int]]:
        """Return an iterator over the numbers of this rank's samples, for the loader in `steps`."""
        if self._ahead is None:
            raise ArgumentError("the loader of an ElasticSampler is iterated over by sampler.steps(loader, total)")
        now = self._optimizer.membership
        return (self._deal.part(step, now.rank, now.size).tolist() for step in self._ahead)


__all__ = ["ElasticSampler"]
