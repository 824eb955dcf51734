"""Says how JAX has been started, and what a sum over all ranks is. HOW: bare, given, or swapped ranks."""

from __future__ import annotations

import os
import sys

import jax
import numpy as np
from jax.experimental import multihost_utils

how = sys.argv[1]
rank, size = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
if how == "bare":
    jax.distributed.initialize()
else:
    process = rank if how == "given" else size - 1 - rank
    jax.distributed.initialize(os.environ["JAX_COORDINATOR_ADDRESS"], size, process)

gathered = multihost_utils.process_allgather(np.array([jax.process_index(), jax.process_count()]))
print(f"rank {rank}: {np.asarray(gathered).tolist()}\n", end="", flush=True)
