"""The gradient pool: where its tensors lie, what travels together, what they hold afterwards, what it refuses."""

from __future__ import annotations

import gc
import importlib.util
import math
import re
import threading
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from marks import on_ranks
from support import RANK, SIZE, WORLD, expected, in_threads, raises, run_checks, same_bits

import gradientflow as gf
from gradientflow._location import build_info
from gradientflow.errors import (
    ArgumentError,
    ArgumentTypeError,
    ClosedError,
    CommunicationTimeoutError,
    MismatchError,
    PeerError,
)
from gradientflow.pools.gradient import PoolRange

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


def compare_means(pool: gf.GradientPool, values: list[list[np.ndarray]]) -> None:
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


@on_ranks(1, 2, 3)
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
            for index in order[: len(SHAPES) // (turn + 1)]:  # one by one for all, for half, for a third of them
                pool.ready(int(index))
            pool.ready()
            pool.wait()
            compare_means(pool, values)


def check_ready(comm: gf.Communicator) -> None:
    pool = gf.GradientPool(comm, [10, 20, 30])
    for _ in range(2):
        pool.ready(1)
        with raises(ArgumentError, "tensor 1 was already ready in this iteration: wait ends it"):
            pool.ready(1)
        pool.ready(-1)  # as in a list
        with raises(ArgumentError, "tensor 2 was already ready"):
            pool.ready(2)
        for index in (3, -4, 10**6, -(10**6), 2**31, 2**40):
            with raises(ArgumentError, "is not in the pool, which has 3"):
                pool.ready(index)
        for index in ("1", 0.0):
            try:
                pool.ready(index)
            except TypeError:
                continue
            raise AssertionError(index)
        pool.wait()
    pool.ready(np.int64(0))
    pool.wait()


@on_ranks(1, 3)
def check_zeros_for_what_is_not_ready(comm: gf.Communicator) -> None:
    for threshold in (0, 300, math.inf):
        pool = gf.GradientPool(comm, [10, 20, 30, 40], fusion_threshold=threshold)
        for turn in range(3):
            for index, view in enumerate(pool.views):
                view[...] = SIZE * 10
                unused_by = SIZE - 1 if index == turn else 0  # layers that a rank does not use
                if index in (turn, 3) and unused_by != RANK:
                    pool.ready(index)
            assert pool.ready_count == (RANK != SIZE - 1) + (RANK != 0)
            if SIZE == 1:
                with raises(ArgumentError, "no rank made a tensor of the pool ready"):
                    pool.wait()
                continue
            pool.wait()
            assert pool.ready_count == 0
            assert pool.iteration == turn + 1
            for index, view in enumerate(pool.views):
                wanted = 10 * (SIZE - 1) if index in (turn, 3) else 0
                assert (view == wanted).all(), (threshold, turn, index, view[0])


def check_order(comm: gf.Communicator) -> None:
    """Tensors may become ready in any order, from any thread, differently on every rank."""
    shapes = [3000, 1, 70, 0, 5000, (20, 30), 9, 2**17 + 3, 1, 4]
    for threshold in (0, 1, "4KiB", 2**15, "inf"):
        pool = gf.GradientPool(comm, shapes, fusion_threshold=threshold)
        for turn in range(3):
            values = fill(pool, turn)
            for view, everybody in zip(pool.views, values, strict=True):
                everybody[:] = [np.asarray(np.round(each)) for each in everybody]
                view[...] = everybody[RANK]
            order = np.random.default_rng([turn, RANK]).permutation(len(shapes)).tolist()
            if turn % 2:
                in_threads(pool.ready, order)
            else:
                for index in order:
                    pool.ready(index)
            pool.wait()
            compare_means(pool, values)
            reports = pool.reports
            assert [report.nbytes for report in reports] == [each.nbytes for each in pool.ranges]
            for before, after in pairwise(reports):  # one after the other, in the order of memory
                assert before.started <= before.ended <= after.started
            assert all(report.ready <= report.started for report in reports)


@on_ranks(1, 3)
def check_ranges(comm: gf.Communicator) -> None:
    pool = gf.GradientPool(comm, [16, 16, 0, 32, 16], fusion_threshold=128)
    assert pool.offsets == (0, 64, 128, 128, 256)
    assert pool.ranges == (
        PoolRange(range(0, 2), 0, 128),
        PoolRange(range(2, 4), 128, 128),
        PoolRange(range(4, 5), 256, 64),
    )
    for threshold, number, stored in ((0, 4, 0), ("inf", 1, math.inf), (math.inf, 1, math.inf), ("1KiB", 1, 1024)):
        pool = gf.GradientPool(comm, [16, 16, 0, 32, 16], fusion_threshold=threshold)
        assert len(pool.ranges) == number
        assert pool.fusion_threshold == stored
    pool = gf.GradientPool(comm, [16, 16], extra=2, fusion_threshold=64)
    pool.extra[:] = RANK, 1
    pool.ready()
    pool.wait()
    assert len(pool.reports) == len(pool.ranges) == 2  # none for the extra numbers alone
    assert pool.extra.tolist() == [(SIZE - 1) / 2, 1]
    shapes = [300_000] * 16  # 19.2 MB
    found = gf.GradientPool(comm, shapes).fusion_threshold
    if comm.nodes > 1:  # whatever the transport, and however many cores there are
        assert found == 19_200_000 // 16
    else:  # 8 MiB with one rank, or with a core for every rank's progress thread
        assert found in (2**18, 2**23)
    for wrong, words in ((-1, "0 or more"), (1.5, "whole number"), (math.nan, "whole number"), ("8 apples", "size")):
        with raises(ArgumentError, words):
            gf.GradientPool(comm, [3], fusion_threshold=wrong)
    with raises(ArgumentTypeError, "a number of bytes"):
        gf.GradientPool(comm, [3], fusion_threshold=[1])


def check_settings_are_checked_first(comm: gf.Communicator) -> None:
    with raises(ArgumentTypeError, "float64 cannot travel as float16"):
        gf.GradientPool(comm, [3], "float64", wire="float16")
    with raises(ArgumentError, "wire is one of float32, ", "not 'int4'"):
        gf.GradientPool(comm, [3], wire="int4")
    with raises(ArgumentError, "unknown algorithm 'tree'"):
        gf.GradientPool(comm, [3], algorithm="tree")
    if comm.nodes > 1:
        with raises(ArgumentError, "works inside one node"):
            gf.GradientPool(comm, [3], algorithm="shared")
    assert comm.allreduce(np.array(1)) == SIZE


@on_ranks(1, 2, 3)
def check_wire(comm: gf.Communicator) -> None:
    sent = {}
    for wire in (None, "float32", "float16", "bfloat16"):
        pool = gf.GradientPool(comm, [2**16, 2**16], fusion_threshold=0, wire=wire, algorithm="ring")
        for view in pool.views:
            view[...] = RANK  # exact in every one of them
        pool.views[1][7] = np.inf
        pool.ready()
        pool.wait()
        assert (pool.views[0] == np.float32((SIZE - 1) / 2)).all()
        sent[wire] = [report.bytes_sent for report in pool.reports]
        counts = [report.nonfinite for report in pool.reports]
        assert counts == ([0, 1] if wire in ("float16", "bfloat16") and SIZE > 1 else [None, None])
        assert all(report.path == ("ring" if SIZE > 1 else "alone") for report in pool.reports)
    if SIZE > 1:
        least = 2 * 4 * 2**16 * (SIZE - 1) // SIZE
        assert all(abs(each - least) < 4096 for each in sent[None]), (sent, least)
        assert all(abs(each - least / 2) < 4096 for each in sent["float16"]), (sent, least)
    else:
        assert sent[None] == [0, 0]


@on_ranks(1, 3)
def check_abandon(comm: gf.Communicator) -> None:
    """A rank that gives up half-way does not keep the others waiting; in the next iteration nothing is left of it."""
    pool = gf.GradientPool(comm, [100, 200, 300], fusion_threshold=0)
    pool.rollback()
    assert pool.iteration == 0
    for turn in range(3):
        for view in pool.views:
            view[...] = 1
        pool.ready(0)
        if RANK == 0:
            pool.rollback()
            assert pool.ready_count == 0
        else:
            pool.ready(2)
            pool.ready(1)
            pool.wait()
            assert (pool.views[0] == 1).all()
            assert (pool.views[1] == np.float32((SIZE - 1) / SIZE)).all()
        assert pool.iteration == 2 * turn + 1
        for view in pool.views:
            view[...] = RANK
        pool.ready()
        pool.wait()
        assert all((view == np.float32((SIZE - 1) / 2)).all() for view in pool.views)


def check_a_wait_that_ends_too_early(comm: gf.Communicator) -> None:
    pool = gf.GradientPool(comm, [1000])
    pool.views[0][...] = RANK
    if RANK == SIZE - 1:
        WORLD.Barrier()
    pool.ready(0)
    if RANK != SIZE - 1:
        for _ in range(2):
            with raises(CommunicationTimeoutError, "it goes on"):
                pool.wait(timeout=0.02)
        with raises(ArgumentError, "tensor 0 was already ready"):
            pool.ready(0)
        WORLD.Barrier()
    pool.wait(timeout=60)
    assert (pool.views[0] == (SIZE - 1) / 2).all()
    assert pool.iteration == 1


def check_waits_that_race_with_the_end(comm: gf.Communicator) -> None:
    """Whoever is told that it goes on finds the iteration open."""
    pool = gf.GradientPool(comm, [10])
    for turn in range(300):
        pool.views[0][...] = RANK + turn
        pool.ready()
        while True:
            try:
                pool.wait(timeout=0)
            except CommunicationTimeoutError:
                assert pool.iteration == turn
                continue
            break
        assert pool.iteration == turn + 1
        assert (pool.views[0] == np.float32((SIZE - 1) / 2 + turn)).all()
    with raises(ArgumentError, "not a number"):
        pool.wait(timeout=math.nan)


def check_two_threads_that_abandon(comm: gf.Communicator) -> None:
    """The second finds nothing to give up, and does not begin anything."""
    pool = gf.GradientPool(comm, [1000])
    for turn in range(20):
        pool.views[0][...] = RANK
        pool.ready()
        threads = [threading.Thread(target=pool.rollback) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert pool.iteration == turn + 1
        assert (pool.views[0] == np.float32((SIZE - 1) / 2)).all()


def check_ranks_that_differ(comm: gf.Communicator) -> None:
    if SIZE == 1:
        return
    different: list[dict[str, Any]] = [
        {"shapes": [5, 3]}, {"dtype": "float64"}, {"fusion_threshold": 1}, {"wire": "float16"}, {"algorithm": "ring"},
    ]  # fmt: skip
    for change in different:
        arguments = {"shapes": [3, 5], **(change if RANK == SIZE - 1 else {})}
        with raises(MismatchError, "the ranks made different gradient pools", f"; rank {SIZE - 1}: 2 tensors"):
            gf.GradientPool(comm, **arguments)
    assert comm.allreduce(np.array(1)) == SIZE


def check_close(comm: gf.Communicator) -> None:
    with gf.GradientPool(comm, [10]) as pool:
        pool.ready()
        pool.wait()
        assert not pool.closed
    assert pool.closed
    for use in (pool.wait, pool.ready, lambda: pool.ready(0)):
        with raises(ClosedError, "the gradient pool is closed"):
            use()
    assert comm.allreduce(np.array(1)) == SIZE
    assert (pool.memory == 0).all()


def check_a_rank_that_closes_its_pool(comm: gf.Communicator) -> None:
    if SIZE == 1:
        return
    for pool in (gf.GradientPool(comm, [10]), gf.SparseGradientPool(comm, [10], chunk_size=4)):
        if RANK == 0:
            pool.close()
        else:
            pool.ready()
            with raises(PeerError, "rank 0 has closed its gradient pool (or its optimizer or communicator) while"):
                pool.wait()


def check_empty_pools(comm: gf.Communicator) -> None:
    for shapes in ([], [0], [(0, 5), 0]):
        pool = gf.GradientPool(comm, shapes)
        assert pool.nbytes == 0
        assert pool.ranges == ()
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
    for number in (2, 0, 1) if RANK % 2 else (1, 2, 0):  # in different orders: their messages do not mix
        pools[number].ready()
        comm.allreduce_async(np.array(1))
    for number in (0, 2, 1) if RANK % 2 else (1, 0, 2):
        pools[number].wait()
        compare_means(pools[number], values[number])
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
    pool = gf.GradientPool(comm, [3, 40], "bfloat16")
    bits = pool.memory.view(np.uint16)  # the upper half of a float32
    bits[:] = np.array(RANK, np.float32).view(np.uint32) >> 16
    pool.ready()
    pool.wait()
    assert ((bits.astype(np.uint32) << 16).view(np.float32) == (SIZE - 1) / 2).all()
    if importlib.util.find_spec("ml_dtypes") is None:
        with raises(ArgumentTypeError, "ml_dtypes"):
            assert pool.views
    else:
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
        pool.ready()
        pool.wait()
    for use in (pool.wait, pool.ready, partial(pool.ready, 0)):
        with raises(ClosedError, "the communicator is closed"):
            use()
    del use
    assert pool.closed
    pool.rollback()
    pool.close()
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


@on_ranks(1, 3)
def check_memory(comm: gf.Communicator) -> None:
    """Gradients lie in the pool and nowhere else."""
    with gf.GradientPool(comm, [5000]) as first:
        first.ready()
        first.wait()  # whatever the first call of its kind takes
    gc.collect()
    WORLD.Barrier()
    before, pss_before = anonymous_kib(), WORLD.allreduce(node_memory_kib("Pss"))
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
    WORLD.Barrier()
    taken = WORLD.allreduce(node_memory_kib("Pss")) - pss_before
    WORLD.Barrier()
    one = pool.nbytes >> 10
    assert SIZE * one - slack <= taken <= SIZE * (one + slack), f"{taken} KiB for {SIZE} pools of {one} KiB"
    beside = anonymous_kib() - before
    if not build_info()["sanitize"]:  # a sanitizer keeps memory of its own about ours
        assert beside < one // 2, f"{beside} KiB beside a pool of {one} KiB"
    del pool, view
    gc.collect()
    WORLD.Barrier()
    left = node_memory_kib("Rss")
    assert left < slack, f"{left} KiB of node memory are left"


run_checks(
    [{}, {"progress": "thread", "inline_bytes": 0, "streaming_bytes": 1}, {"node_size": 1}],
    once=[check_views_outlive_everything, check_memory],
)
