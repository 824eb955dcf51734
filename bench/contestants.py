"""The contestants: one callable each for the same collective on the same values, over buffers of its own.

A contestant's `call` is bound to its buffers beforehand, so that a timed call costs what the library costs and nothing
of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .collectives import ROOT, Case, block
from .data import Values

if TYPE_CHECKING:
    from mpi4py import MPI

    from gradientflow.communicator import Communicator

OURS = "gradientflow"


@dataclass(frozen=True)
class Contestant:
    """One way to run a case.

    Attributes
    ----------
    backend, algorithm, memory : str
        What it is, as results name it.
    source : array
        Flat; this rank's input is written here before each call.
    result : array
        Flat; the result is here after a call. The same array as `source` where the collective works in place.
    call : callable
        Runs the collective.
    """

    backend: str
    algorithm: str
    memory: str
    source: Values
    result: Values
    call: Callable[[], object]

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells this contestant from the others."""
        return self.backend, self.algorithm, self.memory

    @property
    def name(self) -> str:
        """The contestant in words."""
        return f"ours ({self.algorithm}, {self.memory})" if self.backend == OURS else self.backend


class Peer(Protocol):
    """A library to compare with, ready for use by all ranks."""

    def contestant(self, case: Case) -> Contestant:
        """Make it ready to run a case; raises `NotServedError` where it cannot."""
        ...

    def close(self) -> None:
        """Give back what it holds; all ranks together."""
        ...


class NotServedError(Exception):
    """A contestant cannot run a case; the message says why. All ranks come to the same conclusion."""


def our_contestant(comm: Communicator, case: Case, algorithm: str, memory: str) -> Contestant:
    """Make one of our own variants.

    Parameters
    ----------
    comm : Communicator
        All ranks of it have to call this together.
    case : Case
        What to run.
    algorithm : str
        Which algorithm.
    memory : str
        "pool" for node memory, "array" for ordinary memory.

    Returns
    -------
    Contestant
        With fresh buffers.
    """

    def allocate(count: int) -> Values:
        return comm.empty(count, case.dtype) if memory == "pool" else np.empty(count, case.dtype)

    source = allocate(case.input_count) if case.input_count else np.empty(0, case.dtype)
    result = source
    call: Callable[[], object] = comm.barrier
    if case.collective == "allreduce":
        call = partial(comm.allreduce, source, case.op, algorithm)
    elif case.collective == "broadcast":
        call = partial(comm.broadcast, source, ROOT, algorithm)
    elif case.collective == "reduce":
        call = partial(comm.reduce, source, ROOT, case.op, algorithm)
    elif case.collective == "allgather":
        result = allocate(case.result_count)
        call = partial(comm.allgather, source, algorithm, result)
    elif case.collective == "reduce-scatter":
        result = allocate(case.result_count)
        call = partial(comm.reduce_scatter, source, case.op, algorithm, result)
    return Contestant(OURS, algorithm, memory, source, result, call)


class MpiPeer:
    """The MPI library's own collectives, called through mpi4py.

    Parameters
    ----------
    comm : mpi4py communicator
        Whose ranks take part.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm

    def contestant(self, case: Case) -> Contestant:
        """Make it ready to run a case: in place where the collective has it, otherwise into a second array."""
        from mpi4py import MPI

        comm = self._comm
        source = np.empty(case.input_count, case.dtype)
        result = source
        if case.collective == "barrier":
            return Contestant("mpi", "mpi", "array", source, result, comm.Barrier)
        datatype = MPI.Datatype.fromcode(np.dtype(case.dtype).char)
        if datatype == MPI.DATATYPE_NULL:
            raise NotServedError(f"this MPI library has no {case.dtype}")
        sent = [source, len(source), datatype]
        operation = {"max": MPI.MAX, "min": MPI.MIN, "prod": MPI.PROD}.get(case.op, MPI.SUM)
        call: Callable[[], object]
        if case.collective == "allreduce":
            call = partial(comm.Allreduce, MPI.IN_PLACE, sent, operation)
        elif case.collective == "broadcast":
            call = partial(comm.Bcast, sent, ROOT)
        elif case.collective == "reduce":
            is_root = case.rank == ROOT
            call = partial(comm.Reduce, MPI.IN_PLACE if is_root else sent, sent if is_root else None, operation, ROOT)
        elif case.collective == "allgather":
            result = np.empty(case.result_count, case.dtype)
            call = partial(comm.Allgather, sent, [result, len(source), datatype])
        else:
            result = np.empty(case.result_count, case.dtype)
            counts = [end - begin for begin, end in (block(len(source), case.ranks, r) for r in range(case.ranks))]
            call = partial(comm.Reduce_scatter, sent, [result, len(result), datatype], counts, operation)
        if case.op == "mean" and _reduces(case) and len(result):
            call = then_divide(call, result, case.ranks)
        return Contestant("mpi", "mpi", "array", source, result, call)

    def close(self) -> None:
        """Nothing to give back: the communicator is the caller's."""


def then_divide(call: Callable[[], object], result: Values, ranks: int) -> Callable[[], object]:
    """Follow a sum with the division that makes it a mean, for libraries that have no mean."""
    divide: Any = np.floor_divide if result.dtype.kind in "iu" else np.divide

    def mean() -> None:
        call()
        divide(result, ranks, out=result)

    return mean


def _reduces(case: Case) -> bool:
    return case.collective in ("allreduce", "reduce-scatter") or (case.collective == "reduce" and case.rank == ROOT)
