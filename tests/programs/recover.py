"""Ranks that reduce in a loop, and recover when others die; each prints what it has in the end.

The arguments: how many ranks are to be left, min_ranks or 0, and for each rank that kills itself ``rank:seconds``. They
end some calls after no more are left.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import numpy as np

import gradientflow as gf
from gradientflow.errors import PeerError, RecoverableError

left, min_ranks = int(sys.argv[1]), int(sys.argv[2]) or None
comm = gf.init()
own = comm.rank
by_mpi = comm.describe()["transport"] == "mpi"


def leave() -> None:
    """End; over MPI only when the others have heard all, as it may take one that has ended for dead before that."""
    if by_mpi:
        time.sleep(0.5)
    sys.exit(0)


for fate in sys.argv[3:]:
    victim, after = fate.split(":")
    if own == int(victim):
        threading.Timer(float(after), os.kill, (os.getpid(), signal.SIGKILL)).start()
members = list(range(comm.size))
print("ready", os.getpid(), flush=True)
calls = 0
while len(members) > left or calls < 20:
    calls += 1
    try:
        total = comm.allreduce(np.array([1 << own], np.int64))
        assert total[0] == sum(1 << r for r in members), (total, members)
    except RecoverableError:
        old = comm
        try:
            comm = comm.recover(min_ranks)
        except PeerError as error:
            print("error", error, flush=True)
            leave()
        assert old.closed
        assert comm.recovered_from is not None
        assert {r for r, _ in comm.lost} == set(range(old.size)) - set(comm.recovered_from)
        members, calls = [members[r] for r in comm.recovered_from], 0
print("members", *members, flush=True)
leave()
