"""Two pools of a strategy: the first ends an iteration on both ranks, in the second it fails, as rank 1 dies.

On rank 0 it is then kept, as if another rank had ended it in both, or dropped.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

import gradientflow as gf
from gradientflow.errors import PeerError
from gradientflow.strategies import Layout, as_strategy
from gradientflow.strategies.update import Iteration, Settings

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))  # what ranks share with pytest

from gradientflow.bench.survive.top_chunks_reference import StraightLine
from gradientflow.bench.survive.topk_reference import Reference

COUNT = 640
DTYPES = ("float32", "float16")


def main(words: str, outcome: str) -> None:
    comm = gf.init()
    gradients = 4.0 * np.random.default_rng(0).integers(-9, 10, (2, 2, 2, COUNT))  # iterations, ranks, tensors
    bound = as_strategy(words).bind(comm, Layout.of([np.zeros(COUNT, dtype) for dtype in DTYPES]))
    chunks = [StraightLine(COUNT, 32, 1.0, 2) for _ in DTYPES]
    entries = Reference(2, [COUNT, COUNT], [8, 8])

    def begin(iteration: int) -> None:
        bound.begin(Iteration(lambda _: Settings(0.1)))
        for index, place in enumerate(bound.gradients):
            place[...] = gradients[iteration, comm.rank, index]
            bound.ready(index)

    def iterate(iteration: int) -> None:
        for index, line in enumerate(chunks):
            line.iterate(gradients[iteration, :, index], 0.2)
        entries.step(gradients[iteration].astype(np.float32))

    def require_residuals() -> None:
        kept = [line.residuals[comm.rank] for line in chunks]
        wanted = kept if words.startswith("csc") else entries.residuals[comm.rank]
        assert np.array_equal(np.array(bound.report().residuals), wanted)

    begin(0)
    bound.flush()
    bound.wait()
    iterate(0)
    require_residuals()
    begin(1)
    if comm.rank == 1:
        first = bound.pools[0]
        first.ready()
        first.wait()
        time.sleep(0.3)
        os._exit(1)
    bound.flush()
    try:
        bound.wait()
    except PeerError:
        pass
    else:
        raise AssertionError("the other rank has died")
    if outcome == "kept":
        bound.settle()
        iterate(1)
    bound.drop_failed()
    require_residuals()


if __name__ == "__main__":
    main(*sys.argv[1:])
