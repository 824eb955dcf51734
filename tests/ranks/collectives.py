"""Every collective, dtype, op and kind of memory along every path, each element and the memory around it compared."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI
from support import (
    DTYPES,
    FLOATS,
    INTEGERS,
    OPS,
    RANK,
    SIZE,
    STORAGE,
    WORLD,
    Array,
    as_tensor,
    difference,
    exact_inputs,
    expected,
    is_defined,
    run,
    same_bits,
    say,
)

import gradientflow as gf

GUARD = 0xA5
GUARD_BYTES = 64
SHIFTS = 61  # windows of the data start at so many places, so that a result left over from another case is seen
SMALL_ELEMENTS = 21_000
LARGE_ELEMENTS = 300_007

# Where the tensors lie: by name, which kind each rank has.
PLACES = ["pool", "pool_odd", "array", "array_odd", "mixed", "segments"]
KINDS = ["allreduce", "reduce", "broadcast", "allgather", "reduce_scatter"]

# Every communicator of the grid: its settings, the factor of staging sizes, and the algorithms to choose from.
SETTINGS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["auto", "shared", "mpi"]),
    ({"inline_bytes": 0, "staging_bytes": 4096}, ["auto", "shared"]),
    ({"inline_bytes": 0, "staging_bytes": 4096, "direct_read_bytes": 1}, ["auto"]),
    ({"inline_bytes": 0, "staging_bytes": 8192, "direct_read_bytes": 1, "direct_read": False}, ["auto"]),
    ({"inline_bytes": 0, "streaming_bytes": 1, "direct_read_bytes": 1}, ["auto"]),
    ({"node_size": 1}, ["auto", "mpi"]),
    ({"node_size": 2}, ["auto"]),
]


def block(count: int, rank: int) -> tuple[int, int]:
    """Return where a rank's block of a reduce_scatter begins and ends."""
    base, extra = divmod(count, SIZE)
    begin = rank * base + min(rank, extra)
    return begin, begin + base + (rank < extra)


class Data:
    """The inputs of all ranks, and what every op makes of them, for windows of any place and length."""

    def __init__(self, elements: int, seed: int, *, overflow: bool = True) -> None:
        count = elements + SHIFTS
        self._inputs = {dtype: exact_inputs(dtype, count, seed, overflow=overflow) for dtype in DTYPES}
        self._results = {
            (dtype, op): expected(self._inputs[dtype], dtype, op)
            for dtype in DTYPES
            for op in OPS
            if is_defined(dtype, op)
        }

    def inputs(self, dtype: str, shift: int, count: int) -> list[Array]:
        return [each[shift : shift + count] for each in self._inputs[dtype]]

    def result(self, dtype: str, op: str, shift: int, count: int) -> Array:
        return self._results[dtype, op][shift : shift + count]


def both(elements: int, seed: int) -> dict[bool, Data]:
    """Make data for calls inside a node (False) and over MPI (True).

    Whether MPI's integer sums wrap around is a question of its own: see check_wrapping.
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


class Grid:
    """All cases on one communicator."""

    def __init__(self, comm: gf.Communicator, data: dict[bool, Data], elements: int) -> None:
        self.comm = comm
        self.all_data = data
        self.input_room = Room(comm, elements * 8)
        self.output_room = Room(comm, elements * 8 * SIZE)

    def check(self, case: Case) -> None:
        self.data = self.all_data[self.comm.nodes > 1 or case.algorithm == "mpi"]
        inputs = self.data.inputs(case.dtype, case.shift, case.count)
        x, x_around = self.input_room.place(case.place, case.dtype, case.count)
        x[:] = inputs[RANK]
        if case.kind == "broadcast" and case.root != RANK:
            x[:] = np.zeros((), x.dtype)
        before = x_around.copy()
        wanted = self.wanted(case, inputs)
        out = out_around = None
        if case.out_place is not None:
            out, out_around = self.output_room.place(case.out_place, case.dtype, wanted.size)
        result = self.call(case, x, out)
        in_place = out is None and case.kind in ("allreduce", "broadcast", "reduce")
        if case.kind == "reduce" and case.root != RANK:
            in_place = False
        elif in_place:
            assert result is x or case.dtype == "bfloat16"
            self.compare(x, wanted, "the result")
            x_begin = x.ctypes.data - x_around.ctypes.data
            before[x_begin : x_begin + x.nbytes] = x.view(np.uint8)
        else:
            self.compare(out if out is not None else result.reshape(-1), wanted, "the result")
        assert same_bits(x_around, before), "the input or the memory around it was changed"
        if out is not None and out_around is not None:
            begin = out.ctypes.data - out_around.ctypes.data
            assert (out_around[:begin] == GUARD).all(), "the memory before out was changed"
            assert (out_around[begin + out.nbytes :] == GUARD).all(), "the memory after out was changed"

    def wanted(self, case: Case, inputs: list[Array]) -> Array:
        if case.kind == "broadcast":
            return inputs[case.root]
        if case.kind == "allgather":
            return np.concatenate(inputs)
        result = self.data.result(case.dtype, case.op, case.shift, case.count)
        if case.kind == "reduce_scatter":
            begin, end = block(case.count, RANK)
            return result[begin:end]
        return result

    def call(self, case: Case, x: Array, out: Array | None) -> Any:
        tensor = as_tensor(x, case.dtype)
        target = None if out is None else as_tensor(out, case.dtype)
        if case.kind == "allreduce":
            return self.comm.allreduce(tensor, case.op, case.algorithm, target)
        if case.kind == "broadcast":
            return self.comm.broadcast(tensor, case.root, case.algorithm)
        if case.kind == "reduce":
            return self.comm.reduce(tensor, case.root, case.op, case.algorithm, target)
        if case.kind == "allgather":
            return self.comm.allgather(tensor, case.algorithm, target)
        return self.comm.reduce_scatter(tensor, case.op, case.algorithm, target)

    @staticmethod
    def compare(found: Array, wanted: Array, what: str) -> None:
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


def check_small(choices: random.Random) -> int:
    """Run the grid of all collectives, dtypes, ops and sizes; memory, root and algorithm are drawn."""
    data = both(SMALL_ELEMENTS, 1)
    checked = 0
    for settings, algorithms in SETTINGS:
        with gf.init(config=gf.Config(**settings)) as comm:
            grid = Grid(comm, data, SMALL_ELEMENTS)
            for kind in KINDS:
                has_op = kind in ("allreduce", "reduce", "reduce_scatter")
                for dtype in DTYPES:
                    for op in OPS if has_op else ["sum"]:
                        if has_op and not is_defined(dtype, op):
                            continue
                        for count in sizes_for(settings, dtype):
                            case = draw(choices, kind, dtype, op, count, algorithms)
                            check(grid, case, settings)
                            checked += 1
    return checked


def check_large(choices: random.Random) -> None:
    """Run what needs several full-sized slots, and every kind of memory, on a few dtypes."""
    data = both(LARGE_ELEMENTS, 2)
    for settings in ({}, {"streaming_bytes": 1}, {"direct_read_bytes": 1 << 20}, {"node_size": 1}):
        with gf.init(config=gf.Config(**settings)) as comm:
            grid = Grid(comm, data, LARGE_ELEMENTS)
            slots = [512 * 1024 // 4 + 1, 262_144, LARGE_ELEMENTS]
            for kind in KINDS:
                for count, dtype, op in zip(
                    slots, ("float32", "float16", "float64"), ("sum", "mean", "sum"), strict=True
                ):
                    check(grid, draw(choices, kind, dtype, op, count, ["auto"]), settings)
            for place in PLACES if settings != {"node_size": 1} else []:
                case = draw(choices, "allreduce", "float32", "sum", LARGE_ELEMENTS, ["auto"])
                case.place = place
                check(grid, case, settings)


def draw(choices: random.Random, kind: str, dtype: str, op: str, count: int, algorithms: list[str]) -> Case:
    """Draw what the grid does not go through one by one; the same on all ranks."""
    out_places: list[str | None] = [None] if kind == "broadcast" else [None, *PLACES]
    if dtype == "bfloat16" and kind in ("allgather", "reduce_scatter"):
        out_places.remove(None)  # NumPy could not make the result
    return Case(
        kind,
        dtype,
        op,
        count,
        choices.randrange(SHIFTS),
        choices.choice(PLACES),
        choices.choice(out_places),
        choices.choice([0, SIZE - 1]),
        choices.choice(algorithms),
    )


def check(grid: Grid, case: Case, settings: dict[str, Any]) -> None:
    try:
        grid.check(case)
    except Exception as error:
        message = f"{case} with {settings}: {error}"
        raise AssertionError(message) from error


def check_against_mpi() -> None:
    """Ask mpi4py for the same, with the dtypes and ops that MPI knows."""
    ops = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN, "prod": MPI.PROD}
    with gf.init() as comm:
        for dtype in ("float32", "float64", "int8", "uint8", "int32", "int64"):
            for op, theirs in ops.items():
                for count in (1, SIZE + 1, 5003):
                    x = exact_inputs(dtype, count, 3, overflow=False)[RANK]
                    wanted = np.empty_like(x)
                    comm.mpi.Allreduce(x, wanted, theirs)
                    Grid.compare(comm.allreduce(x.copy(), op), wanted, f"allreduce {op} of {count} {dtype}")
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
            wanted = np.empty((SIZE, 17), dtype)
            x = exact_inputs(dtype, 17, 4)[RANK]
            comm.mpi.Allgather(x, wanted)
            assert same_bits(comm.allgather(x), wanted)
            comm.mpi.Bcast(wanted, SIZE - 1)
            found = np.zeros_like(wanted) if SIZE - 1 != RANK else wanted.copy()
            assert same_bits(comm.broadcast(found, SIZE - 1), wanted)
        for op, theirs in (("max", MPI.LOR), ("min", MPI.LAND)):
            x = exact_inputs("bool", 1001, 5)[RANK]
            wanted = np.empty_like(x)
            comm.mpi.Allreduce(x, wanted, theirs)
            assert same_bits(comm.allreduce(x.copy(), op), wanted)


def check_halves(choices: random.Random) -> None:
    """16-bit floats that do need rounding: accumulated in float32, in rank order, and rounded once."""
    count = 20_003
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


def check_wrapping(algorithm: str) -> None:
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

    for settings in ({}, {"node_size": 1}):
        with gf.init(config=gf.Config(**settings)) as comm:
            for turn in range(3):
                if turn == RANK % 3:
                    time.sleep(0.01)
                came = time.monotonic_ns()
                comm.barrier()
                left = time.monotonic_ns()
                assert WORLD.allreduce(came, MPI.MAX) <= WORLD.allreduce(left, MPI.MIN)


def check_shapes() -> None:
    """Results have the shapes that the documentation says."""
    with gf.init() as comm:
        x = np.full((2, 3), RANK, np.float32)
        assert comm.allgather(x).shape == (SIZE, 2, 3)
        assert [float(part[0, 0]) for part in comm.allgather(x)] == list(range(SIZE))
        assert comm.reduce_scatter(x).shape == (block(6, RANK)[1] - block(6, RANK)[0],)
        number = np.array(RANK + 1, np.int64)
        assert comm.allreduce(number) is number
        assert int(number) == SIZE * (SIZE + 1) // 2
        assert comm.allgather(np.array(RANK, np.int32)).tolist() == list(range(SIZE))
        empty = np.zeros((4, 0, 5), np.float64)
        assert comm.allreduce(empty).shape == (4, 0, 5)
        assert comm.allgather(empty).shape == (SIZE, 4, 0, 5)
        if SIZE > 1:
            with gf.init(config=gf.Config(node_size=1)) as spread:
                assert spread.allreduce(empty).shape == (4, 0, 5)


def main() -> None:
    choices = random.Random(SIZE)
    assert set(FLOATS) < set(DTYPES)
    with gf.init() as comm:
        remark = comm.describe()["direct_read"]
    what = sys.argv[1]
    if what == "grid":
        checked = check_small(choices)
        if RANK == 0:
            say("cases", checked)
    elif what == "wrapping":
        check_wrapping(sys.argv[2])
    else:
        check_large(choices)
        check_against_mpi()
        check_halves(choices)
        check_barrier()
        check_shapes()
    if RANK == 0:
        say("direct reads:", remark)


run(main)
