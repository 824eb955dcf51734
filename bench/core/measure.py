"""Timing of contestants side by side.

Two series are taken. In each, all contestants are interleaved, in a new random order (the same on every rank) in each
iteration:

- *call*: write fresh values (not timed), barrier, **call**;
- *refill*: barrier, **write fresh values and call**, timed together.

Both matter. A call that leaves the buffer's cache lines with another core is itself fast but makes the next writes
slow; a training step pays for both.

A third, shorter series is like the first, with the processor time of each rank's process instead of wall time. It is
separate because reading that clock enters the kernel, which makes the shortest calls slower.

"Writing fresh values" imitates backpropagation, which writes gradients from registers and the first-level cache and
does not read them from memory first. A block is copied over the whole buffer repeatedly: at most 64 KiB, from a random
offset in a pool of random numbers that fits the second-level cache, different in each iteration. It runs at the speed
of memcpy and is the same for every contestant. On a device the copy is queued in the stream, and the call and the wait
for the device are timed together. There a fourth series times the call alone: how long it occupies the host, while the
device may still be working.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .case import Case
from .data import RandomSource, TiledSource, Values
from .objects import from_all

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator

Samples = NDArray[np.int64]  # nanoseconds, [contestant, iteration]
Clock = Callable[[], int]

MIN_ITERATIONS = 5
MAX_ITERATIONS = 10_000

_BLOCK_BYTES = 64 << 10
_POOL_BYTES = 512 << 10
_DISTINCT_BLOCKS = 61  # number of blocks, used in turn; a prime, to avoid periods shared with anything else
_DISTINCT_ORDERS = 97
_LONG_ROUND = 1.0  # least seconds of a round that warms up as well as several
_PROCESSOR_SHARE = 4  # the series of processor times has this fraction of the iterations


class FreshValues:
    """The blocks with which buffers are refilled: small integers, so that results stay exact.

    Parameters
    ----------
    case : Case
        The case of the buffers.
    alphabet : array
        The values to draw from.
    seed : int
        The seed, equal on all ranks; each rank gets its own values.
    """

    def __init__(self, case: Case, alphabet: Values, seed: int) -> None:
        self._alphabet = alphabet
        self._seed = seed
        self._ranks = case.ranks
        item = np.dtype(case.dtype).itemsize
        self.block_length = min(_BLOCK_BYTES // item, max(case.count, 1))  # equal on all ranks
        self._pool_length = _POOL_BYTES // item
        self._own = self._blocks(case.rank)

    def block(self, iteration: int) -> Values:
        """Give this rank's block of an iteration."""
        return self._own[iteration % _DISTINCT_BLOCKS]

    def source(self, iteration: int) -> TiledSource:
        """Describe all ranks' inputs of an iteration, to check its result."""
        return TiledSource([self._blocks(rank)[iteration % _DISTINCT_BLOCKS] for rank in range(self._ranks)])

    def _blocks(self, rank: int) -> list[Values]:
        pool = RandomSource(self._alphabet, self._seed).values(rank, 0, self._pool_length)
        random = np.random.Generator(np.random.SFC64([self._seed, rank]))
        starts = random.integers(0, (self._pool_length - self.block_length) // 64 + 1, _DISTINCT_BLOCKS) * 64
        return [pool[start : start + self.block_length] for start in starts.tolist()]


def refiller(case: Case, target: Values, block_length: int) -> Callable[[Values], None]:
    """Make the function that copies a block over a flat buffer; it does nothing if this rank's input has no effect."""
    return writer(target, block_length) if case.contributes else lambda block: None


def writer(target: Values, block_length: int) -> Callable[[Values], None]:
    """Make the function that copies a block over a whole flat array."""
    whole = len(target) - len(target) % block_length
    rows, rest = target[:whole].reshape(-1, block_length), target[whole:]

    def refill_even(block: Values) -> None:
        rows[...] = block

    def refill_uneven(block: Values) -> None:
        rows[...] = block
        rest[...] = block[: len(rest)]

    return refill_uneven if len(rest) else refill_even


@dataclass(frozen=True)
class Steps:
    """A contestant's functions for one iteration of any series.

    Attributes
    ----------
    refill : callable
        Writes a block over the contestant's buffers. Not timed.
    call : callable
        Runs the collective. Timed, after `refill`.
    begin : callable
        Writes a block, and begins the call meanwhile if possible. Timed, together with `end`.
    end : callable
        Ends the call.
    """

    refill: Callable[[Any], object]
    call: Callable[[], object]
    begin: Callable[[Any], object]
    end: Callable[[], object]


@dataclass(frozen=True)
class Series:
    """A series of calls: the contestants, and the values they work on.

    Attributes
    ----------
    contestants : list of Steps
        The contestants.
    fresh : FreshValues
        The values that refill the buffers.
    barrier : callable
        Synchronizes the ranks before each timed section; the same for every contestant.
    """

    contestants: list[Steps]
    fresh: FreshValues
    barrier: Callable[[], object]

    def run(self, iterations: int, *, with_refill: bool, clock: Clock = time.perf_counter_ns) -> Samples:
        """Take one series. Collective.

        Parameters
        ----------
        iterations : int
            Timed calls of each contestant.
        with_refill : bool
            True to write the values inside the timed section.
        clock : callable
            The clock, in nanoseconds.

        Returns
        -------
        array
            This rank's times.
        """
        barrier, fresh = self.barrier, self.fresh
        entries = [
            (number, *((steps.begin, steps.end) if with_refill else (steps.refill, steps.call)))
            for number, steps in enumerate(self.contestants)
        ]
        random = np.random.default_rng(len(entries))  # equal seeds, hence equal orders, on every rank
        orders = [[entries[k] for k in random.permutation(len(entries))] for _ in range(_DISTINCT_ORDERS)]
        samples = np.empty((len(entries), iterations), np.int64)
        collected = gc.isenabled()
        gc.disable()
        try:
            for iteration in range(iterations):
                block = fresh.block(iteration)
                for number, write, call in orders[iteration % _DISTINCT_ORDERS]:
                    if with_refill:
                        barrier()
                        start = clock()
                        write(block)
                        call()
                        end = clock()
                    else:
                        write(block)
                        barrier()
                        start = clock()
                        call()
                        end = clock()
                    samples[number, iteration] = end - start
        finally:
            if collected:
                gc.enable()
        return samples


def fitting_iterations(seconds: float, seconds_per_round: float) -> int:
    """Give the number of rounds that fit into a time, within bounds."""
    return int(min(max(seconds / max(seconds_per_round, 1e-9), MIN_ITERATIONS), MAX_ITERATIONS))


def interleaved(timed: Sequence[Callable[[], int]], iterations: int) -> Samples:
    """Take samples of each function, in an order that changes with each iteration."""
    samples = np.empty((len(timed), iterations), np.int64)
    random = np.random.default_rng(iterations)
    for iteration in range(iterations):
        for number in random.permutation(len(timed)).tolist():
            samples[number, iteration] = timed[number]()
    return samples


def slowest(samples_of_ranks: list[Samples]) -> Samples:
    """Keep, for every timed call, the time of the slowest rank."""
    slowest_samples: Samples = np.stack(samples_of_ranks).max(axis=0)
    return slowest_samples


def together(samples_of_ranks: list[Samples]) -> Samples:
    """Add up, for every call, the times of all ranks."""
    sums: Samples = np.stack(samples_of_ranks).sum(axis=0)
    return sums


@dataclass(frozen=True)
class Times:
    """The times of every iteration, in nanoseconds.

    Attributes
    ----------
    call : array
        Times of the call alone, on the slowest rank.
    refill : array
        Times of writing fresh values and the call, on the slowest rank.
    processor : array
        Processor times of the call alone, of all ranks together; in fewer iterations.
    launch : array or None
        On a device, times until the call returns, possibly before the device is done; on the slowest rank.
    """

    call: Samples
    refill: Samples
    processor: Samples
    launch: Samples | None = None


def take_series(
    comm: Communicator,
    calls: Series,
    iterations: int | None,
    seconds: float,
    check: Callable[[int], None],
    warm_up: int = 3,
    launches: Series | None = None,
) -> list[Times]:
    """Take all series of a block. Collective.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    calls : Series
        Series to take twice, with and without writing the values in the timed section; and with processor times.
    iterations : int or None
        Timed calls of each contestant; None for as many as fit in `seconds`.
    seconds : float
        The time to spend, roughly.
    check : callable
        Called after each series of wall times with the iteration whose results are in the buffers.
    warm_up : int
        Rounds to warm up, and rounds of each series to find out how many iterations fit; only 1 if a round takes longer
        than `_LONG_ROUND`.
    launches : Series, optional
        An additional series of the same contestants on a device: calls without a wait for the device.

    Returns
    -------
    list of Times
        Times of each contestant; on rank 0 over all ranks, on other ranks their own.
    """
    rounds = warm_up if _seconds(comm, calls, 1, with_refill=True) < _LONG_ROUND else 1
    calls.run(rounds - 1, with_refill=True)
    seconds_per_round = sum(_seconds(comm, calls, rounds, with_refill=refilled) for refilled in (False, True)) / rounds
    iterations = iterations or fitting_iterations(seconds, seconds_per_round)
    processor = calls.run(-(-iterations // _PROCESSOR_SHARE), with_refill=False, clock=time.process_time_ns)
    taken = []
    for with_refill in (False, True):
        taken.append(_on_root(comm, calls.run(iterations, with_refill=with_refill), slowest))
        check(iterations - 1)
    taken.append(_on_root(comm, processor, together))
    if launches is not None:
        taken.append(_on_root(comm, launches.run(iterations, with_refill=False), slowest))
    return [Times(*samples) for samples in zip(*taken, strict=True)]


def sum_over_ranks(comm: Communicator, counts: Sequence[int]) -> list[int]:
    """Add up the counts of all ranks, entry by entry."""
    return [sum(of_ranks) for of_ranks in zip(*from_all(comm, counts), strict=True)]


def _seconds(comm: Communicator, calls: Series, rounds: int, *, with_refill: bool) -> float:
    """Take some rounds; give their seconds on the slowest rank, equal on all ranks."""
    start = time.perf_counter()
    calls.run(rounds, with_refill=with_refill)
    return max(from_all(comm, time.perf_counter() - start))


def _on_root(comm: Communicator, samples: Samples, merge: Callable[[list[Samples]], Samples]) -> Samples:
    """Merge the samples of all ranks on rank 0; other ranks keep their own."""
    samples_of_ranks = from_all(comm, samples)
    return samples if comm.rank != 0 else merge(samples_of_ranks)
