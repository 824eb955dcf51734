"""NCCL fails, stops or loses a rank; every rank must be told soon, its streams go on, and its process end."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from support import RANK, SIZE, WORLD, run, say, scaled

import gradientflow as gf
from gradientflow.device import DeviceArray, asarray
from gradientflow.errors import ClosedError, CommunicationError, CommunicationTimeoutError, PeerError, SystemCallError

FAULTY = 1
SOON = scaled(6.0)  # seconds within which everybody must know; a timeout is 2
NCCL = {"algorithm": "nccl"}


def mine() -> DeviceArray:
    return asarray(np.full(5000, RANK + 1, np.float32), RANK)


@contextmanager
def told(*kinds: type[Exception]) -> Iterator[None]:
    """Expect one of these errors, soon; say what it says."""
    start = time.monotonic()
    try:
        yield
    except kinds as error:
        assert time.monotonic() - start < SOON, f"it took {time.monotonic() - start:.1f} s"
        say("told", RANK, type(error).__name__, str(error).replace("\n", " "))
    else:
        raise AssertionError("nothing was raised")


def call_until_told(comm: gf.Communicator, *kinds: type[Exception], hierarchical: bool = False) -> None:
    """Wait for the device after every call, so that it is a stream that hangs, and not the host."""
    x = mine()
    with told(*kinds):
        for _ in range(20):
            comm.allreduce(x, algorithm="hierarchical" if hierarchical else "nccl")
            x.get()
    try:
        comm.allreduce(x)
    except (CommunicationError, ClosedError):
        say("survived", RANK)


def kill(comm: gf.Communicator) -> None:
    x = mine()
    comm.allreduce(x, **NCCL)
    x.get()
    if RANK == FAULTY:
        os.kill(os.getpid(), signal.SIGKILL)
    call_until_told(comm, PeerError)


def leave(comm: gf.Communicator) -> None:
    """One rank closes while the others still wait for it on their devices."""
    x = mine()
    comm.allreduce(x, **NCCL)
    if RANK == FAULTY:
        comm.close()
        say("survived", RANK)
    else:
        call_until_told(comm, PeerError)


def main() -> None:
    mode = sys.argv[1]
    fault = "init" if mode == "init" else f"{mode}:3" if mode in ("error", "late", "silence", "launch") else None
    hierarchical = "hierarchical" in sys.argv
    if fault is not None and RANK == FAULTY:
        os.environ["NCCL_EMULATOR_FAULT"] = fault
    comm = gf.init()
    if mode == "kill":
        kill(comm)
    elif mode == "leave":
        leave(comm)
    elif mode == "init":
        with told(CommunicationTimeoutError):
            comm.allreduce(mine(), **NCCL)
        say("survived", RANK)
    elif mode in ("error", "late"):
        call_until_told(comm, SystemCallError, PeerError, hierarchical=hierarchical)
    else:
        call_until_told(comm, CommunicationTimeoutError, PeerError, hierarchical=hierarchical)
    start = time.monotonic()
    comm.close()
    assert time.monotonic() - start < SOON
    if mode != "kill":
        assert WORLD.allreduce(1) == SIZE


if __name__ == "__main__":
    run(main)
