"""Survival where training ends, or begins again from a state, and a rank dies: what its servers have must not be old.

The arguments are what happens, and the words of a strategy. Ranks print their weights in the end, or an error.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import weakref

import numpy as np
from survival import die

import gradientflow as gf
from gradientflow.errors import CommunicationError

STEPS = 12
RATE = 0.5


def main() -> None:
    """Do what the arguments say."""
    what, strategy = sys.argv[1:]
    comm = gf.join()
    rank = int(os.environ["GRADIENTFLOW_RANK"])
    count = 700_000 if what == "last" else 9  # copies of so many take a while
    weights = [np.zeros(count, np.float32) for _ in range(3)]
    training = gf.training.ArrayLoop(comm, weights, strategy, on_failure="continue", min_ranks=1)
    optimizer = gf.optimizers.SGD(training, weights, lr=RATE)

    def step() -> None:
        for index, gradient in enumerate(training.gradients):
            gradient[...] = 1
            training.ready(index)
        training.wait()
        optimizer.step()

    if what == "last":
        for number in training.steps(STEPS):
            step()
            if (rank, number) == (2, STEPS - 1):
                die()
    elif what == "loaded":
        step()
        training.finish()
        saved = training.consolidated_state_dict()
        step()
        training.finish()
        training.load_state_dict(saved)
        if rank == 2:
            time.sleep(0.5)  # the others have loaded it, too
            die()
        step()
    elif what == "one goes ahead":
        step()
        training.finish()
        for _ in range(10 if rank == 0 else 0):
            step()
        time.sleep(1.5 if rank == 2 else 3)
        if rank == 2:
            die()
        step()
    elif what == "freed":
        gc.disable()
        former = weakref.ref(training.synchronizer)
        for number in training.steps(STEPS):
            if (rank, number) == (2, 5):
                die()
            step()
            time.sleep(0.05)  # so that the loss is noticed in a step
        print("freed", former() is None)
    training.finish()
    print("weights", *{float(each[-1]) for each in weights})
    training.close()


if __name__ == "__main__":
    try:
        main()
    except CommunicationError as error:
        print(f"{type(error).__name__}: {error}")
