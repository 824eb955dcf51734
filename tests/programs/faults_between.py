"""Ranks that leave, die or never come, with nodes of one or several ranks: all others are told which, in time.

Arguments: how the ranks fail, one way after the other, and which. Every communicator has a call under way when that
happens.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable

from mpi4py import MPI
from support import RANK, SIZE, WORLD, mine, run, say, scaled

import gradientflow as gf
from gradientflow.errors import CommunicationError, CommunicationTimeoutError, PeerError

Call = Callable[[], gf.Handle]

HOW = ""
FAULTY = [int(text) for text in sys.argv[2].split(",")]
TIMEOUT = 1.0  # seconds that a rank waits
ROLL_CALL = 1.0  # and then, for the others to say that they are there
SLACK = scaled(2.0)  # of a machine that does other things, too
LARGE = 300_000  # elements that take many messages
FIRST = FAULTY[0]


def calls(comm: gf.Communicator) -> dict[str, Call]:
    """Return calls of many kinds; each needs the ranks that fail."""
    pool = comm.empty(20_000, "float64")
    return {
        "allreduce of 10 float64, op sum": lambda: comm.allreduce_async(mine()),
        f"allreduce of {LARGE} float64, op max": lambda: comm.allreduce_async(mine(LARGE), "max"),
        "allreduce of 20000 float64, op sum": lambda: comm.allreduce_async(pool),
        "algorithm ring": lambda: comm.allreduce_async(mine(LARGE), algorithm="ring"),
        f"broadcast of {LARGE} float64": lambda: comm.broadcast_async(mine(LARGE), root=FIRST),
        f"reduce of {LARGE} float64": lambda: comm.reduce_async(mine(LARGE), root=(FIRST + 1) % SIZE),
        f"alltoall of {LARGE // SIZE} float64": lambda: comm.alltoall_async(mine(LARGE // SIZE * SIZE)),
        "gather of 10 float64": lambda: comm.gather_async(mine(), root=FIRST),
        "barrier": comm.barrier_async,
    }


def fail(comms: list[gf.Communicator]) -> None:
    if HOW == "close":
        for comm in comms:
            comm.close()
    elif HOW == "raise":
        for comm in comms:
            with contextlib.suppress(KeyError), comm:
                raise KeyError
    elif HOW == "die":
        os.kill(os.getpid(), signal.SIGKILL)


def check_message(comm: gf.Communicator, error: CommunicationError, pids: list[int]) -> None:
    """Those are named that failed, not a neighbor that has waited for them as well."""
    text = str(error)
    node_mates = {rank for node in comm.describe()["nodes"] if set(node) & set(FAULTY) for rank in node} - set(FAULTY)
    if HOW in ("close", "raise"):
        assert isinstance(error, PeerError)
        assert re.search(rf"rank ({'|'.join(map(str, FAULTY))}) has closed its communicator", text), text
    elif HOW == "die" and node_mates:  # they see that the process is gone
        assert isinstance(error, PeerError), text
        assert any(f"rank {rank} (process {pids[rank]}) has died" in text for rank in FAULTY), text
    else:
        assert isinstance(error, CommunicationTimeoutError), text
        assert f"timed out after {TIMEOUT:g} s" in text, text
        named = {int(rank) for rank in re.findall(r"no sign of ranks? ([\d, ]+)", text)[0].split(", ")}
        # A node in which some are missing does not wait for the news from another one.
        assert named == set(FAULTY) if not node_mates or len(FAULTY) == 1 else named <= set(FAULTY), text


def be_told(comms: list[gf.Communicator], prepared: list[tuple[str, Call]], pids: list[int]) -> None:
    start = time.monotonic()
    started = [(name, call()) for name, call in prepared]
    longest = SLACK + (TIMEOUT + ROLL_CALL if HOW in ("die", "never") else 0)
    for comm, (name, handle) in zip(comms, started, strict=True):
        try:
            handle.wait(timeout=60)
        except CommunicationError as error:
            check_message(comm, error, pids)
            assert name in str(error), error  # noqa: PT017
        else:
            raise AssertionError(f"nothing was raised by {name}")
        took = time.monotonic() - start
        assert took < longest, f"{name} took {took:.1f} s"
    for comm in comms:
        start = time.monotonic()
        neighbor = (RANK + 1) % SIZE
        for later in (comm.barrier, lambda c=comm: c.allreduce(mine()), lambda c=comm, r=neighbor: c.send(mine(), r)):
            expect_to_be_broken(later)
        comm.close()
        assert time.monotonic() - start < SLACK


def expect_to_be_broken(call: Callable[[], object]) -> None:
    try:
        call()
    except CommunicationError as error:
        assert "cannot be used any more" in str(error)  # noqa: PT017
    else:
        raise AssertionError("a broken communicator was used")


def come_late(comms: list[gf.Communicator], prepared: list[tuple[str, Call]]) -> None:
    """Who comes when the others have given up is told so, too; a call that lacks nobody else may still end well."""
    for comm, (name, call) in zip(comms, prepared, strict=True):
        start = time.monotonic()
        try:
            call().wait()
            comm.allreduce(mine(LARGE))
        except (PeerError, CommunicationTimeoutError) as error:
            assert "has given up" in str(error), error  # noqa: PT017
        else:
            raise AssertionError(f"a rank that came too late was not told, in or after {name}")
        assert time.monotonic() - start < SLACK


def try_it(others: MPI.Intracomm, pids: list[int]) -> None:
    """Let ranks fail in the way that it is the turn of."""
    faulty = RANK in FAULTY
    with gf.init() as first:
        number = len(calls(first))
    comms = [gf.init(config=gf.Config(timeout=TIMEOUT)) for _ in range(number)]
    prepared = [list(calls(comm).items())[index] for index, comm in enumerate(comms)]  # needs all ranks
    for comm in comms:
        assert (comm.allreduce(mine()) == SIZE * (SIZE + 1) // 2).all()
    survivors = gf.init(others)
    WORLD.Barrier()
    if faulty:
        fail(comms)
    else:
        be_told(comms, prepared, pids)
    if HOW == "never":
        WORLD.Barrier()
        if faulty:
            come_late(comms, prepared)
    # Those who are left go on without the others.
    for count in (10, 20_000):
        assert (survivors.allreduce(mine(count)) == sum(rank + 1 for rank in others.allgather(RANK))).all()


def main() -> None:
    global HOW
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    others = WORLD.Split(int(RANK in FAULTY), RANK)
    pids = WORLD.allgather(os.getpid())
    for how in sys.argv[1].split(","):
        HOW = how
        try_it(others, pids)
    say("survived", RANK)
    if HOW == "die":
        others.Barrier()  # the launcher may end the job when one leaves like this
        os._exit(0)  # ending MPI without one of its ranks may hang


run(main)
