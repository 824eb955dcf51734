"""The limit: the traffic of an allreduce in node memory, with no word between the ranks.

Every rank reads its slice of all ranks' tensors and writes the result to all of them, with the kernel that ours uses.
Where ranks outnumber cores, so many of them as there are cores have a slice: the others would only take turns.
Nobody waits for anybody, so results are right only between barriers, and no allreduce of this kind can be faster.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from gradientflow._location import load_core

from ..core.case import Case
from ..core.data import Values
from ..core.peers import Contestant, NotServedError
from .plan import LIMIT

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator


class LimitPeer:
    """What the memory of the node allows, as a contestant.

    Parameters
    ----------
    comm : Communicator
        All ranks of it have to make it together.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._line: Any = comm._native.allocate(64)
        self._limit: Any = load_core().limit

    def round_trip(self) -> float | None:
        """Measure how long a cache line takes from rank 0 to rank 1 and back, in seconds; all ranks together.

        Returns
        -------
        float or None
            The median; None where there are no two ranks of one node.
        """
        comm, seconds = self._comm, None
        if comm.nodes == 1 and comm.size > 1:
            comm.barrier()
            if comm.rank < 2:
                mine, theirs = (self._line.parts[rank].ctypes.data for rank in (comm.rank, 1 - comm.rank))
                seconds = self._limit.round_trip(mine, theirs, comm.rank == 0)
            comm.barrier()
        return seconds

    def contestant(self, case: Case, source: Values | None = None) -> Contestant:
        """Make it ready to run an allreduce; on node memory of its own."""
        comm = self._comm
        if case.collective != "allreduce" or comm.nodes > 1 or source is not None:
            raise NotServedError("the limit is that of an allreduce in the memory of one node")
        segment = comm._native.allocate(case.bytes)
        array = np.frombuffer(segment, case.dtype, case.count)
        parts = [part.ctypes.data for part in segment.parts]
        workers = min(comm.size, len(os.sched_getaffinity(0)))
        call = self._limit.UnsynchronizedAllreduce(parts, comm.rank, workers, case.count, case.dtype, case.op)
        return Contestant(LIMIT, LIMIT, "pool", case.dtype, array, array, call, settles=False)

    def close(self) -> None:
        """Nothing to give back: memory goes with its last user."""
