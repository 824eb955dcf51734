"""Contestants: a callable for each library, with its own buffers, for the same collective on the same values.

A contestant's `call` is bound to its buffers beforehand, so that a timed call contains only the cost of the library. On
a CUDA device its arrays are images of the buffers, in host memory, and `call` may return before the device is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gradientflow.device import empty

from .case import COLLECTIVES, ROOT, Case, block
from .data import Values
from .device import Mirror, address, copy, pinned, synchronize

if TYPE_CHECKING:
    from mpi4py import MPI

OURS = "gradientflow"

Key = tuple[str, str, str, str]  # backend, algorithm, memory, wire


@dataclass(frozen=True)
class Contestant:
    """One way to run a case.

    Attributes
    ----------
    backend, algorithm, memory, wire : str
        Names in results. The wire is the dtype of the messages.
    source : array
        Flat array, to which this rank's input is written before each call.
    result : array
        Flat array with the result after a call. The same array as `source` if the collective works in place.
    call : callable
        Runs the collective.
    mirror : Mirror or None
        The buffers on the device, if there are any.
    completes_on_return : bool
        True if the result is complete when the call returns; otherwise a barrier is needed before and after the call.
    """

    backend: str
    algorithm: str
    memory: str
    wire: str
    source: Values
    result: Values
    call: Callable[[], object]
    mirror: Mirror | None = None
    completes_on_return: bool = True

    @property
    def device(self) -> str:
        """The device: "cpu" or "cuda"."""
        return "cpu" if self.mirror is None else "cuda"

    @property
    def inputs(self) -> list[Values]:
        """The arrays for input values: one array."""
        return [self.source]

    @property
    def results(self) -> list[Values]:
        """The arrays with results: one array."""
        return [self.result]

    def close(self) -> None:
        """Do nothing: there are no resources."""

    def push(self) -> None:
        """Copy `source` to the device."""
        if self.mirror is not None:
            self.mirror.push()

    def pull(self) -> None:
        """Copy the result from the device to `result`."""
        if self.mirror is not None:
            self.mirror.pull()

    @property
    def key(self) -> Key:
        """The key that identifies this contestant."""
        return self.backend, self.algorithm, self.memory, self.wire

    @property
    def name(self) -> str:
        """The contestant in words."""
        if self.backend != OURS:
            return self.backend
        wire = "" if self.wire == self.source.dtype.name else f", {self.wire} on the wire"
        return f"ours ({self.algorithm}, {self.memory}{wire})"


class Peer(Protocol):
    """A library to compare with, ready for use by all ranks."""

    def contestant(self, case: Case, source: Values | None = None) -> Contestant:
        """Make a contestant for a case, on a given source or a new source.

        Raises `NotServedError` if the library cannot run the case.
        """
        ...

    def close(self) -> None:
        """Release its resources. Collective."""
        ...


class NotServedError(Exception):
    """A contestant cannot run a case; the message gives the reason. Raised on all ranks alike."""


def mirrored(case: Case, source: object, result: object) -> Mirror:
    """Return a Mirror that pairs device arrays with new images in host memory."""
    image = np.empty(case.input_count, case.dtype)
    return Mirror(source, result, image, image if result is source else np.empty(case.result_count, case.dtype))


def staged(case: Case, contestant: Contestant) -> Contestant:
    """Turn a contestant that works in host memory into a device contestant, with copies around each call.

    Parameters
    ----------
    case : Case
        Its case.
    contestant : Contestant
        Contestant of a library without support for devices; its arrays become pinned memory.

    Returns
    -------
    Contestant
        Contestant whose call copies to the host, calls, and copies back.
    """
    on_source = empty(case.input_count, case.dtype)
    in_place = contestant.result is contestant.source
    on_result = on_source if in_place else empty(case.result_count, case.dtype)
    mirror = Mirror(on_source, on_result, contestant.source, contestant.result)
    pins = [pinned(contestant.source), None if in_place else pinned(contestant.result)]
    down = address(contestant.source), address(on_source), contestant.source.nbytes
    up = address(on_result), address(contestant.result), contestant.result.nbytes

    def call(_pins: object = pins) -> None:
        copy(*down)
        synchronize()
        contestant.call()
        copy(*up)

    return replace(contestant, call=call, mirror=mirror)


class MpiPeer:
    """The MPI library's own collectives, called through mpi4py."""

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm

    def contestant(self, case: Case, source: Values | None = None) -> Contestant:
        """Make a contestant for a case: in place where the collective permits it, otherwise with a second array."""
        from mpi4py import MPI

        comm = self._comm
        source = np.empty(case.input_count, case.dtype) if source is None else source
        result = source if COLLECTIVES[case.collective].in_place else np.empty(case.result_count, case.dtype)
        datatype = MPI.Datatype.fromcode(np.dtype(case.dtype).char)
        if datatype == MPI.DATATYPE_NULL:
            raise NotServedError(f"this MPI library has no {case.dtype}")
        operation = {"max": MPI.MAX, "min": MPI.MIN, "prod": MPI.PROD}.get(case.op, MPI.SUM)
        is_root = case.rank == ROOT
        sent, received = [source, len(source), datatype], [result, len(result), datatype]
        share = case.count // case.ranks
        blocks_sent, blocks_received = [source, share, datatype], [result, share, datatype]  # a block for each rank
        counts = [end - begin for begin, end in (block(len(source), case.ranks, r) for r in range(case.ranks))]
        calls: dict[str, Callable[[], object]] = {
            "allreduce": partial(comm.Allreduce, MPI.IN_PLACE, sent, operation),
            "broadcast": partial(comm.Bcast, sent, ROOT),
            "reduce": partial(
                comm.Reduce, MPI.IN_PLACE if is_root else sent, sent if is_root else None, operation, ROOT
            ),
            "allgather": partial(comm.Allgather, sent, blocks_received),
            "reduce-scatter": partial(comm.Reduce_scatter, sent, received, counts, operation),
            "alltoall": partial(comm.Alltoall, blocks_sent, blocks_received),
            "gather": partial(comm.Gather, sent, blocks_received if is_root else None, ROOT),
            "scatter": partial(comm.Scatter, blocks_sent if is_root else None, received, ROOT),
            "barrier": comm.Barrier,
        }
        call = calls[case.collective]
        if case.op == "mean" and has_reduction(case):
            call = then_divide(call, result, case.ranks)
        return Contestant("mpi", "mpi", "array", case.dtype, source, result, call)

    def close(self) -> None:
        """Do nothing: the communicator belongs to the caller."""


def then_divide(call: Callable[[], object], result: Values, ranks: int) -> Callable[[], object]:
    """Follow a sum with the division that makes it a mean, for libraries that have no mean."""
    divide = np.floor_divide if result.dtype.kind in "iu" else np.divide

    def mean() -> None:
        call()
        divide(result, ranks, out=result)

    return mean


def has_reduction(case: Case) -> bool:
    """Tell if this rank gets a reduced result."""
    return any(segment.source is None and segment.end > segment.begin for segment in case.segments())
