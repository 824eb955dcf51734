"""Random floats, infinities, NaNs and subnormals: one result, to the bit, on all ranks, paths, memories and reruns."""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from typing import Any

import numpy as np
from mpi4py import MPI
from support import (
    FLOATS,
    OPS,
    RANK,
    SIZE,
    STORAGE,
    TRANSPORTS,
    WORLD,
    Array,
    as_tensor,
    expected,
    over,
    run,
    same_bits,
    say,
    values_of,
)

import gradientflow as gf

COUNT = 8_009  # as float32 more than doubling_bytes

# Settings under which the same call goes other ways inside a node; the result must not show it.
PATHS: list[dict[str, Any]] = [
    {},
    {"inline_bytes": 0, "staging_bytes": 4096},
    {"inline_bytes": 0, "staging_bytes": 4096, "direct_read_bytes": 1},
    {"inline_bytes": 0, "streaming_bytes": 1, "direct_read": False},
    {"inline_bytes": 65536},
]

# Between nodes the order of additions is the algorithm's, but it is the same order for all ranks and in every run.
BETWEEN_NODES: list[dict[str, Any]] = [
    {},
    {"inline_bytes": 0, "segment_bytes": 1024, "window": 2, "stretch_bytes": 4096, "ring_bytes": 1},
]
ALGORITHMS = ["auto", "ring", "recursive_doubling", "hierarchical", "hierarchical_lanes", "mpi"]


@cache
def wild_inputs(dtype: str, seed: int) -> list[Array]:
    """Make every rank's input: all orders of magnitude, and one value in eight or so a special one."""
    generator = np.random.default_rng([seed, SIZE, FLOATS.index(dtype)])
    specials = np.array([np.inf, -np.inf, np.nan, -np.nan, 0.0, -0.0, 1.0])
    inputs = []
    for _ in range(SIZE):
        values = generator.standard_normal(COUNT) * 2.0 ** generator.integers(-20, 15, COUNT)
        values = np.where(generator.random(COUNT) < 0.1, generator.choice(specials, COUNT), values)
        if dtype == "bfloat16":
            stored = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        else:
            with np.errstate(over="ignore"):
                stored = values.astype(dtype)
        bits = stored.view(f"uint{8 * stored.itemsize}")
        small = generator.random(COUNT) < 0.05  # subnormal numbers, and NaNs with a payload
        bits[small] = generator.integers(1, 100, int(small.sum())).astype(bits.dtype)
        loaded = np.isnan(values_of(stored, dtype)) & (generator.random(COUNT) < 0.5)
        bits[loaded] |= generator.integers(1, 100, int(loaded.sum())).astype(bits.dtype)
        inputs.append(stored)
    return inputs


def as_bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


class Digests:
    """The digests of results, which have to be the same on all ranks; compared all at once, as gathering takes long."""

    def __init__(self) -> None:
        self._digests: dict[str, bytes] = {}

    def add(self, result: Array, what: str) -> bool:
        """Add a result; tells whether this rank is the one to look at its values, which are the same on all ranks."""
        self._digests[what] = hashlib.sha256(result.tobytes()).digest()
        return len(self._digests) % SIZE == RANK

    def compare(self) -> bytes:
        """Raise unless all ranks have the same results; gives a digest of all."""
        everybody = WORLD.allgather(self._digests)
        different = [what for what, digest in self._digests.items() if any(digest != each[what] for each in everybody)]
        assert not different, f"{different[0]}: the ranks have different bits, and in {len(different) - 1} other cases"
        return hashlib.sha256(b"".join(self._digests.values())).digest()


def check_value(result: Array, inputs: list[Array], dtype: str, op: str, what: str) -> None:
    """Compare to NumPy in rank order; which NaN it is does not matter here."""
    wanted = expected(inputs, dtype, op)
    nan = np.isnan(values_of(wanted, dtype))
    assert (np.isnan(values_of(result, dtype)) == nan).all(), f"{what}: NaN in other places than NumPy"
    assert same_bits(result[~nan], wanted[~nan]), f"{what}: other values than NumPy"


def results_of(comm: gf.Communicator, inputs: list[Array], dtype: str, op: str) -> dict[str, Array]:
    """Run the same reduction in every kind of memory, and as reduce and reduce_scatter."""
    mine = inputs[RANK]
    results = {}
    pool, other_pool = comm.empty(mine.size, mine.dtype), comm.empty(mine.size + 3, mine.dtype)
    memories = {
        "pool": pool,
        "pool, moved": other_pool[3:],
        "array": np.empty_like(mine),
        "mixed": pool if RANK % 2 else np.empty_like(mine),
    }
    for name, memory in memories.items():
        memory[:] = mine
        comm.allreduce(as_tensor(memory, dtype), op)
        results[name] = memory.copy()
    out = np.empty_like(mine)
    comm.allreduce(as_tensor(mine.copy(), dtype), op, out=as_tensor(out, dtype))
    results["out"] = out.copy()
    root = SIZE - 1
    comm.reduce(as_tensor(mine, dtype), root, op, out=as_tensor(out, dtype))
    results["reduce"] = WORLD.bcast(out, root)
    block = np.empty(mine.size // SIZE + (mine.size % SIZE > RANK), mine.dtype)
    comm.reduce_scatter(as_tensor(mine, dtype), op, out=as_tensor(block, dtype))
    results["reduce_scatter"] = np.concatenate(WORLD.allgather(block))
    return results


def check_inside_a_node() -> str:
    """Return a digest of all results."""
    digests = Digests()
    references: dict[tuple[str, str], Array] = {}
    for settings in PATHS:
        with gf.init(config=gf.Config(**settings)) as comm:
            for dtype in FLOATS:
                inputs = wild_inputs(dtype, 1)
                for op in OPS:
                    for name, result in results_of(comm, inputs, dtype, op).items():
                        what = f"{op} of {dtype}, {name}, {settings}"
                        if (dtype, op) not in references:
                            references[dtype, op] = result
                            check_value(result, inputs, dtype, op, what)
                        digests.add(result, what)
                        wanted = references[dtype, op]
                        where = np.flatnonzero(as_bytes(result) != as_bytes(wanted)) // result.itemsize
                        assert where.size == 0, (
                            f"{what}: other bits than at first, say [{where[0]}]: {result[where[0]]} instead of "
                            f"{wanted[where[0]]} from {[each[where[0]] for each in inputs]}"
                        )
    return digests.compare().hex()


def check_about(result: Array, inputs: list[Array], dtype: str, op: str, what: str) -> None:
    """Compare to NumPy as far as the order of operations, and rounding on the way, do not matter."""
    values = values_of(result, dtype)
    stacked = np.stack([values_of(each, dtype) for each in inputs]).astype(np.float64)
    with np.errstate(all="ignore"):
        if op in ("max", "min"):
            wanted = stacked.max(0) if op == "max" else stacked.min(0)
            assert np.array_equal(values, wanted, equal_nan=True), f"{what}: other values than NumPy"
        elif op in ("sum", "mean"):
            divisor = SIZE if op == "mean" else 1
            usual = np.abs(stacked).sum(0) < np.finfo(np.float16).max  # no infinity, no NaN, and none on the way
            error = np.abs(values - stacked.sum(0) / divisor)
            eps = 2**-7 if dtype == "bfloat16" else float(np.finfo(dtype).eps)
            tiny = 1e-7 if dtype == "float16" else 1e-38
            allowed = SIZE * (eps * np.abs(stacked).sum(0) / divisor + tiny)
            assert (error[usual] <= allowed[usual]).all(), f"{what}: not near to NumPy"
        has_nan = np.isnan(stacked).any(0)
        assert np.isnan(values[has_nan]).all(), f"{what}: NaN is lost"


def check_between_nodes() -> str:
    """Return a digest of all results, which are the same over both transports; these take turns in larger nodes."""
    digests = []
    for node_size in range(1, min(SIZE, 4)):
        found = []
        for transport in TRANSPORTS if node_size == 1 else [TRANSPORTS[(node_size + SIZE) % 2]]:
            with over(transport):
                found.append(digest_between_nodes(node_size, ALGORITHMS[:-1]))
        assert len(set(found)) == 1, f"nodes of {node_size}: other bits over {TRANSPORTS[1]} than over {TRANSPORTS[0]}"
        digests += [found[0], digest_between_nodes(node_size, ALGORITHMS[-1:])]
    return hashlib.sha256(b"".join(digests)).hexdigest()


def digest_between_nodes(node_size: int, algorithms: list[str]) -> bytes:
    digests = Digests()
    for settings in BETWEEN_NODES:
        with gf.init(config=gf.Config(node_size=node_size, **settings)) as comm:
            for dtype in FLOATS:
                inputs = wild_inputs(dtype, 2)
                pool, array = comm.empty(COUNT, inputs[0].dtype), np.empty_like(inputs[0])
                for algorithm in algorithms:
                    for op in OPS:
                        for count, memory in ((1, pool), (1000, array), (COUNT, pool if op == "sum" else array)):
                            x = memory[:count]
                            x[:] = inputs[RANK][:count]
                            comm.allreduce(as_tensor(x, dtype), op, algorithm)
                            what = f"{op} of {count} {dtype} by {algorithm}, nodes of {node_size}, {settings}"
                            if digests.add(x, what):
                                check_about(x, [each[:count] for each in inputs], dtype, op, what)
            if algorithms != ["mpi"]:
                check_wires_between_nodes(comm, digests, settings)
    return digests.compare()


def check_wires_between_nodes(comm: gf.Communicator, digests: Digests, settings: dict[str, Any]) -> None:
    """What was rounded on its way is the same everywhere, too: a rank keeps what it sent to the others."""
    inputs = wild_inputs("float32", 3)
    pool, array = comm.empty(COUNT), np.empty(COUNT, np.float32)
    for wire in ("float16", "bfloat16", "float8_e4m3"):
        for algorithm in ALGORITHMS[:-1]:
            for op in OPS:
                for count, memory in ((1, pool), (1000, array), (COUNT, pool if op == "sum" else array)):
                    x = memory[:count]
                    x[:] = inputs[RANK][:count]
                    handle = comm.allreduce_async(x, op, algorithm, wire=wire)
                    handle.wait()
                    what = f"{op} of {count} float32 as {wire} by {algorithm}, {comm.nodes} nodes, {settings}"
                    digests.add(x, what)
                    assert handle.nonfinite == np.count_nonzero(~np.isfinite(x)), what


def main() -> None:
    assert set(STORAGE) > set(FLOATS)
    digest = check_between_nodes() if sys.argv[1] == "nodes" else check_inside_a_node()
    if RANK == 0:
        say("digest", digest)
        with gf.init(MPI.COMM_SELF) as alone:
            say("simd", alone.describe()["simd"])


run(main)
