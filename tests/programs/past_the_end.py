"""Rank 1 loses rank 2 at the end of training, which rank 0 is past: that has closed its communicator, and lives on."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import gradientflow as gf
from gradientflow.errors import PeerError

has_ended = Path(sys.argv[1])
comm = gf.init()
rank = comm.rank
other = comm.split(rank)  # it keeps the connections of this process open
weights = [np.zeros(3, np.float32)]
with gf.training.ArrayLoop(comm, weights, on_failure="continue") as training:
    optimizer = gf.optimizers.SGD(training, weights, lr=1.0)
    barrier = comm.barrier

    def failing() -> None:
        """Act as if the barrier failed on this rank."""
        barrier()
        raise PeerError("not heard of others")

    if rank == 1:
        comm.barrier = failing  # type: ignore[method-assign]
    for step in training.steps(2):
        training.gradients[0][:] = step + 1
        training.ready(0)
        training.wait()
        optimizer.step()
if rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)
comm.close()
if rank == 1:
    print(f"{training.comm.recovered_from} without {training.comm.lost}")
    has_ended.touch()
while not has_ended.exists():
    time.sleep(0.01)
