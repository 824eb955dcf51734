"""A process that has met others, however that came about: it adds up with them, and says what it knows.

    met.py [WAY ...]

Ways: ``init`` makes a communicator by `gradientflow.init`, ``group`` a process group, in the order in which they are
given; ``again`` does all once more.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


@contextmanager
def raises_argument_error(words: str) -> Iterator[None]:
    from gradientflow.errors import ArgumentError

    said = ""
    try:
        yield
    except ArgumentError as error:
        said = str(error)
    assert words in said


def by_init() -> tuple[int, int]:
    import gradientflow as gf

    with gf.init() as comm:
        x = np.full(100_000, comm.rank + 1, np.float32)
        comm.allreduce(x)
        assert (x == comm.size * (comm.size + 1) / 2).all()
        assert comm.describe()["transport"] == "tcp"
        with raises_argument_error("MPI has no communicator of these ranks"):
            print(comm.mpi)
        return comm.rank, comm.size


def by_group() -> tuple[int, int]:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gradientflow")
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.full((1000,), float(rank + 1))
    dist.all_reduce(x)
    assert (x == size * (size + 1) / 2).all()
    members = list(range(size))[::-1][: max(1, size - 1)]  # torch sorts them
    part = dist.new_group(members, backend="gradientflow")
    if rank in members:
        x = torch.full((7,), float(rank))
        dist.all_reduce(x, group=part)
        assert (x == sum(members)).all()
    work = dist.isend(torch.tensor([rank]), (rank + 1) % size) if size > 1 else None
    if work is not None:
        got = torch.zeros(1, dtype=torch.int64)
        dist.recv(got, (rank - 1) % size)
        assert got.item() == (rank - 1) % size
        work.wait()
    dist.destroy_process_group()
    return rank, size


WAYS = {"init": by_init, "group": by_group}


def main() -> None:
    names = sys.argv[1:] or ["init"]
    if names[-1] == "again":
        names = names[:-1] * 2
    places = {WAYS[name]() for name in names}
    assert len(places) == 1, places
    assert "mpi4py.MPI" not in sys.modules
    (rank, size), restart = places.pop(), os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    found: dict[str, Any] = {"rank": rank, "size": size, "restart": restart}
    os.write(1, (json.dumps(found) + "\n").encode())  # at once, so that the lines of the ranks stay whole


if __name__ == "__main__":
    main()
