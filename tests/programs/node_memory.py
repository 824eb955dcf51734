"""Large node memory: a signal in the middle, and more than there is."""

from __future__ import annotations

import signal
import sys
from typing import Any

import numpy as np
from support import RANK, raises, say

import gradientflow as gf
from gradientflow.errors import ArgumentError, ClosedError, NodeMemoryError, PeerError

GIB = 1 << 30


class StoppedError(Exception):
    """What the signal's handler raises."""


def interrupt() -> None:
    """One rank gives up; the other one, at it as well or done, hears of it."""
    comm = gf.init(config=gf.Config(timeout=30))

    def stop(*_: Any) -> None:
        raise StoppedError

    comm.barrier()
    if RANK == 0:
        with raises(PeerError, "rank 1 has given up after an error", "a signal's handler ended a call"):
            comm.empty(2 * GIB, "uint8")
        return
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    with raises(StoppedError):
        comm.empty(2 * GIB, "uint8")
    with raises(ClosedError, "a signal's handler ended a call"):
        comm.barrier()


def calls() -> None:
    """A handler that calls the communicator, and closes it, does not wait for the call that it has interrupted."""
    comm = gf.init(config=gf.Config(timeout=30))

    def stop(*_: Any) -> None:
        with raises(ArgumentError, "a signal's handler can make no call"):
            comm.barrier()
        with raises(ArgumentError, "a signal's handler can make no call"):
            comm.allreduce_async(np.ones(3))
        comm.close()

    comm.barrier()
    if RANK == 0:
        with raises(PeerError, "rank 1 has given up after an error", "was closed during"):
            comm.empty(2 * GIB, "uint8")
        return
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    with raises(ClosedError, "was closed during"):
        comm.empty(2 * GIB, "uint8")
    comm.close()
    assert comm.closed


def too_much() -> None:
    """The error comes on all ranks before anything is taken, and the communicator goes on."""
    comm = gf.init()
    with raises(NodeMemoryError, "on rank 0"):
        comm.empty(1 << 40, "uint8")
    memory = comm.empty(64 << 20, "uint8")
    assert not memory.any()
    memory[:] = RANK
    comm.barrier()
    assert (comm.allreduce(np.ones(3)) == comm.size).all()


{"interrupt": interrupt, "calls": calls, "too_much": too_much}[sys.argv[1]]()
say("as it should", RANK)
