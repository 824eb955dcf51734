"""A parameter server whose rank 1 dies: the others make one of what is left, and go on."""

from __future__ import annotations

import os
import signal
import sys

import numpy as np
import pytest

import gradientflow as gf
from gradientflow.errors import ArgumentError, PeerError
from gradientflow.strategies import Settings

STEPS, DEATH = 12, 5
SIZES = (50, 21)


def main() -> None:
    """Train, and compare with what the pushes of those who took part give."""
    policy = sys.argv[1]
    comm = gf.init()
    own, weights = comm.rank, [np.zeros(size, np.float32) for size in SIZES]
    with gf.ParameterServer(comm, weights, policy) as plain, pytest.raises(ArgumentError, match="replicas=0"):
        plain.recover(comm)
    for few, options, why in ((5, {}, "there is one: so few"), (100, {"servers": 1}, "there is one$")):
        with pytest.raises(ArgumentError, match=why):
            gf.ParameterServer(comm, [np.zeros(few, np.float32)], policy, replicas=1, **options)
    server = gf.ParameterServer(comm, weights, policy, replicas=1)
    pulled, step, sizes = [np.zeros_like(each) for each in weights], 0, []
    while step < STEPS:
        sizes = sizes[:step]
        try:
            gradients = [np.full_like(each, 12.0 * (own + step)) for each in weights]
            _, pull = server.push_pull(Settings(0.5, momentum=1.0), gradients=gradients)
            if step == DEATH and own == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            pull.take_all(pulled)
            sizes.append(comm.size)
            step += 1
        except PeerError:
            comm = comm.recover(min_ranks=1)
            server = server.recover(comm)
            server.pull_into(pulled)
            if policy == "bsp":
                step = server.rounds_before
    server.finish(pulled)
    everyone = [comm.allgather(each) for each in pulled]
    assert all((each == each[0]).all() for each in everyone)
    if policy == "bsp":
        assert server.rounds_before in (DEATH, DEATH + 1)
        velocity = weight = np.float32(0)
        for number, size in enumerate(sizes):
            ranks = (0, 1, 2) if size == 3 or number < server.rounds_before else (0, 2)
            velocity += np.float32(sum(12.0 * (rank + number) for rank in ranks) / len(ranks))
            weight -= np.float32(0.5) * velocity
        assert all((each == weight).all() for each in pulled), (pulled[0][0], weight)
    print("recovered")
    server.close()
    comm.close()


if __name__ == "__main__":
    main()
