"""Ranks of JAX's processes, for the collectives of unchanged programs."""

from __future__ import annotations

import numpy as np

from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError
from gradientflow.job import init

from .private import place_of_process


def ranks_of_processes() -> Communicator:
    """Return a communicator of all ranks, which are JAX's processes in the same order. Collective.

    The library that JAX loads in place of MPI calls this when JAX starts its collectives.

    Raises
    ------
    gradientflow.errors.ArgumentError
        On all ranks, if JAX numbers its processes differently.
    """
    comm = init()
    process, processes = place_of_process()
    found = comm.allgather(np.array([process, processes])).tolist()
    for rank, (process, processes) in enumerate(found):
        if (process, processes) != (rank, comm.size):
            comm.close()
            raise ArgumentError(
                f"jax.distributed.initialize() made rank {rank} of {comm.size} process {process} of {processes}: leave "
                "its arguments out, or give the rank as process_id and the number of ranks as num_processes"
            )
    return comm
