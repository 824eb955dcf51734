"""Ranks that call differently: every rank gets an error that names the ranks and both calls, and can go on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
from support import RANK, SIZE, WORLD, raises, run_checks

import gradientflow as gf
from gradientflow.errors import MismatchError

Call = Callable[[gf.Communicator], Any]

ODD_ONE = SIZE - 1
OTHERS = [rank for rank in range(SIZE) if rank != ODD_ONE]
OTHERS_NAMED = ("rank " if len(OTHERS) == 1 else "ranks ") + ", ".join(map(str, OTHERS))


def x(count: int = 100, dtype: str = "float32") -> np.ndarray:
    return np.ones(count, dtype)


def still_works(comm: gf.Communicator) -> None:
    for count in (3, 5000, 200_000):
        assert (comm.allreduce(np.full(count, RANK + 1, np.int64)) == SIZE * (SIZE + 1) // 2).all()


def differ(comm: gf.Communicator, usual: Call, usual_text: str, odd: Call, odd_text: str) -> None:
    """The last rank makes another call than the others."""
    wanted = ["the ranks made different calls", f"{OTHERS_NAMED}: {usual_text}", f"rank {ODD_ONE}: {odd_text}"]
    with raises(MismatchError, *wanted):
        (odd if RANK == ODD_ONE else usual)(comm)
    still_works(comm)


def check_counts(comm: gf.Communicator) -> None:
    # Within the announcements, beyond them, and one of each.
    for usual, odd in ((10, 11), (0, 1), (50_000, 50_001), (10, 50_000), (50_000, 10), (4_000_000, 1)):
        differ(
            comm,
            lambda c, n=usual: c.allreduce(x(n)),
            f"allreduce of {usual} float32, op sum",
            lambda c, n=odd: c.allreduce(x(n)),
            f"allreduce of {odd} float32, op sum",
        )
    differ(
        comm,
        lambda c: c.allgather(x(5)),
        "allgather of 5 float32",
        lambda c: c.allgather(x(6)),
        "allgather of 6 float32",
    )


def check_dtypes(comm: gf.Communicator) -> None:
    for count in (10, 50_000):
        differ(
            comm,
            lambda c, n=count: c.allreduce(x(n)),
            f"allreduce of {count} float32",
            lambda c, n=count: c.allreduce(x(n, "int32")),
            f"allreduce of {count} int32",
        )
    differ(
        comm,
        lambda c: c.broadcast(x(8, "uint8")),
        "broadcast of 8 uint8, root 0",
        lambda c: c.broadcast(x(8, "bool")),
        "broadcast of 8 bool, root 0",
    )


def differ_in(comm: gf.Communicator, usual: Call, odd: Call, *fragments: str) -> None:
    with raises(MismatchError, "the ranks made different calls", f"rank {ODD_ONE}:", f"{OTHERS_NAMED}:", *fragments):
        (odd if RANK == ODD_ONE else usual)(comm)
    still_works(comm)


def check_ops(comm: gf.Communicator) -> None:
    for count in (10, 50_000):
        usual, odd = (lambda c, n=count: c.allreduce(x(n), "mean")), (lambda c, n=count: c.allreduce(x(n), "max"))
        differ_in(comm, usual, odd, f"allreduce of {count} float32, op mean", f"allreduce of {count} float32, op max")
    differ_in(comm, lambda c: c.reduce_scatter(x()), lambda c: c.reduce_scatter(x(), "min"), "op sum", "op min")


def check_roots(comm: gf.Communicator) -> None:
    for count in (10, 50_000):
        usual, odd = (lambda c, n=count: c.broadcast(x(n), 0)), (lambda c, n=count: c.broadcast(x(n), 1))
        differ_in(comm, usual, odd, "root 0", "root 1")
    differ_in(comm, lambda c: c.reduce(x(), 1), lambda c: c.reduce(x(), 0), "root 0", "root 1")


def check_kinds(comm: gf.Communicator) -> None:
    calls: dict[str, Call] = {
        "barrier": lambda c: c.barrier(),
        "allreduce of": lambda c: c.allreduce(x()),
        "broadcast of": lambda c: c.broadcast(x()),
        "reduce of": lambda c: c.reduce(x()),
        "allgather of": lambda c: c.allgather(x()),
        "reduce_scatter of": lambda c: c.reduce_scatter(x()),
    }
    names = list(calls)
    for number, name in enumerate(names):
        other = names[(number + 1) % len(names)]
        differ_in(comm, calls[name], calls[other], name, other)
    if comm.nodes == 1:
        differ_in(comm, lambda c: c.empty(10), lambda c: c.empty(11), "allocate of 40 bytes", "allocate of 44 bytes")
        differ_in(comm, lambda c: c.empty(10), lambda c: c.barrier(), "allocate of 40 bytes", "barrier")
        differ_in(comm, lambda c: gf.GradientPool(c, [3, 4]), lambda c: gf.GradientPool(c, [3, 40]), "allocate")


def check_order(comm: gf.Communicator) -> None:
    """Two calls in another order: both fail on all ranks, and then all are together again."""
    first, second = np.full(10, 1.0), np.full(20, 1.0)
    if RANK == ODD_ONE:
        first, second = second, first
    for each in (first, second):
        with raises(MismatchError, "allreduce of 10 float64", "allreduce of 20 float64"):
            comm.allreduce(each)
    handles = [comm.allreduce_async(first), comm.allreduce_async(second), comm.allreduce_async(x())]
    for handle in handles[:2]:
        with raises(MismatchError, "allreduce of 10 float64", "allreduce of 20 float64"):
            handle.wait()
    assert (handles[2].wait() == SIZE).all()
    assert (first == 1).all()
    assert (second == 1).all()
    still_works(comm)


def check_algorithms(comm: gf.Communicator) -> None:
    for count in (10, 50_000):
        mpi = lambda c, n=count: c.allreduce(x(n), algorithm="mpi")  # noqa: E731
        differ_in(
            comm, lambda c, n=count: c.allreduce(x(n)), mpi, "algorithm mpi", f"allreduce of {count} float32, op sum"
        )
        if comm.nodes == 1:
            shared = lambda c, n=count: c.allreduce(x(n), algorithm="shared")  # noqa: E731
            differ_in(comm, mpi, shared, "algorithm mpi", "algorithm shared")


def check_all_differ(comm: gf.Communicator) -> None:
    with raises(MismatchError, *(f"rank {rank}: allreduce of {rank + 1} float32" for rank in range(SIZE))):
        comm.allreduce(x(RANK + 1))
    still_works(comm)


def check_tensors_are_untouched(comm: gf.Communicator) -> None:
    for count in (10, 50_000):
        for memory in (np.empty(count), comm.empty(count, "float64")):
            memory[:] = RANK
            with contextlib.suppress(MismatchError):
                comm.allreduce(memory, "max" if RANK == 0 else "min")
                raise AssertionError
            assert (memory == RANK).all()
    still_works(comm)


def check_settings(_: gf.Communicator) -> None:
    """Settings on which the ranks must agree are compared before a communicator is made."""
    different = {
        "node_size": (0, 1),
        "direct_read": (True, False),
        "inline_bytes": (128, 256),
        "staging_bytes": (4096, 8192),
        "direct_read_bytes": (1, 2),
        "streaming_bytes": ("1MiB", "2MiB"),
    }
    for name, values in different.items():
        with raises(MismatchError, f"setting {name} differs between ranks", "rank 0", f"rank {ODD_ONE}"):
            gf.init(config=gf.Config(**{name: values[RANK == ODD_ONE]}))
    # These each rank may choose for itself.
    own = {"timeout": 100 + RANK, "spin": 10 * RANK, "yields": RANK}
    with gf.init(config=gf.Config(**own)) as comm:
        still_works(comm)
    # And the MPI communicator is still good.
    assert WORLD.allreduce(1) == SIZE


run_checks(
    [
        check_counts,
        check_dtypes,
        check_ops,
        check_roots,
        check_kinds,
        check_order,
        check_algorithms,
        check_all_differ,
        check_tensors_are_untouched,
    ],
    [{}, {"inline_bytes": 0, "staging_bytes": 4096}, {"node_size": 1}, {"node_size": 2}],
)
run_checks([check_settings])
