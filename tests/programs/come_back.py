"""Ranks that add up whole numbers step by step, die on request, and come back."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time

import numpy as np

import gradientflow as gf
from gradientflow.errors import PeerError

steps, seconds = int(sys.argv[1]), float(sys.argv[2])
number, starts = int(os.environ["GRADIENTFLOW_RANK"]), int(os.environ["GRADIENTFLOW_RESTARTS"])


def die() -> None:
    """End as a process that is killed."""
    os.kill(os.getpid(), signal.SIGKILL)


if sys.argv[3].startswith("seed="):  # all but one rank die at any moment, also while they join, up to three times
    seed, deaths = int(sys.argv[3].removeprefix("seed=")), []
    if starts < 3 and number != seed % int(os.environ["GRADIENTFLOW_SIZE"]):
        threading.Timer(random.Random(f"{seed} {number} {starts}").uniform(0.0, 1.5), die).start()
else:  # rank@step
    deaths = [tuple(map(int, each.split("@"))) for each in sys.argv[3:]]
is_first = starts == 0
comm = gf.join()
is_new = changed = comm.recovered_from is not None
state = np.array([-1 if is_new else 0, 0])  # steps, and what all ranks have added


def catch_up(comm: gf.Communicator) -> None:
    """Take the state of the rank that has made the most steps. Collective."""
    global state, is_new
    made = comm.allgather(state[:1]).ravel()
    assert made.max() >= 0
    assert made.max() - made[made >= 0].min() in (0, 1)
    state = comm.broadcast(state.copy(), int(made.argmax()))
    if is_new:
        print("joined", comm.rank, comm.size, state[0], flush=True)
        is_new = False


while changed or state[0] < steps:
    if is_first and (number, int(state[0])) in deaths:
        die()
    try:
        if changed:
            catch_up(comm)
            changed = False
        elif (there := comm.admit(1)) is not comm:
            comm, changed = there, True
        else:
            time.sleep(seconds)
            counted = comm.allreduce(np.array([1, state[0]]))
            assert counted[1] == counted[0] * state[0], (counted, state)
            assert counted[0] == comm.size
            state += np.array([1, counted[0]])
    except PeerError:
        comm, changed = comm.recover(1), True
print("end", comm.rank, comm.size, *state, flush=True)
comm.close()
