"""Every collective, dtype, op, algorithm and kind of memory, inside nodes and between: each element is compared."""

from __future__ import annotations

import itertools
import random
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from marks import on_ranks
from mpi4py import MPI
from support import (
    DTYPES,
    FLOATS,
    INTEGERS,
    OPS,
    RANK,
    SIZE,
    STORAGE,
    TRANSPORTS,
    WORLD,
    Array,
    as_tensor,
    difference,
    exact_inputs,
    expected,
    is_defined,
    nothing,
    run,
    run_checks,
    same_bits,
    say,
    values_of,
)

import gradientflow as gf

GUARD = 0xA5
GUARD_BYTES = 64
SHIFTS = 61  # windows of the data start at so many places, so that a result left over from another case is seen
SMALL_ELEMENTS = 21_000
LARGE_ELEMENTS = 300_007

# Where the tensors lie: by name, which kind each rank has.
PLACES = ["pool", "pool_odd", "array", "array_odd", "mixed", "segments"]
REDUCING = ["allreduce", "reduce", "reduce_scatter"]
MOVING = ["broadcast", "allgather", "allgatherv", "alltoall", "gather", "scatter"]
KINDS = [*REDUCING, *MOVING]
IN_PLACE = ["allreduce", "broadcast", "reduce"]

# The algorithms that serve some calls only.
SERVED = {
    "ring": ["allreduce", "reduce_scatter", "allgather", "allgatherv"],
    "recursive_doubling": ["allreduce"],
    "hierarchical": ["allreduce"],
    "hierarchical_lanes": ["allreduce"],
}
BY_MESSAGES = ["auto", "mpi", *SERVED]

# Every communicator of the grid inside a node: its settings, and the algorithms to choose from.
SETTINGS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["auto", "shared", *BY_MESSAGES]),
    ({"inline_bytes": 0, "staging_bytes": 4096}, ["auto", "shared"]),
    ({"inline_bytes": 0, "staging_bytes": 4096, "direct_read_bytes": 1}, ["auto"]),
    ({"inline_bytes": 0, "staging_bytes": 8192, "direct_read_bytes": 1, "direct_read": False}, ["auto"]),
    ({"inline_bytes": 0, "streaming_bytes": 1, "direct_read_bytes": 1}, ["auto"]),
]

# Between nodes: so many ranks each, the last may have fewer. With small segments a small tensor takes many messages,
# more than a window of them, and several stretches.
NODE_SIZES = [1, 2, 3]
SMALL_SEGMENTS = {"inline_bytes": 0, "segment_bytes": 1024, "stretch_bytes": 4096}
BETWEEN_NODES: list[dict[str, Any]] = [
    {},
    {**SMALL_SEGMENTS, "window": 2, "doubling_bytes": 0, "ring_bytes": 0},
    {**SMALL_SEGMENTS, "window": 2, "doubling_bytes": 0, "ring_bytes": 1 << 30},
    {**SMALL_SEGMENTS, "window": 2, "doubling_bytes": 1 << 30},
    {**SMALL_SEGMENTS, "window": 1, "doubling_bytes": 2000, "ring_bytes": 20_000},
    {**SMALL_SEGMENTS, "window": 1024, "ring_bytes": 50_000, "inline_bytes": 65536},
]
LARGE_BETWEEN_NODES: list[dict[str, Any]] = [
    {"node_size": 1},
    {"node_size": 2, "stretch_bytes": 1 << 18},
    {"node_size": 3, "segment_bytes": 4096, "window": 3},
]
SIZES_EACH = 3  # between nodes so many sizes are drawn for each kind, dtype and op


def serves(algorithm: str, kind: str) -> bool:
    """Tell whether an algorithm serves this kind of call."""
    return kind in SERVED.get(algorithm, KINDS)


def uneven(count: int, turn: int) -> list[int]:
    """Return the number of elements of each rank in an allgatherv: 0, a half or all of count."""
    return [count * ((rank + turn) % 3) // 2 for rank in range(SIZE)]


def block(count: int, rank: int) -> tuple[int, int]:
    """Return where a rank's block of a reduce_scatter begins and ends."""
    base, extra = divmod(count, SIZE)
    begin = rank * base + min(rank, extra)
    return begin, begin + base + (rank < extra)


class Data:
    """The inputs of all ranks, and what every op makes of them, made when needed; windows of any place and length."""

    def __init__(self, elements: int, seed: int, *, overflow: bool = True) -> None:
        self._inputs = cache(lambda dtype: exact_inputs(dtype, elements + SHIFTS, seed, overflow=overflow))
        self._results = cache(lambda dtype, op: expected(self._inputs(dtype), dtype, op))

    def inputs(self, dtype: str, shift: int, count: int) -> list[Array]:
        return [each[shift : shift + count] for each in self._inputs(dtype)]

    def result(self, dtype: str, op: str, shift: int, count: int) -> Array:
        return self._results(dtype, op)[shift : shift + count]


def both(elements: int, seed: int) -> dict[bool, Data]:
    """Make data for calls of ours (False) and of the MPI library's (True).

    Whether MPI's integer sums wrap around is a question of its own: see wrapping().
    """
    return {over_mpi: Data(elements, seed, overflow=not over_mpi) for over_mpi in (False, True)}


class Room:
    """Memory of all kinds for the tensors of one role, with guards around each tensor."""

    def __init__(self, comm: gf.Communicator, bytes_: int) -> None:
        whole = bytes_ + 4 * GUARD_BYTES
        self._stretches = {
            "first": comm.empty(whole, "uint8"),
            "second": comm.empty(whole, "uint8"),
            "array": np.zeros(whole, np.uint8),
        }

    def place(self, place: str, dtype: str, count: int) -> tuple[Array, Array]:
        """Return a tensor and the bytes it lies in, guards included."""
        item = STORAGE[dtype].itemsize
        even = RANK % 2 == 0
        kind, offset = {
            "pool": ("first", 0),
            "pool_odd": ("first", (3 + RANK) * item),
            "array": ("array", 0),
            "array_odd": ("array", item),
            "mixed": ("first" if even else "array", 0),
            "segments": ("first" if even else "second", 0),
        }[place]
        around = self._stretches[kind][: GUARD_BYTES + offset + count * item + GUARD_BYTES]
        around[:] = GUARD
        begin = GUARD_BYTES + offset
        return around[begin : begin + count * item].view(STORAGE[dtype]), around


@dataclass
class Case:
    """One call, the same on all ranks."""

    kind: str
    dtype: str
    op: str
    count: int
    shift: int
    place: str
    out_place: str | None  # None: in place, or a new array
    root: int
    algorithm: str
    wire: str | None

    @property
    def is_root(self) -> bool:
        return self.root == RANK

    @property
    def works_in_place(self) -> bool:
        """Whether the result lies in the tensor on this rank."""
        if self.kind == "reduce" and not self.is_root:
            return False
        return self.out_place is None and self.kind in IN_PLACE

    @property
    def gets_result(self) -> bool:
        return self.kind not in ("reduce", "gather") or self.is_root

    @property
    def input_count(self) -> int:
        """The number of elements that this rank puts in."""
        if self.kind in ("alltoall", "scatter"):
            return self.count // SIZE * SIZE
        return uneven(self.count, self.shift)[RANK] if self.kind == "allgatherv" else self.count


class Grid:
    """All cases on one communicator."""

    def __init__(self, comm: gf.Communicator, data: dict[bool, Data], elements: int) -> None:
        self.comm = comm
        self.all_data = data
        self.input_room = Room(comm, elements * 8)
        self.output_room = Room(comm, elements * 8 * SIZE)

    def check(self, case: Case) -> None:
        self.data = self.all_data[case.algorithm == "mpi"]
        x, x_around = self.input_room.place(case.place, case.dtype, case.input_count)
        x[:] = self.data.inputs(case.dtype, case.shift, case.count)[RANK][: x.size]
        if case.kind in ("broadcast", "scatter") and not case.is_root:
            x[:] = np.zeros((), x.dtype)
        before = x_around.copy()
        wanted = self.wanted(case)
        out = out_around = None
        if case.out_place is not None:
            out, out_around = self.output_room.place(case.out_place, case.dtype, wanted.size)
        result = self.call(case, x, out)
        compare = self.compare_about if self.is_rounded_on_the_way(case) else self.compare
        if case.works_in_place:
            assert result is x or case.dtype == "bfloat16"
            compare(x, wanted, case)
            x_begin = x.ctypes.data - x_around.ctypes.data
            before[x_begin : x_begin + x.nbytes] = x.view(np.uint8)
        elif case.gets_result:
            compare(out if out is not None else result.reshape(-1), wanted, case)
        else:
            assert (result is None) == (case.kind == "gather")
            assert out is None or (out.view(np.uint8) == GUARD).all(), "out was changed where there is no result"
        assert same_bits(x_around, before), "the input or the memory around it was changed"
        if out is not None and out_around is not None:
            begin = out.ctypes.data - out_around.ctypes.data
            assert (out_around[:begin] == GUARD).all(), "the memory before out was changed"
            assert (out_around[begin + out.nbytes :] == GUARD).all(), "the memory after out was changed"

    def is_rounded_on_the_way(self, case: Case) -> bool:
        """Tell whether parts of a mean are divided before they travel: 16-bit floats, which could overflow."""
        divides = case.op == "mean" and case.dtype in ("float16", "bfloat16") and SIZE & (SIZE - 1) != 0
        by_messages = self.comm.nodes > 1 or case.algorithm in ("ring", "recursive_doubling")
        return divides and by_messages and case.algorithm != "mpi"

    def wanted(self, case: Case) -> Array:
        """Return what this rank must get."""
        if case.kind in REDUCING:
            result = self.data.result(case.dtype, case.op, case.shift, case.count)
            begin, end = block(case.count, RANK) if case.kind == "reduce_scatter" else (0, case.count)
            return result[begin:end]
        inputs = self.data.inputs(case.dtype, case.shift, case.count)
        each = case.count // SIZE
        if case.kind == "broadcast":
            return inputs[case.root]
        if case.kind == "scatter":
            return inputs[case.root][RANK * each : (RANK + 1) * each]
        if case.kind == "alltoall":
            return np.concatenate([from_rank[RANK * each : (RANK + 1) * each] for from_rank in inputs])
        if case.kind == "allgatherv":
            counts = uneven(case.count, case.shift)
            return np.concatenate([from_rank[:count] for from_rank, count in zip(inputs, counts, strict=True)])
        return np.concatenate(inputs)

    def call(self, case: Case, x: Array, out: Array | None) -> Any:
        tensor = as_tensor(x, case.dtype)
        target = None if out is None else as_tensor(out, case.dtype)
        if case.kind == "allreduce":
            return self.allreduce(case, tensor, target)
        if case.kind == "broadcast":
            return self.comm.broadcast(tensor, case.root, case.algorithm)
        if case.kind == "reduce":
            return self.comm.reduce(tensor, case.root, case.op, case.algorithm, target)
        if case.kind == "allgather":
            return self.comm.allgather(tensor, case.algorithm, target)
        if case.kind == "allgatherv":
            return self.comm.allgatherv(tensor, uneven(case.count, case.shift), case.algorithm, target)
        if case.kind == "alltoall":
            return self.comm.alltoall(tensor, case.algorithm, target)
        if case.kind == "gather":
            return self.comm.gather(tensor, case.root, case.algorithm, target)
        if case.kind == "scatter":
            return self.comm.scatter(tensor if case.is_root else None, case.root, case.algorithm, target)
        return self.comm.reduce_scatter(tensor, case.op, case.algorithm, target)

    def allreduce(self, case: Case, tensor: Any, target: Any) -> Any:
        if case.wire is None:
            return self.comm.allreduce(tensor, case.op, case.algorithm, target)
        handle = self.comm.allreduce_async(tensor, case.op, case.algorithm, target, case.wire)
        result = handle.wait()
        by_messages = self.comm.nodes > 1 or (SIZE > 1 and case.algorithm in ("ring", "recursive_doubling"))
        assert handle.nonfinite == (0 if by_messages else None)
        return result

    @staticmethod
    def compare_about(found: Array, wanted: Array, case: Case) -> None:
        """Compare means of numbers up to 4 that were rounded to 16 bits on each way."""
        digits = 11 if case.dtype == "float16" else 8
        error = np.abs(values_of(found, case.dtype) - values_of(wanted, case.dtype))
        assert (error <= 2 * SIZE * 4 * 2.0**-digits).all(), f"{case}: not near: {difference(found, wanted)}"

    @staticmethod
    def compare(found: Array, wanted: Array, what: object) -> None:
        assert same_bits(found, wanted), f"{what} is wrong: {difference(found, wanted)}"


def sizes_for(settings: dict[str, Any], dtype: str) -> list[int]:
    """Return counts around every border that the settings draw."""
    item = STORAGE[dtype].itemsize
    sizes = {0, 1, 2, SIZE - 1, SIZE, SIZE + 1, 7, 97}
    inline = settings.get("inline_bytes", 4096) // item
    sizes |= {max(inline - 1, 0), inline, inline + 1}
    if "staging_bytes" in settings:
        slot = settings["staging_bytes"] // item
        sizes |= {slot // SIZE // 64 * 64 + 1, slot - 1, slot, slot + 1, 2 * slot + 3, 2500 * 8 // item + 13}
    else:
        sizes |= {1009, 16411 // item + 5}
    return sorted(sizes)


def sizes_between_nodes(settings: dict[str, Any], dtype: str) -> list[int]:
    """Return counts of a few elements, and around every border that messages draw."""
    item = STORAGE[dtype].itemsize
    sizes = {0, 1, SIZE - 1, SIZE, SIZE + 1, 97, 1009}
    if "segment_bytes" not in settings:
        inline = 4096 // item
        sizes |= {inline, inline + 1, 16384 // item + 1, min(65536 // item, SMALL_ELEMENTS), SMALL_ELEMENTS}
        return sorted(sizes)
    segment, stretch = settings["segment_bytes"] // item, settings["stretch_bytes"] // item
    sizes |= {segment - 1, segment, segment + 1, SIZE * segment + 1, 2 * SIZE * segment + 7, 5 * SIZE * segment // 2}
    sizes |= {stretch, stretch + 1, 2 * stretch + SIZE, 7 * stretch + 13, 20_011}
    return sorted(size for size in sizes if size <= SMALL_ELEMENTS)


def small_grid(choices: random.Random) -> int:
    """Run the grid of all collectives, dtypes, ops and sizes inside a node; memory, root and algorithm are drawn."""
    data = both(SMALL_ELEMENTS, 1)
    checked = 0
    for settings, algorithms in SETTINGS:
        with gf.init(config=gf.Config(**settings)) as comm:
            grid = Grid(comm, data, SMALL_ELEMENTS)
            for kind, dtype, op in kinds_dtypes_and_ops():
                for count in sizes_for(settings, dtype):
                    check(grid, draw(choices, kind, dtype, op, count, algorithms), settings)
                    checked += 1
    return checked


def grid_between_nodes(choices: random.Random) -> int:
    """Run the same between nodes of every size, over the transports in turn; here the sizes are drawn, too."""
    data = both(SMALL_ELEMENTS, 1)
    checked = 0
    for node_size, (turn, each) in itertools.product(range(1, min(SIZE, 4)), enumerate(BETWEEN_NODES)):
        transports = TRANSPORTS if SIZE == 2 else [TRANSPORTS[(node_size + turn) % 2]]
        for transport in transports:
            settings = {"node_size": node_size, **each}
            algorithms = [each for each in BY_MESSAGES if transport == "mpi" or each != "mpi"]
            with gf.init(config=gf.Config(transport=transport, **settings)) as comm:
                grid = Grid(comm, data, SMALL_ELEMENTS)
                assert comm.nodes == -(-SIZE // node_size)
                for kind, dtype, op in kinds_dtypes_and_ops():
                    for count in choices.sample(sizes_between_nodes(settings, dtype), SIZES_EACH):
                        check(grid, draw(choices, kind, dtype, op, count, algorithms), settings)
                        checked += 1
    return checked


def kinds_dtypes_and_ops() -> list[tuple[str, str, str]]:
    reducing = [(kind, dtype, op) for kind in REDUCING for dtype in DTYPES for op in OPS if is_defined(dtype, op)]
    return [*reducing, *((kind, dtype, "sum") for kind in MOVING for dtype in DTYPES)]


@on_ranks(1, 2, 3)
def check_large() -> None:
    """Run what needs several full-sized slots, and every kind of memory, on a few dtypes."""
    data, choices = both(LARGE_ELEMENTS, 2), random.Random(SIZE)
    between = [each for each in LARGE_BETWEEN_NODES if each["node_size"] < SIZE]
    turns = [{**each, "transport": TRANSPORTS[(turn + SIZE) % 2]} for turn, each in enumerate(between)]
    for settings in ({}, {"streaming_bytes": 1}, {"direct_read_bytes": 1 << 20}, *turns):
        with gf.init(config=gf.Config(**settings)) as comm:
            grid = Grid(comm, data, LARGE_ELEMENTS)
            slots = [512 * 1024 // 4 + 1, 262_144, LARGE_ELEMENTS]
            for kind in KINDS:
                for count, dtype, op in zip(
                    slots, ("float32", "float16", "float64"), ("sum", "mean", "sum"), strict=True
                ):
                    check(grid, draw(choices, kind, dtype, op, count, ["auto"]), settings)
            for place, algorithm in itertools.product(PLACES, ["auto"] if comm.nodes == 1 else ["auto", *SERVED]):
                case = draw(choices, "allreduce", "float32", "sum", LARGE_ELEMENTS, [algorithm])
                case.place = place
                check(grid, case, settings)


def draw(choices: random.Random, kind: str, dtype: str, op: str, count: int, algorithms: list[str]) -> Case:
    """Draw what the grid does not go through one by one; the same on all ranks."""
    out_places: list[str | None] = [None] if kind == "broadcast" else [None, *PLACES]
    if kind == "scatter" or (dtype == "bfloat16" and kind not in IN_PLACE):
        out_places.remove(None)  # only the root knows the length, and NumPy knows no bfloat16
    algorithm = choices.choice([each for each in algorithms if serves(each, kind)])
    # Small powers of two are exact in every wire dtype, and so is what becomes of them, but for thirds and fifths.
    may_be_rounded = kind == "allreduce" and dtype == "float32" and algorithm != "mpi"
    may_be_rounded &= op != "mean" or SIZE & (SIZE - 1) == 0
    return Case(
        kind,
        dtype,
        op,
        count,
        choices.randrange(SHIFTS),
        choices.choice(PLACES),
        choices.choice(out_places),
        choices.choice([0, SIZE - 1]),
        algorithm,
        choices.choice([None, "float16", "bfloat16"]) if may_be_rounded else None,
    )


def check(grid: Grid, case: Case, settings: dict[str, Any]) -> None:
    try:
        grid.check(case)
    except Exception as error:
        raise AssertionError(f"{case} with {settings}: {error}") from error


@on_ranks(1, 3)
def check_against_mpi() -> None:
    """Ask mpi4py for the same, with the dtypes and ops that MPI knows."""
    for settings in ({}, *({"node_size": node_size, **SMALL_SEGMENTS} for node_size in NODE_SIZES)):
        with gf.init(config=gf.Config(**settings)) as comm:
            compare_reductions(comm)
            compare_moves(comm)


@cache
def inputs_without_overflow(dtype: str, count: int) -> list[Array]:
    return exact_inputs(dtype, count, 3, overflow=False)


def compare_reductions(comm: gf.Communicator) -> None:
    ops = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN, "prod": MPI.PROD}
    for dtype in ("float32", "float64", "int8", "uint8", "int32", "int64"):
        for op, theirs in ops.items():
            for count in (1, SIZE + 1, 5003):
                x = inputs_without_overflow(dtype, count)[RANK]
                wanted = np.empty_like(x)
                comm.mpi.Allreduce(x, wanted, theirs)
                for algorithm in ("auto", *SERVED):
                    what = f"allreduce {op} of {count} {dtype} by {algorithm}"
                    Grid.compare(comm.allreduce(x.copy(), op, algorithm), wanted, what)
                root = SIZE - 1
                comm.mpi.Reduce(x, wanted if root == RANK else None, theirs, root)
                found = comm.reduce(x.copy(), root, op)
                if root == RANK:
                    Grid.compare(found, wanted, f"reduce {op} of {count} {dtype}")
                begin, end = block(count, RANK)
                wanted = np.empty(end - begin, dtype)
                counts = [block(count, r)[1] - block(count, r)[0] for r in range(SIZE)]
                comm.mpi.Reduce_scatter(x, wanted, counts, theirs)
                Grid.compare(comm.reduce_scatter(x, op), wanted, f"reduce_scatter {op} of {count} {dtype}")
    for op, theirs in (("max", MPI.LOR), ("min", MPI.LAND)):
        x = exact_inputs("bool", 1001, 5)[RANK]
        wanted = np.empty_like(x)
        comm.mpi.Allreduce(x, wanted, theirs)
        assert same_bits(comm.allreduce(x.copy(), op), wanted)


def compare_moves(comm: gf.Communicator) -> None:
    root = SIZE - 1
    for dtype, count in itertools.product(("float32", "float64", "int8", "uint8", "int32", "int64"), (1, 17, 3001)):
        x = exact_inputs(dtype, count, 4)[RANK]
        wanted = np.empty((SIZE, count), dtype)
        comm.mpi.Allgather(x, wanted)
        assert same_bits(comm.allgather(x), wanted)
        assert same_bits(comm.allgather(x, "ring"), wanted)
        gathered = comm.gather(x, root)
        assert same_bits(gathered, wanted) if root == RANK else gathered is None
        found = np.zeros_like(wanted) if root != RANK else wanted.copy()
        comm.mpi.Bcast(wanted, root)
        assert same_bits(comm.broadcast(found, root), wanted)
        blocks, mixed = wanted * (RANK + 1), np.empty_like(wanted)
        comm.mpi.Alltoall(blocks, mixed)
        assert same_bits(comm.alltoall(blocks), mixed)
        mine = np.empty(count, dtype)
        comm.mpi.Scatter(wanted if root == RANK else None, mine, root)
        assert same_bits(comm.scatter(wanted if root == RANK else None, root, out=np.empty(count, dtype)), mine)
        counts = uneven(count, 1)
        together = np.empty(sum(counts), dtype)
        comm.mpi.Allgatherv(x[: counts[RANK]], (together, counts))
        assert same_bits(comm.allgatherv(x[: counts[RANK]], counts), together)
        assert same_bits(comm.allgatherv(x[: counts[RANK]]), together)
        assert same_bits(comm.allgatherv(x[: counts[RANK]], counts, "ring"), together)


def check_halves() -> None:
    """16-bit floats that do need rounding: accumulated in float32, in rank order, and rounded once."""
    count, choices = 20_003, random.Random(SIZE)
    for dtype in ("float16", "bfloat16"):
        generator = np.random.default_rng(6)
        values = [generator.standard_normal(count).astype(np.float32) * 10 for _ in range(SIZE)]
        inputs = [
            v.astype(np.float16) if dtype == "float16" else (v.view(np.uint32) >> 16).astype(np.uint16) for v in values
        ]
        for settings in ({}, {"inline_bytes": 0, "staging_bytes": 4096}, {"inline_bytes": 65536}):
            with gf.init(config=gf.Config(**settings)) as comm:
                for op in ("sum", "mean", "prod", "max", "min"):
                    length = choices.choice([count, 1500, 33])
                    wanted = expected([each[:length] for each in inputs], dtype, op)
                    for memory in (comm.empty(length, STORAGE[dtype]), np.empty(length, STORAGE[dtype])):
                        memory[:] = inputs[RANK][:length]
                        comm.allreduce(as_tensor(memory, dtype), op)
                        Grid.compare(memory, wanted, f"{op} of {length} {dtype}, {settings}")


def wrapping(algorithm: str) -> None:
    """Sums and products of integers wrap around."""
    with gf.init() as comm:
        for dtype in INTEGERS:
            for op in ("sum", "prod"):
                inputs = exact_inputs(dtype, 1009, 7)
                what = f"{op} of {dtype} by {algorithm}"
                Grid.compare(comm.allreduce(inputs[RANK].copy(), op, algorithm), expected(inputs, dtype, op), what)


def check_barrier() -> None:
    """Nobody leaves a barrier before everybody has come. All ranks read the same clock."""
    import time

    for node_size in (0, *NODE_SIZES):
        with gf.init(config=gf.Config(node_size=node_size)) as comm:
            for turn in range(SIZE):
                if turn == RANK:
                    time.sleep(0.01)
                came = time.monotonic_ns()
                comm.barrier()
                left = time.monotonic_ns()
                assert WORLD.allreduce(came, MPI.MAX) <= WORLD.allreduce(left, MPI.MIN)


@on_ranks(1, 3)
def check_shapes() -> None:
    """Results have the shapes that the documentation says."""
    for node_size in (0, 1, 2):
        with gf.init(config=gf.Config(node_size=node_size)) as comm:
            x = np.full((2, 3), RANK, np.float32)
            assert comm.allgather(x).shape == (SIZE, 2, 3)
            assert [float(part[0, 0]) for part in comm.allgather(x)] == list(range(SIZE))
            assert comm.reduce_scatter(x).shape == (block(6, RANK)[1] - block(6, RANK)[0],)
            gathered = comm.gather(x)
            assert gathered is None if RANK > 0 else gathered.shape == (SIZE, 2, 3)
            assert comm.alltoall(np.ones((SIZE, 2, 3))).shape == (SIZE, 2, 3)
            assert comm.allgatherv(x).shape == (6 * SIZE,)
            assert comm.allgatherv(np.full((RANK, 2), RANK)).tolist() == [r for r in range(SIZE) for _ in range(2 * r)]
            if RANK == 0:
                assert comm.scatter(np.ones((SIZE, 2, 3))).shape == (6,)
            else:
                assert comm.scatter(out=np.empty((3, 2))).shape == (3, 2)
            number = np.array(RANK + 1, np.int64)
            assert comm.allreduce(number) is number
            assert int(number) == SIZE * (SIZE + 1) // 2
            assert comm.allgather(np.array(RANK, np.int32)).tolist() == list(range(SIZE))
            empty = np.zeros((4, 0, 5), np.float64)
            assert comm.allreduce(empty).shape == (4, 0, 5)
            assert comm.allgather(empty).shape == (SIZE, 4, 0, 5)
            assert comm.alltoall(empty).shape == (4, 0, 5)
            assert comm.allgatherv(empty).shape == (0,)


@on_ranks(1, 2, 3)
def check_what_handles_say() -> None:
    """A handle tells which way its call went, once it is done."""
    inside = "alone" if SIZE == 1 else "announcement"
    for node_size, path in ((0, inside), (1, inside if SIZE == 1 else "agreement")):
        with gf.init(config=gf.Config(node_size=node_size)) as comm:
            handle = comm.allreduce_async(np.ones(3))
            assert handle.path in (None, path)
            handle.wait()
            assert handle.path == path
            assert handle.nonfinite is None
            for algorithm in ("mpi", *SERVED):
                handle = comm.allreduce_async(np.ones(3), algorithm=algorithm)
                handle.wait()
                assert handle.path == (algorithm if SIZE > 1 or algorithm == "mpi" else "alone")
                assert handle.nonfinite is None


def main() -> None:
    choices = random.Random(SIZE)
    assert set(FLOATS) < set(DTYPES)
    with gf.init() as comm:
        remark = comm.describe()["direct_read"]
    what = sys.argv[1]
    if what == "wrapping":
        wrapping(sys.argv[2])
    else:
        checked = small_grid(choices) if what == "grid" else grid_between_nodes(choices)
        if RANK == 0:
            say("cases", checked)
    if RANK == 0:
        say("direct reads:", remark)


if __name__ == "__main__":
    if sys.argv[1:]:
        run(main)
    else:
        mpi = [check_against_mpi, check_what_handles_say]
        run_checks(sends=True, once=[check_large], by_mpi=mpi, around=nothing)
