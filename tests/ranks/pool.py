"""The gradient pool: where its tensors lie, what they hold after wait, what it refuses, and what memory it takes."""

from __future__ import annotations

import gc
import importlib.util
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
from support import RANK, SIZE, WORLD, expected, raises, run_checks, same_bits

import gradientflow as gf
from gradientflow._location import build_info
from gradientflow.errors import ArgumentError, ArgumentTypeError, ClosedError

SHAPES: list[Any] = [(30, 20), 7, (), (0,), [4, 0, 2], (1, 1, 1), np.int64(33), (17,), (100, 101), [5], range(2, 5), 16]


def shape_of(shape: Any) -> tuple[int, ...]:
    return tuple(shape) if hasattr(shape, "__len__") else (int(shape),)


def padded(count: int, item: int) -> int:
    return (count * item + 63) // 64 * 64


def fill(pool: gf.GradientPool, seed: int) -> list[list[np.ndarray]]:
    """Write random values into all views; return those of every rank, by tensor."""
    values = []
    for index, view in enumerate(pool.views):
        everybody = []
        for rank in range(SIZE):
            random = np.random.default_rng([seed, index, rank])
            everybody.append((random.standard_normal(view.shape) * 10).astype(view.dtype))
        view[...] = everybody[RANK]
        values.append(everybody)
    return values


def check_means(pool: gf.GradientPool, values: list[list[np.ndarray]]) -> None:
    """Inside a node the order is that of the ranks; between nodes the sum may be off by a rounding."""
    for view, everybody in zip(pool.views, values, strict=True):
        wanted = expected([np.ascontiguousarray(each).reshape(-1) for each in everybody], str(view.dtype), "mean")
        found = view.reshape(-1)
        assert same_bits(found, wanted), f"wrong mean in a tensor of shape {view.shape}"


def check_layout(comm: gf.Communicator) -> None:
    for dtype in ("float32", np.float64, np.dtype("float16")):
        pool = gf.GradientPool(comm, SHAPES, dtype)
        item = np.dtype(dtype).itemsize
        assert isinstance(pool.views, tuple)
        assert [view.shape for view in pool.views] == [shape_of(shape) for shape in SHAPES]
        begin = pool.views[0].ctypes.data
        offset = 0
        for view in pool.views:
            assert view.dtype == np.dtype(dtype)
            assert view.flags.c_contiguous
            assert view.flags.writeable
            assert not view.any()
            if view.size:
                assert view.ctypes.data == begin + offset
                assert view.ctypes.data % 64 == 0
            offset += padded(view.size, item)
        assert pool.nbytes == offset
    assert gf.GradientPool(comm, [3]).views[0].dtype == np.float32
    assert gf.GradientPool(comm, (16, 17)).nbytes == 64 + 128


def check_values(comm: gf.Communicator) -> None:
    dtypes = ["float32", "float64", "float16"] if comm.nodes == 1 else ["float64"]
    for dtype in dtypes:
        pool = gf.GradientPool(comm, SHAPES, dtype)
        for turn in range(3):
            values = fill(pool, turn)
            if comm.nodes > 1:  # whole numbers: MPI adds in an order of its own
                for view, everybody in zip(pool.views, values, strict=True):
                    everybody[:] = [np.asarray(np.round(each)) for each in everybody]
                    view[...] = everybody[RANK]
            order = np.random.default_rng([turn, RANK]).permutation(len(SHAPES))
            for index in order[: len(SHAPES) // (turn + 1)]:  # ready for all, for half, for a third of them
                pool.ready(int(index))
            pool.wait()
            check_means(pool, values)


def check_ready(comm: gf.Communicator) -> None:
    pool = gf.GradientPool(comm, [10, 20, 30])
    for _ in range(2):
        pool.ready(1)
        with raises(ArgumentError, "tensor 1 was already ready in this iteration"):
            pool.ready(1)
        pool.ready(-1)  # as in a list
        with raises(ArgumentError, "tensor 2 was already ready"):
            pool.ready(2)
        for index in (3, -4, 10**6, -(10**6), 2**31, 2**40):
            with raises(ArgumentError, "is not in the pool, which has 3"):
                pool.ready(index)
        for index in ("1", 0.0, None):
            try:
                pool.ready(index)
            except TypeError:
                continue
            raise AssertionError(index)
        pool.wait()
    pool.ready(np.int64(0))
    pool.wait()
    pool.wait()  # an iteration in which nobody was ready


def check_empty_pools(comm: gf.Communicator) -> None:
    for shapes in ([], [0], [(0, 5), 0]):
        pool = gf.GradientPool(comm, shapes)
        assert pool.nbytes == 0
        assert [view.size for view in pool.views] == [0] * len(shapes)
        pool.wait()
        with raises(ArgumentError, "is not in the pool"):
            pool.ready(len(shapes))
    assert comm.allreduce(np.array(1)) == SIZE


def check_several_pools(comm: gf.Communicator) -> None:
    pools = [gf.GradientPool(comm, [50, (3, 7)], dtype) for dtype in ("float32", "float64", "float32")]
    values = [[[np.full(view.shape, float(rank * 10 + n), view.dtype) for rank in range(SIZE)] for view in pool.views]
              for n, pool in enumerate(pools)]  # fmt: skip
    for pool, everybody in zip(pools, values, strict=True):
        for view, of_view in zip(pool.views, everybody, strict=True):
            view[...] = of_view[RANK]
    assert comm.allreduce(np.array(1)) == SIZE
    for number in (2, 0, 1):
        pools[number].wait()
        check_means(pools[number], values[number])
        comm.barrier()
    # A view is an array in node memory like any other.
    view = pools[0].views[0]
    view[:] = RANK
    assert (comm.allreduce(view, "max") == SIZE - 1).all()
    assert (pools[0].views[1] == pools[0].views[1].flat[0]).all()


def check_dtypes(comm: gf.Communicator) -> None:
    for dtype in ("int32", "int64", "uint8", "bool", np.int8):
        with raises(ArgumentTypeError, "op 'mean'", np.dtype(dtype).name):
            gf.GradientPool(comm, [3], dtype)
    for dtype in ("complex64", "float17", "U4", object, np.longdouble, "int16"):
        with raises(ArgumentTypeError, "dtype"):
            gf.GradientPool(comm, [3], dtype)
    if importlib.util.find_spec("ml_dtypes") is None:
        with raises(ArgumentTypeError, "ml_dtypes"):
            gf.GradientPool(comm, [3], "bfloat16")
    else:
        pool = gf.GradientPool(comm, [3, 40], "bfloat16")
        for view in pool.views:
            view[...] = RANK
        pool.wait()
        assert all((view.astype(np.float32) == np.float32((SIZE - 1) / 2)).all() for view in pool.views)
    for shape in (-1, (2, -1), 2.5, "3", None, [[1]]):
        with raises(ArgumentError, "shape"):
            gf.GradientPool(comm, [4, shape])
    assert comm.allreduce(np.array(1)) == SIZE


def check_absurd_sizes(comm: gf.Communicator) -> None:
    for shapes in ([2**41], [2**20, (2**20, 2**21)], [2**62], [2**62 + 16], [2**63], [2**64], [2**61] * 8):
        with raises(ArgumentError, "1 TiB"):
            gf.GradientPool(comm, shapes)
    assert comm.allreduce(np.array(1)) == SIZE


def check_views_outlive_everything(_: gf.Communicator) -> None:
    with gf.init() as comm:
        pool = gf.GradientPool(comm, [1000, 3])
        first, second = pool.views
        first[:] = RANK
        pool.wait()
    with raises(ClosedError, "the communicator is closed"):
        pool.wait()
    pool.ready(0)
    assert (first == (SIZE - 1) / 2).all()
    del pool, comm
    gc.collect()
    first += 1
    second[:] = 5
    assert (first == (SIZE - 1) / 2 + 1).all()
    assert second.tolist() == [5, 5, 5]
    with gf.init() as comm:
        pass
    with raises(ClosedError, "the communicator is closed"):
        gf.GradientPool(comm, [3])


def node_memory_kib(field: str) -> int:
    """Add up a field of /proc/self/smaps over the mappings of node memory."""
    text = Path("/proc/self/smaps").read_text(encoding="utf-8")
    total = 0
    for part in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", text, flags=re.MULTILINE):
        if "/memfd:gradientflow" in part.partition("\n")[0]:
            found = re.search(rf"^{field}: +(\d+) kB", part, re.MULTILINE)
            total += int(found[1]) if found else 0
    return total


def anonymous_kib() -> int:
    found = re.search(r"^RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"), re.MULTILINE)
    assert found
    return int(found[1])


def check_memory(comm: gf.Communicator) -> None:
    """Gradients lie in the pool and nowhere else."""
    gf.GradientPool(comm, [5000]).wait()  # whatever the first call of its kind takes
    gc.collect()
    comm.mpi.Barrier()
    before, pss_before = anonymous_kib(), comm.mpi.allreduce(node_memory_kib("Pss"))
    shapes = [(1024, 1024)] * 6 + [1000, 1]
    pool = gf.GradientPool(comm, shapes)
    assert pool.nbytes == sum(padded(math.prod(shape_of(shape)), 4) for shape in shapes)
    for _ in range(2):
        for index, view in enumerate(pool.views):
            view.fill(RANK)
            pool.ready(index)
        pool.wait()
    assert all(view.flat[0] == view.flat[view.size - 1] == (SIZE - 1) / 2 for view in pool.views)
    slack = 3 << 10  # a huge page that is not full, the control block
    comm.mpi.Barrier()
    taken = comm.mpi.allreduce(node_memory_kib("Pss")) - pss_before
    comm.mpi.Barrier()
    one = pool.nbytes >> 10
    assert SIZE * one - slack <= taken <= SIZE * (one + slack), f"{taken} KiB for {SIZE} pools of {one} KiB"
    beside = anonymous_kib() - before
    if not build_info()["sanitize"]:  # a sanitizer keeps memory of its own about ours
        assert beside < one // 2, f"{beside} KiB beside a pool of {one} KiB"
    del pool, view
    gc.collect()
    comm.mpi.Barrier()
    left = node_memory_kib("Rss")
    assert left < slack, f"{left} KiB of node memory are left"


run_checks(
    [
        check_layout,
        check_values,
        check_ready,
        check_empty_pools,
        check_several_pools,
        check_dtypes,
        check_absurd_sizes,
    ],
    [{}, {"inline_bytes": 0, "streaming_bytes": 1}, {"node_size": 1}],
)
run_checks([check_views_outlive_everything, check_memory])
assert WORLD.allreduce(1) == SIZE
