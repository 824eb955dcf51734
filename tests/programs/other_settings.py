"""Train until the rank that has died comes back with other settings, and is sent away."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np

import gradientflow as gf
from gradientflow.errors import MismatchError

is_sent_away = Path(sys.argv[1])
comm = gf.join()
is_new = comm.recovered_from is not None
weights = [np.zeros(3, np.float32)]
with gf.training.ArrayLoop(comm, weights, "csc" if is_new else "dense", on_failure="continue", min_ranks=1) as training:
    optimizer = gf.optimizers.SGD(training, weights, lr=1.0)
    try:
        for _ in training.steps(10**9):
            if training.comm.rank == 1 and training.comm.size == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            training.gradients[0][:] = is_sent_away.exists()
            training.ready(0)
            training.wait()
            optimizer.step()
            if weights[0].any():
                break
        training.finish()
    except MismatchError as error:
        is_sent_away.write_text(str(error))
        sys.exit()
print(f"{training.comm.size} ranks go on")
