"""Ranks that call differently: every rank gets an error that names the ranks and both calls, and can go on."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from marks import on_ranks
from support import RANK, SIZE, WORLD, raises, run_checks, still_works

import gradientflow as gf
from gradientflow.errors import ArgumentTypeError, MismatchError

Call = Callable[[gf.Communicator], Any]

ODD_ONE = int(sys.argv[1])
OTHERS = [rank for rank in range(SIZE) if rank != ODD_ONE]
OTHERS_NAMED = ("rank " if len(OTHERS) == 1 else "ranks ") + ", ".join(map(str, OTHERS))


def x(count: int = 100, dtype: str = "float32") -> np.ndarray:
    return np.ones(count, dtype)


def differ(comm: gf.Communicator, usual: Call, usual_text: str, odd: Call, odd_text: str) -> None:
    """One rank makes another call than the others."""
    wanted = ["the ranks made different calls", f"{OTHERS_NAMED}: {usual_text}", f"rank {ODD_ONE}: {odd_text}"]
    with raises(MismatchError, *wanted):
        (odd if RANK == ODD_ONE else usual)(comm)
    still_works(comm)


@on_ranks(2, 3)
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
    for count in (1, 20_000):  # a block
        calls = [lambda c, n=n: c.alltoall(x(n * SIZE)) for n in (count, count + 1)]
        differ(comm, calls[0], f"alltoall of {count} float32", calls[1], f"alltoall of {count + 1} float32")
        calls = [lambda c, n=n: c.gather(x(n), SIZE - 1) for n in (count, count + 1)]
        differ(comm, calls[0], f"gather of {count} float32", calls[1], f"gather of {count + 1} float32")
        calls = [lambda c, n=n: c.scatter(x(n * SIZE), out=x(n)) for n in (count, count + 1)]
        differ(comm, calls[0], f"scatter of {count} float32", calls[1], f"scatter of {count + 1} float32")
        calls = [lambda c, n=n: c.reduce_scatter(x(n)) for n in (count, count + 1)]
        differ(comm, calls[0], f"reduce_scatter of {count} float32", calls[1], f"reduce_scatter of {count + 1} float32")


def check_uneven_counts(comm: gf.Communicator) -> None:
    """Of an allgatherv all ranks must say the same numbers, also where the sums are equal."""
    for count in (3, 20_000):
        same = [count] * SIZE
        for counts in ([count + 1, *same[1:]], [count + 1, count - 1, *same[2:]]):
            own = counts if RANK == ODD_ONE else same
            with raises(MismatchError, "the ranks made different calls", f"rank {ODD_ONE}: allgatherv of"):
                comm.allgatherv(x(own[RANK]), own)
            still_works(comm)


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
    with raises(MismatchError, "the ranks made different", f"rank {ODD_ONE}:", f"{OTHERS_NAMED}:", *fragments):
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
    differ_in(comm, lambda c: c.gather(x(), 1), lambda c: c.gather(x(), 0), "root 0", "root 1")
    scatter = [lambda c, r=root: c.scatter(x(SIZE), r, out=x(1)) for root in (0, 1)]
    differ_in(comm, scatter[0], scatter[1], "root 0", "root 1")


def check_wires(comm: gf.Communicator) -> None:
    for count in (10, 50_000):
        as_they_are, as_float16, as_bfloat16 = (
            lambda c, n=count, w=wire: c.allreduce(x(n), wire=w) for wire in (None, "float16", "bfloat16")
        )
        differ_in(comm, as_they_are, as_float16, f"{count} float32, op sum", "op sum, wire float16")
        differ_in(comm, as_bfloat16, as_float16, "wire bfloat16", "wire float16")


@on_ranks(2, 3)
def check_kinds(comm: gf.Communicator) -> None:
    calls: dict[str, Call] = {
        "barrier": lambda c: c.barrier(),
        "allreduce of": lambda c: c.allreduce(x()),
        "broadcast of": lambda c: c.broadcast(x()),
        "reduce of": lambda c: c.reduce(x()),
        "allgather of": lambda c: c.allgather(x()),
        "reduce_scatter of": lambda c: c.reduce_scatter(x()),
        "alltoall of": lambda c: c.alltoall(x(SIZE)),
        "gather of": lambda c: c.gather(x()),
        "scatter of": lambda c: c.scatter(x(SIZE), out=x(1)),
        "allgatherv of": lambda c: c.allgatherv(x(3), [3] * SIZE),
        "split": lambda c: c.split(0),
        "making a gradient pool": lambda c: gf.GradientPool(c, [3]),
        "making a top-k gradient pool": lambda c: gf.TopKGradientPool(c, [3], ratios=2),
        "making a parameter server": lambda c: gf.ParameterServer(c, x()[None]),
    }
    names = list(calls)
    for number, name in enumerate(names):
        other = names[(number + 1) % len(names)]
        differ_in(comm, calls[name], calls[other], name, other)
    differ_in(comm, lambda c: c.empty(10), lambda c: c.empty(11), "allocate of 40 bytes", "allocate of 44 bytes")
    differ_in(comm, lambda c: c.empty(10), lambda c: c.barrier(), "allocate of 40 bytes", "barrier")
    differ_in(comm, lambda c: gf.GradientPool(c, [3, 4]), lambda c: gf.GradientPool(c, [3, 40]), "gradient pools")


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
        names = ["ring", "recursive_doubling", "hierarchical", "hierarchical_lanes", "mpi"]
        for name, other in itertools.pairwise(names):
            calls = [lambda c, n=count, a=each: c.allreduce(x(n), algorithm=a) for each in (name, other)]
            differ_in(comm, calls[0], calls[1], f"algorithm {name}", f"algorithm {other}")


@on_ranks(2, 3)
def check_labels(comm: gf.Communicator) -> None:
    """Calls that are alike but for the label or the shape: those of tensors that were swapped."""
    for count, store in itertools.product((12, 60_000), (np.ones, comm.empty)):
        calls: dict[str, Callable[[str | None], Any]] = {
            "allreduce": lambda name, n=count, s=store: comm.allreduce(s(n, "float32"), label=name),
            "broadcast": lambda name, n=count, s=store: comm.broadcast(s(n, "float32"), 1, label=name),
            "reduce": lambda name, n=count, s=store: comm.reduce(s(n, "float32"), label=name),
            "allgather": lambda name, n=count, s=store: comm.allgather(s(n, "float32"), label=name),
            "reduce_scatter": lambda name, n=count, s=store: comm.reduce_scatter(s(n, "float32"), label=name),
            "gather": lambda name, n=count, s=store: comm.gather(s(n, "float32"), 1, label=name),
        }
        for kind, call in calls.items():
            call("fc1.weight")  # of all ranks
            name = "fc2.weight" if RANK == ODD_ONE else "fc1.weight"
            texts = [f"{kind} of '{each}' ({count},), {count} float32" for each in ("fc1.weight", "fc2.weight")]
            with raises(MismatchError, f"{OTHERS_NAMED}: {texts[0]}", f"rank {ODD_ONE}: {texts[1]}"):
                call(name)
            with raises(MismatchError, f"{OTHERS_NAMED}: {texts[0]}", f"rank {ODD_ONE}: {kind} of {count} float32"):
                call(None if RANK == ODD_ONE else "fc1.weight")
            still_works(comm)
        shape = (count // 4, 4) if RANK == ODD_ONE else (4, count // 4)
        for label in ("x", "é" * 300):  # of which the end is a hash
            with raises(MismatchError, f"rank {ODD_ONE}: allreduce of '{label[:80]}", f"{count} float32, op sum"):
                comm.allreduce(x(count).reshape(shape), label=label)
        comm.allreduce(x(count).reshape(shape))  # without a label the shape is the rank's own
        with raises(MismatchError, f"{OTHERS_NAMED}: allreduce of 'x' (4, {count // 4}), {count} float32, op sum"):
            comm.allreduce_async(x(count).reshape(shape), label="x").wait()
    own = f"of rank {RANK}"
    with raises(MismatchError, f"rank {ODD_ONE}: alltoall of 'of rank {ODD_ONE}' ({SIZE},), 1 float32"):
        comm.alltoall(x(SIZE), label=own)
    with raises(MismatchError, f"rank {ODD_ONE}: scatter of 'of rank {ODD_ONE}', 1 float32"):
        comm.scatter(x(SIZE), out=x(1), label=own)
    counts = list(range(SIZE))
    with raises(MismatchError, f"rank {ODD_ONE}: allgatherv of 'of rank {ODD_ONE}', counts {str(counts)[1:-1]}, "):
        comm.allgatherv(x(RANK), counts, label=own)
    comm.allgatherv(x(RANK), counts, label="of all")
    comm.scatter(x(SIZE), out=x(1), label="of all")
    with raises(MismatchError, f"{OTHERS_NAMED}: allocate of 8 bytes", f"rank {ODD_ONE}: allreduce of 'x' (3,)"):
        comm.allreduce(x(3), label="x") if RANK == ODD_ONE else comm.empty(2)
    still_works(comm)


def check_labeled_protocols(comm: gf.Communicator) -> None:
    """The shape is that of the memory, whatever shows it, and whatever else the object has."""

    class Capsules:
        shape = "unknown"

        def __init__(self, array: np.ndarray) -> None:
            self._array = array

        def __dlpack__(self, **arguments: Any) -> Any:
            return self._array.__dlpack__(**arguments)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self._array.__dlpack_device__()

    array = np.full((2, 3), 1.0)
    for other in (Capsules(array), memoryview(array)):
        comm.allreduce(other if RANK == ODD_ONE else array, op="max", label="x")
        with raises(MismatchError, f"rank {ODD_ONE}: allreduce of 'x' (2, 3), 6 float64"):
            comm.allreduce(other if RANK == ODD_ONE else array.reshape(3, 2), op="max", label="x")


def check_swapped(comm: gf.Communicator) -> None:
    """Two tensors of equal size, exchanged by one rank: an error, instead of a sum of one and the other."""
    names = ["fc1.weight", "fc2.weight"]
    tensors = {name: np.full((3, 4), float(index)) for index, name in enumerate(names)}
    order = names[::-1] if RANK == ODD_ONE else names
    for usual, odd, name in zip(names, names[::-1], order, strict=True):
        wanted = (f"{OTHERS_NAMED}: allreduce of '{usual}' (3, 4)", f"rank {ODD_ONE}: allreduce of '{odd}' (3, 4)")
        with raises(MismatchError, *wanted):
            comm.allreduce(tensors[name], label=name)
    assert [each.mean() for each in tensors.values()] == [0, 1]
    for label in (1, b"x"):
        with raises(ArgumentTypeError, "label is text, or None, not"):
            comm.allreduce(x(), label=label)


@on_ranks(2, 3)
def check_all_differ(comm: gf.Communicator) -> None:
    with raises(MismatchError, *(f"rank {rank}: allreduce of {rank + 1} float32" for rank in range(SIZE))):
        comm.allreduce(x(RANK + 1))
    still_works(comm)


def check_tensors_are_untouched(comm: gf.Communicator) -> None:
    for count in (10, 50_000):
        for memory in (np.empty(count), comm.empty(count, "float64")):
            for algorithm in ("auto", "ring", "recursive_doubling", "hierarchical", "hierarchical_lanes"):
                out = np.full(count * SIZE, -1.0)
                memory[:] = RANK
                with raises(MismatchError):
                    comm.allreduce(memory, "max" if RANK == 0 else "min", algorithm)
                with raises(MismatchError):
                    comm.allreduce(memory, "max" if RANK == 0 else "min", algorithm, out=out[:count])
                assert (out == -1).all()
                assert (memory == RANK).all()
            with raises(MismatchError):
                comm.allgather(memory, out=out) if RANK == 0 else comm.broadcast(memory)
            with raises(MismatchError):
                comm.gather(memory, RANK % 2, out=out)
            assert (out == -1).all()
            assert (memory == RANK).all()
    still_works(comm)


@on_ranks(2, 3)
def check_settings(_: gf.Communicator) -> None:
    """Settings on which the ranks must agree are compared before a communicator is made."""
    different = {
        "node_size": (0, 1),
        "direct_read": (True, False),
        "inline_bytes": (128, 256),
        "staging_bytes": (4096, 8192),
        "direct_read_bytes": (1, 2),
        "streaming_bytes": ("1MiB", "2MiB"),
        "segment_bytes": (1024, 2048),
        "window": (2, 3),
        "stretch_bytes": (4096, 8192),
        "doubling_bytes": (0, 1),
        "ring_bytes": (1, 0),
    }
    for name, values in different.items():
        with raises(MismatchError, f"setting {name} differs between ranks", "rank 0", f"rank {ODD_ONE}"):
            gf.init(config=gf.Config(**{name: values[RANK == ODD_ONE]}))
    # These each rank may choose for itself.
    own = {"timeout": 100 + RANK, "spin": 10 * RANK, "yields": RANK}
    for node_size in (0, 1):
        with gf.init(config=gf.Config(node_size=node_size, **own)) as comm:
            still_works(comm)
    # And the MPI communicator is still good.
    assert WORLD.allreduce(1) == SIZE


run_checks(
    [
        {},
        {"inline_bytes": 0, "staging_bytes": 4096},
        {"node_size": 1},
        {"node_size": 2},
        {"node_size": 2, "inline_bytes": 0, "segment_bytes": 1024, "window": 2, "stretch_bytes": 4096},
    ],
    once=[check_settings],
    by_mpi=[check_algorithms],
)
