"""GradientFlow's contestants: each collective on each kind of memory, with each algorithm and wire."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gradientflow.annotations import TensorLike
from gradientflow.device import empty

from ..core.case import COLLECTIVES, ROOT, Case
from ..core.data import Values
from ..core.device import DevicePart
from ..core.peers import OURS, Contestant, mirrored
from .plan import PREPARED

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator


def our_contestant(
    comm: Communicator, case: Case, algorithm: str, memory: str, wire: str, device: int | None = None
) -> Contestant:
    """Make one variant of ours, with fresh buffers in memory of the host or of a CUDA device. Collective."""
    largest = replace(case, rank=ROOT)  # all ranks allocate the same node memory

    def allocate(count: int, count_on_root: int) -> TensorLike:
        if device is not None:
            shared = memory == "pool"
            array = comm.empty(count_on_root, case.dtype, device=device) if shared else empty(count, case.dtype, device)
            return array if array.size == count else DevicePart(array, count)
        return (comm.empty(count_on_root, case.dtype) if memory == "pool" else np.empty(count, case.dtype))[:count]

    source = allocate(case.input_count, largest.input_count) if case.count else np.empty(0, case.dtype)
    in_place = COLLECTIVES[case.collective].in_place
    result = source if in_place else allocate(case.result_count, largest.result_count)
    call = _our_call(comm, case, algorithm, wire, source, result)
    if device is None:
        return Contestant(OURS, algorithm, memory, wire, source, result, call)
    mirror = mirrored(case, source, result)
    return Contestant(OURS, algorithm, memory, wire, mirror.source_image, mirror.result_image, call, mirror)


def _our_call(
    comm: Communicator, case: Case, algorithm: str, wire: str, source: object, result: object
) -> Callable[[], object]:
    """Bind our collective to its arrays."""
    rounding = {"wire": wire} if wire != case.dtype else {}
    calls: dict[str, Callable[[], object]] = {
        "allreduce": partial(comm.allreduce, source, case.op, algorithm, **rounding),
        "broadcast": partial(comm.broadcast, source, ROOT, algorithm),
        "reduce": partial(comm.reduce, source, ROOT, case.op, algorithm),
        "allgather": partial(comm.allgather, source, algorithm, result),
        "reduce-scatter": partial(comm.reduce_scatter, source, case.op, algorithm, result),
        "alltoall": partial(comm.alltoall, source, algorithm, result),
        "gather": partial(comm.gather, source, ROOT, algorithm, result),
        "scatter": partial(comm.scatter, source, ROOT, algorithm, result),
        "barrier": comm.barrier,
    }
    return calls[case.collective]


class PreparedPeer:
    """Our prepared calls, on ordinary memory, as a peer of our ordinary calls."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def contestant(self, case: Case, source: Values | None = None) -> Contestant:
        """Prepare a call, on a given source or a new one."""
        source = np.empty(case.input_count, case.dtype) if source is None else source
        result = source if COLLECTIVES[case.collective].in_place else np.empty(case.result_count, case.dtype)
        ordinary = _our_call(self._comm, case, "auto", case.dtype, source, result)
        arguments = ordinary.args if isinstance(ordinary, partial) else ()
        method = ordinary.func if isinstance(ordinary, partial) else ordinary
        request = getattr(self._comm, f"{method.__name__}_init")(*arguments)
        start, wait = request.start, request.wait

        def call() -> None:
            start()
            wait()

        return Contestant(PREPARED, "auto", "array", case.dtype, source, result, call)

    def close(self) -> None:
        """Do nothing: there are no resources."""
