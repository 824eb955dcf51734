"""Rank 0 gives up a step of a strategy whose other ranks then make a new communicator: the step comes again."""

from __future__ import annotations

import numpy as np

import gradientflow as gf

comm = gf.init()
weights = [np.zeros(3, np.float32)]
dropped = []
has_given_up = False
with gf.training.ArrayLoop(comm, weights, "powersgd", on_failure="continue", min_ranks=3) as training:
    optimizer = gf.optimizers.SGD(training, weights, lr=1.0)
    for step in training.steps(4):
        training.gradients[0][:] = step + 1
        training.ready(0)
        if step == 1 and comm.rank == 0 and not has_given_up:
            has_given_up = True
            continue
        training.wait()
        optimizer.step()
        if training.membership.dropped:
            dropped.append((step, training.membership.left))
assert weights[0].tolist() == [-10] * 3
assert dropped == ([] if comm.rank == 0 else [(1, ())])
