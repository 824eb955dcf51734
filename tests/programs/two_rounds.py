"""Train twice on one loop; rank 1 loses another at the end of the first training, which that one is past.

Rank 0 gives up two of its steps, as by an exception in the backward pass.
"""

from __future__ import annotations

import numpy as np

import gradientflow as gf
from gradientflow.errors import AbandonedError, PeerError

comm = gf.init()
weights = [np.zeros(3, np.float32)]
with gf.training.ArrayLoop(comm, weights, on_failure="continue", min_ranks=3) as training:
    optimizer = gf.optimizers.SGD(training, weights, lr=1.0)
    if comm.rank == 1:
        barrier = comm.barrier

        def failing() -> None:
            """Act as if the barrier failed on this rank."""
            barrier()
            raise PeerError("not heard of others")

        comm.barrier = failing  # type: ignore[method-assign]
    for training_round in range(2):
        for step in training.steps(4):
            training.gradients[0][:] = step + 1
            training.ready(0)
            gives_up = training_round == 0 and step in (1, 3)
            if gives_up and comm.rank == 0:
                continue
            try:
                training.wait()
            except AbandonedError:
                assert gives_up
                continue
            assert not gives_up
            optimizer.step()
        assert weights[0].tolist() == [-(4, 14)[training_round]] * 3
    print(f"rank {comm.rank} has recovered: {training.comm is not comm}")
