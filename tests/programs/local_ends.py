"""Ranks with weights of their own in four situations; each writes a line that is the same on all ranks.

"loaded": a rank that has died comes back at the first step, and the others have loaded weights since their loop was
made. "meanwhile": such a rank makes its loop only when the others, which have let it in, have gone on. "apart": what
comes of an exchange is missed by a rank, while the others are some steps ahead. "past the end": all ranks but the first
fail in the barrier at the end.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from local_survival import fail_in_exchange
from survival import die

import gradientflow as gf
from gradientflow.errors import PeerError
from gradientflow.training.survival import Survival

STEPS = 20


def lose_one(comm: gf.Communicator) -> gf.Communicator:
    """Die on rank 1; go on on the others once it waits at the door."""
    if comm.rank == 1:
        die()
    try:
        while True:
            comm.barrier()
    except PeerError:
        comm = comm.recover(1)
    door = comm._door
    while comm.rank == 0 and door is not None and not door._unanswered():
        time.sleep(0.02)
    return comm


def fail_at_the_end() -> None:
    finished = Survival.finished

    def failing(self: Any) -> None:
        Survival.finished = finished  # type: ignore[method-assign]
        time.sleep(0.3)  # the first rank has closed
        raise PeerError("not heard of others")

    Survival.finished = failing  # type: ignore[method-assign]


def main() -> None:
    """Train as the arguments say: the situation, the strategy, and perhaps a file."""
    what, strategy, *files = sys.argv[1:]
    comm = gf.join()
    begins = comm.recovered_from is None
    if what in ("loaded", "meanwhile") and begins:
        comm = lose_one(comm)
    elif what == "apart":
        comm = comm.split(0)  # nobody comes to it, so nothing but exchanges holds ranks together
    while what == "meanwhile" and not begins and not Path(files[0]).exists():
        time.sleep(0.02)
    weights = [np.linspace(0, 1, 50, dtype=np.float32)]
    training = gf.training.ArrayLoop(comm, weights, strategy, on_failure="continue", min_ranks=1)
    if what == "loaded" and begins:
        weights[0][...] += 30
    if what == "past the end" and comm.rank > 0:
        fail_at_the_end()
    optimizer = gf.optimizers.SGD(training, weights, lr=0.05, momentum=0.5)
    for step in training.steps(STEPS):
        if what == "apart" and comm.rank == 1 and step == 9:
            fail_in_exchange("miss", 0.3)
        if what == "meanwhile" and step == 1:
            Path(files[0]).touch()
        random = np.random.default_rng((step, training.membership.rank))
        training.gradients[0][...] = 0.1 * weights[0] + random.standard_normal(50)
        training.ready(0)
        training.wait()
        optimizer.step()
    sys.stdout.write(f"{weights[0].tobytes().hex()} {weights[0].mean() > 20}\n")
    training.close()


if __name__ == "__main__":
    main()
