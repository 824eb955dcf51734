"""Ranks that keep their tensors in different places: in place or with out=, dropped, empty, at odd addresses."""

from __future__ import annotations

import gc
import threading

import numpy as np
from support import RANK, SIZE, run_checks

import gradientflow as gf

TOTAL = SIZE * (SIZE + 1) // 2


def check_in_place_on_some_ranks(comm: gf.Communicator) -> None:
    """MPI wants all ranks to agree on that; here it is each rank's own business."""
    for algorithm in ("auto", "mpi") if comm.describe()["transport"] == "mpi" else ("auto",):
        for count in (3, 5000, 100_000):
            x = np.full(count, RANK + 1, np.float64)
            out = None if RANK % 2 else np.zeros(count)
            assert (comm.allreduce(x, algorithm=algorithm, out=out) == TOTAL).all()
            x[:] = RANK + 1
            result = comm.reduce(x, root=SIZE - 1, algorithm=algorithm, out=out)
            if RANK == SIZE - 1:
                assert (result == TOTAL).all()


def check_empty_out_within_the_tensor(comm: gf.Communicator) -> None:
    x = np.ones(SIZE - 1, np.float32)
    own = x[:0] if RANK == SIZE - 1 else None  # the last rank's block is empty
    assert (comm.reduce_scatter(x, out=own) == SIZE).all()


def check_tensors_between_elements(comm: gf.Communicator) -> None:
    """A float may begin at any byte."""
    for shift in (1, 2, 3):
        x, y = (comm.empty(400_128, np.uint8)[64 + shift :][:400_000].view(np.float32) for _ in range(2))
        x[:] = RANK + 1
        assert (comm.allreduce(x, out=y) == TOTAL).all()


def check_dropped_calls_of_several_threads(comm: gf.Communicator) -> None:
    """Only the pool is left of the communicator, and nothing of the tensors, while the calls are under way."""
    results: list[gf.Handle] = []

    def start(own: gf.Communicator) -> None:
        for _ in range(50):
            results.append(own.allreduce_async(np.full(20_000, RANK + 1, np.float32)))
            own.allreduce_async(np.full(20_000, RANK + 1, np.float32))

    others = [gf.init() for _ in range(2)]
    pools = [gf.GradientPool(other, [10]) for other in others]
    threads = [threading.Thread(target=start, args=[other]) for other in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    del others
    gc.collect()
    for pool in pools:
        pool.ready()
        pool.wait()
    assert all((handle.wait() == TOTAL).all() for handle in results)


if __name__ == "__main__":
    settings = [{}, {"node_size": 1}, {"streaming_bytes": 1, "inline_bytes": 0}]
    run_checks(settings)
