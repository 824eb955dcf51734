"""Objects that a rank gives to others, such as weights and the state of an optimizer.

NumPy arrays in them are sent from where they lie, and arrive where they stay: they are not copied.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from gradientflow.communicator import Communicator

Bytes = npt.NDArray[np.uint8]


def parts_of(value: Any) -> list[Bytes]:
    """Return the parts of an object, which can be pickled: a frame, and behind it the memory of its arrays."""
    arrays: list[pickle.PickleBuffer] = []
    frame = pickle.dumps(value, protocol=5, buffer_callback=arrays.append)
    found = [np.frombuffer(memory, np.uint8) for memory in (memoryview(frame), *(each.raw() for each in arrays))]
    return [each if each.flags.writeable else each.copy() for each in found]


def hand_over(comm: Communicator, value: Any) -> Any:
    """Return the object of rank 0. Collective."""
    parts = parts_of(value) if comm.rank == 0 else []
    count = int(comm.broadcast(np.array([len(parts)]))[0])
    sizes = comm.broadcast(np.array([each.size for each in parts] or [0] * count))
    if comm.rank > 0:
        parts = _room(sizes)
    for each in parts:
        comm.broadcast(each)
    return value if comm.rank == 0 else _whole(parts)


@contextmanager
def handing_over(comm: Communicator, value: Any) -> Iterator[Future[Any]]:
    """Hand the object of rank 0 over during a ``with`` block, after which it is there; then close the communicator."""
    with comm, ThreadPoolExecutor(1) as executor:
        future = executor.submit(hand_over, comm, value)
        try:
            yield future
            future.result()
        except BaseException:
            comm._end(False)  # ends the call
            raise


def send(comm: Communicator, parts: Sequence[Bytes], dest: int) -> None:
    """Send the parts of an object to a rank, which calls `receive`."""
    comm.send(np.array([len(parts)]), dest)
    comm.send(np.array([each.size for each in parts]), dest)
    for each in parts:
        comm.send(each, dest)


def receive(comm: Communicator, source: int) -> Any:
    """Return the object that a rank sends."""
    count = int(comm.recv(np.zeros(1, np.int64), source)[0])
    parts = _room(comm.recv(np.zeros(count, np.int64), source))
    for each in parts:
        comm.recv(each, source)
    return _whole(parts)


def _room(sizes: npt.NDArray[np.int64]) -> list[Bytes]:
    return [np.empty(size, np.uint8) for size in sizes.tolist()]


def _whole(parts: list[Any]) -> Any:
    return pickle.loads(parts[0], buffers=parts[1:])


__all__ = ["hand_over", "handing_over", "parts_of", "receive", "send"]
