"""A training that nobody is left of, once or twice, and that begins anew with those that are started again.

begin_anew.py MODE: "early" and "early twice": rank 0 dies before its weights have reached others, so that all end;
"all": all die in a step; "raise": one dies, and the others do not go on; "close": the same where rank 0 fails and says
at its end that the job has ended; "gone": one is never started again.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np

import gradientflow as gf

mode = sys.argv[1]
life, own = int(os.environ["GRADIENTFLOW_RESTARTS"]), int(os.environ["GRADIENTFLOW_RANK"])
if mode == "gone" and own == 1 and life > 0:
    sys.exit(5)
comm = gf.join()
begins = comm.recovered_from is None
if own == 0 and life < {"early": 1, "early twice": 2}.get(mode, 0):
    time.sleep(0.2)
    os._exit(3)
weights = [np.full(5, 1.0 + comm.rank, np.float32)]
if mode == "close" and life == 0:
    try:
        comm.barrier()
        assert own != 0
        comm.barrier()
    finally:
        comm.close()
options = {} if mode in ("raise", "close", "gone") else {"on_failure": "continue", "min_ranks": 1}
with gf.training.ArrayLoop(comm, weights, **options) as training:
    optimizer = gf.optimizers.SGD(training, weights, lr=1.0)
    last = 20 if mode in ("raise", "close") else None
    for step in training.steps(5000) if options else range(5000):
        if step == 5 and life == 0 and (mode == "all" or (not options and own == 1)):
            os._exit(3)
        if step == 5 and options and own == 1 and begins:  # and one comes back
            os._exit(3)
        if options and training.changed and training.membership.joined:
            last = step + 5
        if step == last:
            break
        time.sleep(0.01)
        training.gradients[0][...] = -1
        training.ready(0)
        training.wait()
        optimizer.step()
    training.finish()
    assert weights[0][0] == 1 + last, (weights, last)  # from those of rank 0
    print("end", training.comm.rank, training.comm.size, life, flush=True)
