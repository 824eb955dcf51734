"""The ranks of the job, which pass objects to each other: through MPI, or where there is none through the library."""

from __future__ import annotations

import functools
import operator
import os
import pickle
import time
from typing import Any

import numpy as np

from gradientflow import Config, init
from gradientflow.mpi_library import missing_mpi


def _through_mpi() -> Any:
    from mpi4py import MPI

    class Patient(MPI.Intracomm):
        """MPI's communicator, on which ranks sleep until all have come: on few cores, spinning takes others' time."""

        def Barrier(self) -> None:  # noqa: N802
            """Wait for all ranks."""
            request = self.Ibarrier()
            while not request.Test():
                time.sleep(0.001)

        def allgather(self, sendobj: Any) -> list[Any]:
            """Gather an object of each rank."""
            self.Barrier()
            return super().allgather(sendobj)

        def allreduce(self, sendobj: Any, op: MPI.Op = MPI.SUM) -> Any:
            """Reduce an object of each rank."""
            self.Barrier()
            return super().allreduce(sendobj, op)

    return Patient(MPI.COMM_WORLD)


class _ThroughTheLibrary:
    """What programs that do not need MPI itself use of its communicator."""

    def __init__(self) -> None:
        self._comm = init(config=Config(transport="tcp"))
        self.rank, self.size = self._comm.rank, self._comm.size

    def Barrier(self) -> None:  # noqa: N802
        self._comm.barrier()

    def allgather(self, sendobj: Any) -> list[Any]:
        mine = np.frombuffer(pickle.dumps(sendobj), np.uint8)
        sizes = self._comm.allgather(np.array([mine.size])).ravel()
        padded = np.resize(mine, sizes.max())
        everything = self._comm.allgather(padded).reshape(self.size, -1)
        return [pickle.loads(each[:size].tobytes()) for each, size in zip(everything, sizes, strict=True)]

    def bcast(self, obj: Any, root: int = 0) -> Any:
        return self.allgather(obj)[root]

    def allreduce(self, sendobj: Any) -> Any:
        return functools.reduce(operator.add, self.allgather(sendobj))

    def Abort(self, errorcode: int) -> None:  # noqa: N802
        os._exit(errorcode)  # the launcher ends the other ranks


HAS_MPI = not missing_mpi()
WORLD: Any = _through_mpi() if HAS_MPI else _ThroughTheLibrary()
