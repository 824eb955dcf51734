"""Ranks that add up whole numbers step by step, die on request, and come back.

    come_back.py STEPS SECONDS [FILE] DEATH...

Each step takes so many seconds at least. A death is ``rank@step``. The ranks make so many steps, and then go on until
those that have died are back, but in the last of the steps: however long a process takes to start. With a file they go
on until it is there. With ``seed=N`` as the only death all but one rank die at any moment, also while they join, up to
three times each, and nobody is waited for.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

import gradientflow as gf
from gradientflow.errors import PeerError

steps, seconds = int(sys.argv[1]), float(sys.argv[2])
number, starts = int(os.environ["GRADIENTFLOW_RANK"]), int(os.environ["GRADIENTFLOW_RESTARTS"])


def die() -> None:
    """End as a process that is killed."""
    os.kill(os.getpid(), signal.SIGKILL)


files = [Path(each) for each in sys.argv[3:] if "=" not in each and "@" not in each]
deaths = [tuple(map(int, each.split("@"))) for each in sys.argv[3:] if "@" in each]
wanted = int(os.environ["GRADIENTFLOW_SIZE"]) - sum(step == steps - 1 for _, step in deaths)
if sys.argv[3].startswith("seed="):
    seed, wanted = int(sys.argv[3].removeprefix("seed=")), 0
    if starts < 3 and number != seed % int(os.environ["GRADIENTFLOW_SIZE"]):
        threading.Timer(random.Random(f"{seed} {number} {starts}").uniform(0.0, 1.5), die).start()
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


is_awaited = wanted > 0  # one that is to come
while changed or state[0] < steps or is_awaited:
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
            waits = not files[0].exists() if files else comm.size < wanted
            counted = comm.allreduce(np.array([1, state[0], waits]))
            assert counted[1] == counted[0] * state[0], (counted, state)
            assert counted[0] == comm.size
            state += np.array([1, counted[0]])
            is_awaited = counted[2] > 0
    except PeerError:
        comm, changed = comm.recover(1), True
print("end", comm.rank, comm.size, *state, flush=True)
comm.close()
