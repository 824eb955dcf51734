"""Pools whose iteration fails on rank 0, as rank 1 dies in it: residuals before and after `settle`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

import gradientflow as gf
from gradientflow.errors import ArgumentError, PeerError

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))  # what ranks share with pytest

from gradientflow.bench.survive.top_chunks_reference import StraightLine
from gradientflow.bench.survive.topk_reference import Reference

COUNT = 640


def main() -> None:
    comm = gf.init()
    gradients = 4.0 * np.random.default_rng(0).integers(-9, 10, (2, 2, COUNT)).astype(np.float32)  # iterations, ranks
    chunks = gf.SparseGradientPool(comm, [COUNT], density=0.2, momentum=1.0, chunk_size=32)
    entries = gf.TopKGradientPool(comm, [COUNT], ratios=8, selection="exact", momentum=0.5)
    pools = (chunks, entries)
    in_lines = StraightLine(COUNT, 32, 1.0, 2), Reference(2, [COUNT], [8], momentum=0.5)

    def begin(iteration: int) -> None:
        for pool in pools:
            pool.views[0][...] = gradients[iteration, comm.rank]
            pool.ready()

    def require_residuals() -> None:
        assert np.array_equal(chunks.residuals[0], in_lines[0].residuals[0])
        assert np.array_equal(entries.residuals[0], in_lines[1].residuals[0][0])
        assert np.array_equal(entries.velocities[0], in_lines[1].velocities[0][0])

    def iterate(iteration: int) -> None:
        in_lines[0].iterate(gradients[iteration], 0.2)
        in_lines[1].step(gradients[iteration][:, None])

    begin(0)
    for pool in pools:
        pool.wait()
    iterate(0)
    if comm.rank == 1:
        time.sleep(0.3)
        os._exit(1)
    require_residuals()
    for pool in pools:
        refuse_to_settle(pool)
    begin(1)
    for pool in pools:
        try:
            pool.wait()
        except PeerError:
            continue
        raise AssertionError("the other rank has died")
    require_residuals()
    for pool in pools:
        pool.settle()
        refuse_to_settle(pool)
    iterate(1)
    require_residuals()


def refuse_to_settle(pool: gf.SparseGradientPool | gf.TopKGradientPool) -> None:
    try:
        pool.settle()
    except ArgumentError:
        return
    raise AssertionError("its last iteration has not failed")


if __name__ == "__main__":
    main()
