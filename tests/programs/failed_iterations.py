"""Iterations that fail on rank 0, as rank 1 dies in them: what has been sent is kept as sent, or is residual again.

Two pools, and strategies of two pools, of which the first ends an iteration on both ranks, and the second does not. On
rank 0 it is then kept, as if another rank had ended it in both, or dropped.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import paths  # noqa: F401

import gradientflow as gf
from gradientflow.errors import ArgumentError, PeerError
from gradientflow.strategies import Layout, as_strategy
from gradientflow.strategies.update import Iteration, Settings

from survive.top_chunks_reference import StraightLine
from survive.topk_reference import Reference

COUNT = 640
DTYPES = ("float32", "float16")
STRATEGIES = ("csc(density=0.2, chunk_size=32, momentum=1.0)", "top_k(ratio=8)")
EXECUTOR = ThreadPoolExecutor()
GRADIENTS = 4.0 * np.random.default_rng(0).integers(-9, 10, (2, 2, 2, COUNT))  # iterations, ranks, tensors


def fails(call: Callable[[], Any], kind: type[Exception]) -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError("no error")


class Pools:
    """A pool of chunks and one of entries."""

    def __init__(self, comm: gf.Communicator) -> None:
        self.own = comm.rank
        self.chunks = gf.SparseGradientPool(comm, [COUNT], density=0.2, momentum=1.0, chunk_size=32)
        self.entries = gf.TopKGradientPool(comm, [COUNT], ratios=8, selection="exact", momentum=0.5)
        self.lines = StraightLine(COUNT, 32, 1.0, 2), Reference(2, [COUNT], [8], momentum=0.5)

    def begin(self, iteration: int) -> None:
        for pool in (self.chunks, self.entries):
            pool.views[0][...] = GRADIENTS[iteration, self.own, 0]
            pool.ready()

    def end(self) -> None:
        for pool in (self.chunks, self.entries):
            pool.wait()
            fails(pool.commit, ArgumentError)  # its last iteration has not failed

    def iterate(self, iteration: int) -> None:
        gradients = GRADIENTS[iteration, :, 0].astype(np.float32)
        self.lines[0].iterate(gradients, 0.2)
        self.lines[1].step(gradients[:, None])

    def half(self) -> None:
        """Do nothing: rank 1 dies before."""

    def fail(self) -> None:
        for pool in (self.chunks, self.entries):
            fails(pool.wait, PeerError)
        self.require_residuals()
        for pool in (self.chunks, self.entries):
            pool.commit()
            fails(pool.commit, ArgumentError)
        self.iterate(1)

    def require_residuals(self) -> None:
        assert np.array_equal(self.chunks.residuals[0], self.lines[0].residuals[self.own])
        assert np.array_equal(self.entries.residuals[0], self.lines[1].residuals[self.own][0])
        assert np.array_equal(self.entries.velocities[0], self.lines[1].velocities[self.own][0])


class Bound:
    """A strategy of two pools."""

    def __init__(self, comm: gf.Communicator, words: str, outcome: str) -> None:
        self.own, self.is_of_chunks, self.outcome = comm.rank, words.startswith("csc"), outcome
        self.bound = as_strategy(words).bind(comm, Layout.of([np.zeros(COUNT, dtype) for dtype in DTYPES]))
        self.chunks = [StraightLine(COUNT, 32, 1.0, 2) for _ in DTYPES]
        self.entries = Reference(2, [COUNT, COUNT], [8, 8])

    def begin(self, iteration: int) -> None:
        self.bound.begin(Iteration(lambda _: Settings(0.1)))
        for index, place in enumerate(self.bound.gradients):
            place[...] = GRADIENTS[iteration, self.own, index]
            self.bound.ready(index)

    def end(self) -> None:
        self.bound.flush()
        self.bound.wait()

    def iterate(self, iteration: int) -> None:
        for index, line in enumerate(self.chunks):
            line.iterate(GRADIENTS[iteration, :, index], 0.2)
        self.entries.step(GRADIENTS[iteration].astype(np.float32))

    def half(self) -> None:
        """End the iteration in the first pool; on rank 0 wait for it in all."""
        if self.own == 0:
            self.bound.flush()
            self.waiting = EXECUTOR.submit(self.bound.wait)
            return
        first = self.bound.pools[0]
        first.ready()
        first.wait()

    def fail(self) -> None:
        fails(self.waiting.result, PeerError)
        if self.outcome == "kept":
            self.bound.commit()
            self.iterate(1)
        self.bound._undo_if_failed()

    def require_residuals(self) -> None:
        kept = [line.residuals[self.own] for line in self.chunks]
        wanted = kept if self.is_of_chunks else self.entries.residuals[self.own]
        assert np.array_equal(np.array(self.bound.withheld().residuals), wanted)


def main() -> None:
    """Begin everything, lose rank 1 once, and look at everything."""
    told = gf.init()
    everything: list[Any] = [Pools(gf.init(config=gf.Config(node_size=node_size))) for node_size in (0, 1)]
    everything += [Bound(gf.init(), *each) for each in itertools.product(STRATEGIES, ("kept", "dropped"))]
    for each in everything:
        each.begin(0)
        each.end()
        each.iterate(0)
        each.require_residuals()
    for each in everything:
        if told.rank == 0 or isinstance(each, Bound):
            each.begin(1)
            each.half()
    told.barrier()
    if told.rank == 1:
        time.sleep(0.3)  # the other one ends what this one has ended
        os._exit(1)
    for each in everything:
        each.fail()
        each.require_residuals()


if __name__ == "__main__":
    main()
