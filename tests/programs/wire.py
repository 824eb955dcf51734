"""Values that are rounded on their way between nodes: near to NumPy, representable, in range, and counted."""

from __future__ import annotations

import itertools
from typing import Any
from unittest import SkipTest

import numpy as np
from marks import on_ranks
from support import RANK, SIZE, WORLD, Array, narrow, run_checks, same_bits, widen

import gradientflow as gf

WIRES = ["float16", "bfloat16"]
DIGITS = {"float16": 11, "bfloat16": 8}  # of the significand: what rounding may change is 2^-DIGITS of a value
SMALLEST = {"float16": 2.0**-25, "bfloat16": 2.0**-133}  # what rounding a subnormal number may change
ALGORITHMS = ["auto", "ring", "recursive_doubling", "hierarchical", "hierarchical_lanes"]
COUNTS = [0, 1, 1009, 30_011]
SETTINGS: list[dict[str, Any]] = [
    {"node_size": node_size, **more}
    for node_size in (1, 2, 3)
    for more in ({}, {"segment_bytes": 1024, "window": 2, "stretch_bytes": 4096, "doubling_bytes": 0})
    if node_size < SIZE
]


def rounded(values: Array, wire: str) -> Array:
    """Return float32 values as they come out of the wire."""
    with np.errstate(over="ignore"):
        return values.astype(np.float16).astype(np.float32) if wire == "float16" else widen(narrow(values))


def inputs_of(count: int, seed: int) -> list[Array]:
    """Make every rank's input: all orders of magnitude that fit into float16, also small ones."""
    generator = np.random.default_rng([seed, count])
    scales = 2.0 ** generator.integers(-24, 10, count)
    return [(generator.standard_normal(count) * scales).astype(np.float32) for _ in range(SIZE)]


def reduce_over(comm: gf.Communicator, values: Array, op: str, algorithm: str, wire: str | None) -> tuple[Array, Any]:
    """Return the result, and what the handle counted."""
    handle = comm.allreduce_async(values.copy(), op, algorithm, wire=wire)
    return handle.wait(), handle.nonfinite


def in_all_ways(count_only: int | None = None) -> list[tuple[str, str, int]]:
    counts = COUNTS if count_only is None else [count_only]
    return list(itertools.product(WIRES, ALGORITHMS, counts))


# ---- values ----------------------------------------------------------------------------------------------------------


def check_sums_and_means_are_near(comm: gf.Communicator) -> None:
    for wire, algorithm, count in in_all_ways():
        inputs = inputs_of(count, 1)
        exact = np.sum(inputs, axis=0, dtype=np.float64)
        magnitude = np.sum(np.abs(inputs), axis=0, dtype=np.float64)
        for op, divisor in (("sum", 1), ("mean", SIZE)):
            found, nonfinite = reduce_over(comm, inputs[RANK], op, algorithm, wire)
            # Every value is rounded once when it leaves its rank, and every sum when it travels on.
            allowed = (SIZE + 1) * (magnitude / divisor * 2.0 ** -DIGITS[wire] * 1.01 + SMALLEST[wire])
            what = f"{op} of {count} by {algorithm} as {wire}"
            assert (np.abs(found - exact / divisor) <= allowed).all(), f"{what} is not near to NumPy"
            assert same_bits(rounded(found, wire), found), f"{what} is not what another rank can have got"
            assert nonfinite == 0


def check_max_and_min_are_rounded_once(comm: gf.Communicator) -> None:
    """Rounding keeps the order of numbers, so here the algorithm makes no difference."""
    for wire, algorithm, count in in_all_ways():
        inputs = inputs_of(count, 2)
        for op, exact in (("max", np.max(inputs, axis=0)), ("min", np.min(inputs, axis=0))):
            found, nonfinite = reduce_over(comm, inputs[RANK], op, algorithm, wire)
            assert (found == rounded(exact, wire)).all(), f"{op} of {count} by {algorithm} as {wire}"
            assert nonfinite == 0


@on_ranks(2)
def check_two_ranks_to_the_bit(comm: gf.Communicator) -> None:
    """What two ranks do is known in every detail: both round, both add, both round the sum."""
    if SIZE != 2:
        raise SkipTest("for two ranks")
    for wire, algorithm, count in in_all_ways():
        if algorithm == "ring":  # there the owner of an element does not round its own value
            continue
        first, second = inputs_of(count, 3)
        mine = (first, second)[RANK]
        wanted = rounded(rounded(first, wire) + rounded(second, wire), wire)
        found, _ = reduce_over(comm, mine, "sum", algorithm, wire)
        assert (found == wanted).all(), f"sum of {count} by {algorithm} as {wire}"
        half = np.float32(0.5)
        wanted = rounded((rounded(first * half, wire) * 2 + rounded(second * half, wire) * 2) * half, wire)
        found, _ = reduce_over(comm, mine, "mean", algorithm, wire)
        assert (found == wanted).all(), f"mean of {count} by {algorithm} as {wire}"


def check_float8_is_within_its_half_steps(comm: gf.Communicator) -> None:
    """A value is rounded to a 32nd of the largest in its segment, and a sum likewise each time that it travels on."""
    for algorithm, (count, unit) in itertools.product(ALGORITHMS, [*((count, 1) for count in COUNTS), (1009, 2e-42)]):
        inputs = [each * np.float32(unit) for each in inputs_of(count, 8)]
        exact = np.sum(inputs, axis=0, dtype=np.float64)
        allowed = (SIZE + 1) / 2 * (np.max(np.abs(inputs), initial=0) / 32 * 1.001 + 2.0**-136)
        for op, divisor in (("sum", 1), ("mean", SIZE)):
            found, nonfinite = reduce_over(comm, inputs[RANK], op, algorithm, "float8_e4m3")
            what = f"{op} of {count} by {algorithm}"
            assert (np.abs(found - exact / divisor) <= allowed * SIZE / divisor).all(), f"{what} is not near to NumPy"
            assert nonfinite == 0
            assert len(set(WORLD.allgather(found.tobytes()))) == 1, f"{what} differs between ranks"
        for lost in (np.inf, -np.inf, np.nan):
            x = inputs[RANK].copy()
            x[: 1 if RANK == SIZE - 1 else 0] = lost
            found, nonfinite = reduce_over(comm, x, "mean", algorithm, "float8_e4m3")
            assert nonfinite == min(count, 1)
            assert np.isnan(found[:1]).all()


@on_ranks(2, 3)
def check_a_large_value_coarsens_its_own_segment(_: gf.Communicator) -> None:
    inputs = inputs_of(30_011, 9)
    for each in inputs:
        each[0] = 1e6
    exact = np.mean(inputs, axis=0, dtype=np.float64)
    allowed = (SIZE + 1) / 64 * np.max(np.abs(inputs)[:, -3000:]) * 1.001
    with gf.init(config={"node_size": "1", "segment_bytes": "1024", "doubling_bytes": "0"}) as comm:
        for algorithm in ALGORITHMS:
            found, _ = reduce_over(comm, inputs[RANK], "mean", algorithm, "float8_e4m3")
            assert (np.abs(found - exact)[-1000:] <= allowed).all(), algorithm


# ---- range -----------------------------------------------------------------------------------------------------------


def check_a_mean_does_not_overflow(comm: gf.Communicator) -> None:
    """The sum of so many numbers of 60,000 would be beyond float16, and so would a part of it."""
    for _, algorithm, count in in_all_ways(30_011)[: len(ALGORITHMS)]:
        x = np.full(count, 60_000, np.float32)
        found, nonfinite = reduce_over(comm, x, "mean", algorithm, "float16")
        assert nonfinite == 0, algorithm
        assert (np.abs(found - 60_000) <= SIZE * 32).all(), algorithm  # float16 has every 32nd number there
        found, nonfinite = reduce_over(comm, x, "sum", algorithm, "float16")
        assert nonfinite == count, algorithm
        assert np.isposinf(found).all(), algorithm
        found, nonfinite = reduce_over(comm, x, "sum", algorithm, "bfloat16")  # has the range of float32
        assert nonfinite == 0, algorithm
        assert (np.abs(found - SIZE * 60_000) <= SIZE * SIZE * 256).all(), algorithm


# ---- counting --------------------------------------------------------------------------------------------------------


@on_ranks(2, 3)
def check_what_is_lost_is_counted(comm: gf.Communicator) -> None:
    """Infinity and NaN of one rank, and numbers that are too large for float16 only, at a few places."""
    for wire, algorithm, count in in_all_ways():
        x = inputs_of(count, 4)[RANK]
        generator = np.random.default_rng([5, RANK])
        places = generator.integers(0, max(count, 1), 5 * min(count, 1))
        x[places] = generator.choice(np.float32([np.inf, -np.inf, np.nan, 1e6, -3e38]), places.size)
        for op in ("sum", "mean", "max"):
            found, nonfinite = reduce_over(comm, x, op, algorithm, wire)
            assert nonfinite == np.count_nonzero(~np.isfinite(found)), f"{op} of {count} by {algorithm} as {wire}"
            assert WORLD.allgather(nonfinite) == [nonfinite] * SIZE
            assert isinstance(nonfinite, int)
        if wire == "float16" and count > 1000:
            assert nonfinite > 0


def check_counts_of_all_kinds_of_memory(comm: gf.Communicator) -> None:
    """Each goes another way between nodes of several ranks, but rounding keeps the order of numbers on all of them."""
    count = 30_011
    pool, other_pool = comm.empty(count), comm.empty(count)
    x = inputs_of(count, 6)[RANK]
    x[RANK :: 1000 + RANK] = np.inf
    for wire, algorithm, _ in in_all_ways(count):
        wanted, nonfinite = reduce_over(comm, x, "max", algorithm, wire)
        assert nonfinite == np.count_nonzero(np.isinf(wanted)) > 0
        mixed = pool if RANK % 2 else np.empty_like(x)
        for memory, out in ((pool, None), (pool, other_pool), (pool, np.empty_like(x)), (x, pool), (mixed, None)):
            memory[:] = x
            handle = comm.allreduce_async(memory, "max", algorithm, out, wire)
            assert (handle.wait() == wanted).all()
            assert handle.nonfinite == nonfinite
            assert out is None or same_bits(np.asarray(memory), x), "the input was changed, although there is an out"
        assert (comm.allreduce(x.copy(), "max", algorithm, wire=wire) == wanted).all()


def check_nothing_is_known_before_the_end(comm: gf.Communicator) -> None:
    x = np.ones(5000, np.float32)
    if RANK > 0:
        WORLD.Barrier()
    handle = comm.allreduce_async(x, wire="float16")
    if RANK == 0:
        assert handle.nonfinite is None
        assert handle.path is None
        WORLD.Barrier()
    assert (handle.wait() == SIZE).all()
    assert handle.nonfinite == 0
    assert handle.path in ("recursive_doubling", "pairwise", "hierarchical", "hierarchical_lanes")


def check_where_nothing_is_rounded_nothing_is_counted(comm: gf.Communicator) -> None:
    x = np.full(5000, np.inf, np.float32)
    for algorithm in (*ALGORITHMS, "mpi"):
        _, nonfinite = reduce_over(comm, x, "sum", algorithm, None)
        assert nonfinite is None
        assert reduce_over(comm, x.astype(np.float16), "sum", algorithm, None)[1] is None
    for handle in (comm.broadcast_async(x), comm.reduce_async(x), comm.allgather_async(x), comm.barrier_async()):
        handle.wait()
        assert handle.nonfinite is None


@on_ranks(1, 3)
def check_inside_a_node_nothing_is_rounded(_: gf.Communicator) -> None:
    for count in COUNTS:
        inputs = inputs_of(count, 7)
        with gf.init() as comm:
            for op, wire, algorithm in itertools.product(("sum", "mean"), WIRES, ("auto", "shared", "hierarchical")):
                wanted, _ = reduce_over(comm, inputs[RANK], op, algorithm, None)
                found, nonfinite = reduce_over(comm, inputs[RANK], op, algorithm, wire)
                assert same_bits(found, wanted)
                assert nonfinite is None


run_checks(
    SETTINGS,
    once=[check_inside_a_node_nothing_is_rounded, check_a_large_value_coarsens_its_own_segment],
    by_mpi=[check_where_nothing_is_rounded_nothing_is_counted],
)
