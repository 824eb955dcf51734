"""Exchange of plain values between the ranks of a bench, over the communicator."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from gradientflow.plain import dump, load

from .case import ROOT

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator

V = TypeVar("V")

_IDLE_SECONDS = 0.02


def from_all(comm: Communicator, value: V) -> list[V]:
    """Give the values of all ranks, by rank. Collective."""
    own = np.frombuffer(dump(value), np.uint8)
    lengths: list[int] = np.ravel(comm.allgather(np.array([len(own)]))).tolist()
    data = comm.allgatherv(own.copy(), lengths).tobytes()
    ends = np.cumsum(lengths).tolist()
    return [load(data[end - length : end]) for end, length in zip(ends, lengths, strict=True)]


def from_root(comm: Communicator, value: V) -> V:
    """Give the value of rank 0. Collective."""
    return from_all(comm, value if comm.rank == ROOT else None)[ROOT]  # type: ignore[return-value]


def wait_idly(comm: Communicator) -> None:
    """Wait for all ranks without taking processor time from them. Collective."""
    handle = comm.allreduce_async(np.zeros(1))
    while not handle.done:
        time.sleep(_IDLE_SECONDS)
    handle.wait()
