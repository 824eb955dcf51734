"""CuPy's arrays and streams, on a device."""

from __future__ import annotations

from typing import Any

import cupy as cp  # type: ignore[import-not-found]
from support import RANK, SIZE, run_checks

import gradientflow as gf

TOTAL = SIZE * (SIZE + 1) // 2  # of RANK + 1 over all ranks
DEVICE = RANK % cp.cuda.runtime.getDeviceCount()
COUNT = 1_000_003


def mine(dtype: str = "float32") -> Any:
    return cp.full(COUNT, RANK + 1, dtype)


def check_calls(comm: gf.Communicator) -> None:
    for dtype in ("float16", "float32", "float64", "int32"):
        x = mine(dtype)
        assert comm.allreduce(x) is x
        assert bool((x == TOTAL).all())
    gathered = comm.allgather(mine())
    assert isinstance(gathered, cp.ndarray)
    assert gathered.shape == (SIZE, COUNT)
    assert gathered[:, 7].tolist() == [rank + 1 for rank in range(SIZE)]


def check_streams(comm: gf.Communicator) -> None:
    """Work before and after a call, in a stream that is ordered with no other."""
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        for _ in range(10):
            x = mine()
            comm.allreduce(x)
            doubled = x * 2
            y = mine() + 1
            comm.allreduce_async(y).wait()
            tripled = y * 3
            assert bool((doubled == 2 * TOTAL).all())
            assert bool((tripled == 3 * (TOTAL + SIZE)).all())


def check_pool(comm: gf.Communicator) -> None:
    stream = cp.cuda.Stream(non_blocking=True)
    pool = gf.GradientPool(comm, [COUNT, 17, 4096], fusion_threshold=0, device=DEVICE)
    with stream:
        views = [cp.asarray(view) for view in pool.views]
        for step in range(5):
            for index, view in enumerate(views):
                view[...] = RANK + index + step
                pool.ready(index, stream)
            pool.wait(stream=stream)
            for index, view in enumerate(views):
                assert bool((view == (SIZE - 1) / 2 + index + step).all())


if __name__ == "__main__":
    with cp.cuda.Device(DEVICE):
        run_checks()
