"""The limit: the memory traffic of an allreduce in node memory, without synchronization between the ranks.

Every rank reads its slice of all ranks' tensors and writes the result to all of them, with the kernel of our allreduce.
If ranks outnumber cores, only one rank for each core has a slice: more ranks would only take turns. No rank waits for
another, so results are right only between barriers, and no allreduce of this kind can be faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gradientflow._location import core
from gradientflow.memory import array_over

from ..core.case import Case
from ..core.data import Values
from ..core.peers import Contestant, NotServedError
from .plan import LIMIT

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator


class LimitPeer:
    """The limit set by the memory of the node, as a contestant."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._line = comm._native.allocate(64)
        self._limit = core.limit

    def round_trip(self) -> float | None:
        """Measure the round trip of a cache line from rank 0 to rank 1 and back, in seconds. Collective.

        Returns
        -------
        float or None
            The median; None without two ranks on one node.
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
        """Make a contestant for an allreduce, on its own node memory."""
        comm = self._comm
        if case.collective != "allreduce" or comm.nodes > 1 or source is not None:
            raise NotServedError("the limit is that of an allreduce in the memory of one node")
        segment = comm._native.allocate(case.bytes)
        array = array_over(segment, 0, (case.count,), np.dtype(case.dtype))
        parts = [part.ctypes.data for part in segment.parts]
        workers = min(comm.size, len(comm.describe()["cores"]))
        call = self._limit.UnsynchronizedAllreduce(parts, comm.rank, workers, case.count, case.dtype, case.op)
        return Contestant(LIMIT, LIMIT, "pool", case.dtype, array, array, call, completes_on_return=False)

    def close(self) -> None:
        """Release nothing: memory is freed with its last user."""
