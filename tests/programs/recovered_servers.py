"""A parameter server whose rank 1 dies: the others make one of what is left, and go on.

The arguments are the policy and perhaps "behind": then rank 1 dies once the round has ended, which rank 2 does not see.
With "adam" the servers count updates, of the second tensor in every other round only.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import numpy as np
import pytest

import gradientflow as gf
from gradientflow.errors import ArgumentError, PeerError
from gradientflow.strategies import Settings

STEPS, DEATH = 12, 5
SIZES = (50, 21)


def main() -> None:
    """Train, and compare with what the pushes of those who took part give."""
    policy, is_behind, is_adam = sys.argv[1], "behind" in sys.argv[2:], "adam" in sys.argv[2:]
    comm = gf.init()
    own, weights = comm.rank, [np.zeros(size, np.float32) for size in SIZES]
    with gf.ParameterServer(comm, weights, policy) as plain, pytest.raises(ArgumentError, match="replicas=0"):
        plain.recover(comm)
    for few, options, why in ((5, {}, "there is one: so few"), (100, {"servers": 1}, "there is one$")):
        with pytest.raises(ArgumentError, match=why):
            gf.ParameterServer(comm, [np.zeros(few, np.float32)], policy, replicas=1, **options)
    server = gf.ParameterServer(comm, weights, policy, "adam" if is_adam else "sgd", replicas=1)
    pulled, step = [np.zeros_like(each) for each in weights], 0
    while step < STEPS:
        gradients: list[Any] = [np.full_like(each, 12.0 * (own + step)) for each in weights]
        if is_adam and step % 2:
            gradients[1:] = [None]
        try:
            _, pull = server.push_pull(Settings(0.5, momentum=0.0 if is_adam else 1.0), gradients=gradients)
            if step == DEATH and own == 1:
                if is_behind:
                    pull.wait()
                    time.sleep(0.2)  # the copy of its shard arrives
                os.kill(os.getpid(), signal.SIGKILL)
            pull.take_all(pulled)
            if is_behind and (step, own, comm.size) == (DEATH, 2, 3):
                raise PeerError("the end of the round was not seen")
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
    if is_adam:
        assert [int(each) for each in server.state_dict()["updates"]] == [STEPS, STEPS // 2]
    elif policy == "bsp":
        assert DEATH - 1 <= server.rounds_before <= DEATH + 1  # a push waits until all but the last before it are safe
        assert server.rounds_before + server.statistics().rounds == STEPS
        velocity = weight = np.float32(0)
        for number in range(STEPS):  # also those that this rank has not seen end
            ranks = (0, 1, 2) if number < server.rounds_before else (0, 2)
            velocity += np.float32(sum(12.0 * (rank + number) for rank in ranks) / len(ranks))
            weight -= np.float32(0.5) * velocity
        assert all((each == weight).all() for each in pulled), (pulled[0][0], weight)
    print("recovered")
    server.close()
    comm.close()


if __name__ == "__main__":
    main()
