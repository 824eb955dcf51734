"""Objects that a rank gives to others, such as weights and the state of an optimizer."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from gradientflow.communicator import Communicator


def hand_over(comm: Communicator, value: Any) -> Any:
    """Return the object of rank 0, which can be pickled. Collective.

    NumPy arrays in it are sent from where they lie, and arrive where they stay: they are not copied.
    """
    parts: list[Any] = []
    if comm.rank == 0:
        arrays: list[pickle.PickleBuffer] = []
        frame = pickle.dumps(value, protocol=5, buffer_callback=arrays.append)
        found = [np.frombuffer(memory, np.uint8) for memory in (memoryview(frame), *(each.raw() for each in arrays))]
        parts = [each if each.flags.writeable else each.copy() for each in found]
    count = int(comm.broadcast(np.array([len(parts)]))[0])
    sizes = comm.broadcast(np.array([each.size for each in parts] or [0] * count))
    if comm.rank > 0:
        parts = [np.empty(size, np.uint8) for size in sizes.tolist()]
    for each in parts:
        comm.broadcast(each)
    return value if comm.rank == 0 else pickle.loads(parts[0], buffers=parts[1:])


__all__ = ["hand_over"]
