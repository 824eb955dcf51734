"""Transfer of plain values between ranks, such as weights and the state of an optimizer.

Large arrays are not copied: they are sent from their memory, and received in their final memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from gradientflow.communicator import Communicator
from gradientflow.plain import Bytes, Plain, pack, unpack


def hand_over(comm: Communicator, value: object) -> Plain:
    """Return the value of rank 0. Collective."""
    return hand_over_parts(comm, pack(value, "the state") if comm.rank == 0 else [], value)


def hand_over_parts(comm: Communicator, parts: list[Bytes], value: object, root: int = 0) -> Plain:
    """Return the value of rank `root`, whose `parts` are the value in packed form. Collective."""
    count = int(comm.broadcast(np.array([len(parts)]), root)[0])
    sizes = comm.broadcast(np.array([each.size for each in parts] or [0] * count), root)
    if comm.rank != root:
        parts = _room(sizes)
    for each in parts:
        comm.broadcast(each, root)
    return value if comm.rank == root else unpack(parts)


@contextmanager
def handing_over(comm: Communicator, value: object) -> Iterator[Future[Plain]]:
    """Transfer the value of rank 0 during a ``with`` block, which ends once the value is there; then close `comm`."""
    with comm, ThreadPoolExecutor(1) as executor:
        future = executor.submit(hand_over, comm, value)
        try:
            yield future
            future.result()
        except BaseException:
            comm._end(False)  # ends the call
            raise


def send(comm: Communicator, parts: Sequence[Bytes], dest: int) -> None:
    """Send the parts of a value to a rank, which calls `receive`."""
    comm.send(np.array([len(parts)]), dest)
    comm.send(np.array([each.size for each in parts]), dest)
    for each in parts:
        comm.send(each, dest)


def receive(comm: Communicator, source: int) -> Plain:
    """Return the value that a rank sends."""
    count = int(comm.recv(np.zeros(1, np.int64), source)[0])
    parts = _room(comm.recv(np.zeros(count, np.int64), source))
    for each in parts:
        comm.recv(each, source)
    return unpack(parts)


def _room(sizes: npt.NDArray[np.int64]) -> list[Bytes]:
    return [np.empty(size, np.uint8) for size in sizes.tolist()]


__all__ = ["hand_over", "hand_over_parts", "handing_over", "receive", "send"]
