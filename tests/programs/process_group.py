"""All calls of the process group "gradientflow", against NumPy; every value is an integer, so every result is exact.

On the host, or where `tensor_places` has the tensors.
"""

from __future__ import annotations

import gc
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial, reduce
from typing import Any
from unittest import SkipTest

import numpy as np
import torch
import torch.distributed as dist
from marks import on_ranks
from support import RANK, SIZE, Array, in_threads, raises, run_checks, scaled
from tensor_places import DEVICE, PLACE

from gradientflow.errors import (
    ArgumentError,
    ArgumentTypeError,
    ClosedError,
    CommunicationTimeoutError,
    MismatchError,
)

C10D: Any = torch._C._distributed_c10d
Op: Any = dist.ReduceOp

# The names since PyTorch 2.13, where the older ones warn.
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

OTHERS = [rank for rank in range(SIZE) if rank != RANK]
NEXT, PREVIOUS = (RANK + 1) % SIZE, (RANK - 1) % SIZE

INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
MOVED = [torch.bool, *INTEGERS, *FLOATS, *COMPLEX, torch.float8_e4m3fn]

SHAPES: list[tuple[int, ...]] = [(2, 3), (4,), (), (0,)]

COMBINE: dict[Any, Callable[[Array, Array], Array]] = {
    Op.SUM: np.add,
    Op.AVG: np.add,
    Op.PRODUCT: np.multiply,
    Op.MIN: np.minimum,
    Op.MAX: np.maximum,
    Op.BAND: np.bitwise_and,
    Op.BOR: np.bitwise_or,
    Op.BXOR: np.bitwise_xor,
}
ARITHMETIC = [Op.SUM, Op.AVG, Op.PRODUCT, Op.MIN, Op.MAX]
BITWISE = [Op.BAND, Op.BOR, Op.BXOR]


def numbers(shape: tuple[int, ...], rank: int, seed: int = 0) -> Array:
    """Return small numbers that differ from rank to rank: sums and products of five ranks' fit into an int8."""
    return np.random.default_rng([seed, rank, *shape]).integers(0, 3, shape)


def as_tensor(values: Array, dtype: torch.dtype) -> torch.Tensor:
    tensor = torch.tensor(values, device="cpu").to(dtype)  # there, all dtypes can do this
    return (tensor * (1 + 1j) if dtype.is_complex else tensor).to(torch.get_default_device())


def mine(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, rank: int = RANK, seed: int = 0) -> torch.Tensor:
    return as_tensor(numbers(shape, rank, seed), dtype)


def bits(tensor: torch.Tensor) -> bytes:
    row = torch.empty(tensor.numel(), dtype=tensor.dtype)
    row.copy_(tensor.detach().reshape(-1))
    return row.view(torch.uint8).cpu().numpy().tobytes()


def same(found: torch.Tensor, wanted: torch.Tensor, *what: object) -> None:
    """Compare bit for bit."""
    assert found.dtype == wanted.dtype, (found.dtype, wanted.dtype, *what)
    assert found.shape == wanted.shape, (found.shape, wanted.shape, *what)
    assert bits(found) == bits(wanted), (found, wanted, *what)


def reduced(shape: tuple[int, ...], dtype: torch.dtype, op: Any, seed: int = 0) -> torch.Tensor:
    """Return what a reduction over all ranks must give."""
    inputs = [numbers(shape, rank, seed) for rank in range(SIZE)]
    if dtype is torch.bool:
        inputs = [each != 0 for each in inputs]
        if op in (Op.SUM, Op.MAX):
            op = Op.BOR
        elif op in (Op.PRODUCT, Op.MIN):
            op = Op.BAND
    return as_tensor(np.asarray(reduce(COMBINE[op], inputs)), dtype)


def to_reduce(shape: tuple[int, ...], dtype: torch.dtype, op: Any) -> torch.Tensor:
    """Return this rank's input: for a mean a multiple of the number of ranks, so that dividing is exact."""
    return as_tensor(numbers(shape, RANK) * (SIZE if op == Op.AVG else 1), dtype)


def defined() -> Iterator[tuple[torch.dtype, Any]]:
    yield from itertools.product(FLOATS, ARITHMETIC)
    for dtype, op in itertools.product(INTEGERS, [*ARITHMETIC, *BITWISE]):
        if dtype is not torch.uint64 or op != Op.AVG:
            yield dtype, op
    yield from itertools.product([torch.bool], [Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX, *BITWISE])
    yield from itertools.product(COMPLEX, [Op.SUM, Op.AVG])


def strided(values: torch.Tensor) -> list[torch.Tensor]:
    """Return tensors with these values that are not contiguous, or not in the usual way."""
    wide = torch.empty((*values.shape, 2), dtype=values.dtype)
    wide[..., 0] = values
    expanded = [wide[..., 0], values.t().contiguous().t()]
    if values.is_floating_point():
        expanded += [values.clone().requires_grad_(), torch._neg_view(-values)]
    if values.is_complex():
        expanded.append(values.conj().resolve_conj().conj())
    return expanded


# ---- reductions ------------------------------------------------------------------------------------------------------


@on_ranks(2, 3)
def check_allreduce() -> None:
    cases = [(dtype, op, (3, 7)) for dtype, op in defined()]
    for dtype, op in [(torch.float32, Op.SUM), (torch.int16, Op.MAX), (torch.bool, Op.BXOR), (torch.complex64, Op.AVG)]:
        cases += [(dtype, op, shape) for shape in SHAPES]
    for dtype, op, shape in cases:
        x = to_reduce(shape, dtype, op)
        dist.all_reduce(x, op)
        same(x, reduced(shape, dtype, op), op)
    for shape in [(3001,), (70000,)]:
        for dtype in (torch.float32, torch.bfloat16, torch.int16):
            x = mine(shape, dtype)
            address = x.data_ptr()
            dist.all_reduce(x)
            same(x, reduced(shape, dtype, Op.SUM))
            assert x.data_ptr() == address
    x = torch.tensor([RANK, -RANK], dtype=torch.int8)
    dist.all_reduce(x, Op.AVG)
    assert x.tolist() == [(SIZE - 1) // 2, -((SIZE - 1) // 2)]  # of integers, without what is behind the point
    x = torch.tensor([2**63 + 5 + RANK, 7], dtype=torch.uint64)
    dist.all_reduce(x, Op.MAX)
    assert x.tolist() == [2**63 + 5 + SIZE - 1, 7]
    for factor in (3.0, torch.tensor(3.0)):
        for dtype in (torch.float32, torch.complex64):
            x = mine((4,), dtype)
            dist.all_reduce(x, C10D._make_nccl_premul_sum(factor))
            same(x, 3 * reduced((4,), dtype, Op.SUM))


def is_plain(call: Callable[[], object]) -> bool:
    """Make a call; tell whether it has gone past the methods in Python."""
    group: Any = dist.group.WORLD
    calls, plain = group._get_sequence_number_for_group(), group._native.count
    call()
    assert group._get_sequence_number_for_group() == calls + 1
    return bool(group._native.count > plain)


@on_ranks(2, 3)
def check_plain_calls() -> None:
    """Usual calls, on the host, have the same bits and errors as those that go through the methods."""
    on_host = PLACE == "host"
    values = torch.from_numpy(np.random.default_rng(RANK).standard_normal((SIZE, 50), np.float32))
    values = values.to(torch.get_default_device())
    for op in (Op.SUM, Op.AVG, Op.MAX):
        x, y, part, column = values.clone(), values.t().contiguous().t(), torch.empty(50), torch.empty(50, 2)[:, 1]
        assert is_plain(partial(dist.all_reduce, x, op)) == on_host
        assert is_plain(partial(reduce_scatter_single, part, values, op)) == on_host
        assert not is_plain(partial(dist.all_reduce, y, op))
        assert not is_plain(partial(reduce_scatter_single, column, values, op))
        same(x, y)
        same(part, column)
    row, columns = torch.empty_like(values), torch.empty(50, SIZE).t()
    assert is_plain(partial(all_gather_single, row, values[RANK])) == on_host
    assert not is_plain(partial(all_gather_single, columns, values[RANK]))
    same(row, columns)
    parameter = torch.nn.Parameter(values.clone(), requires_grad=False)
    for x in (values.clone().requires_grad_(), torch._neg_view(values.clone()), parameter, values.bool()):
        assert not is_plain(partial(dist.all_reduce, x))
    assert not is_plain(partial(all_gather_single, row, row[RANK]))
    group: Any = dist.group.WORLD
    options = dist.AllreduceOptions()
    options.asyncOp = False
    given = [torch.ones(5)]
    if RANK == 0:
        threading.Timer(0.05, given.clear).start()
    time.sleep(0.1 * RANK)  # so that rank 0 waits in the core
    first, second = group.allreduce(given, options), group.allreduce([torch.ones(5)], options)
    with first._lock:  # as in a signal's handler, while another work makes its future
        assert second.get_future().value()[0].tolist() == [SIZE] * 5
    if RANK == 0:
        assert first.get_future().value()[0].tolist() == [SIZE] * 5
    for gradient in (False, True):
        with raises(MismatchError, f"rank 0: allreduce of {SIZE} float32, op sum"):
            dist.all_reduce(torch.ones(SIZE + (RANK != 0), requires_grad=gradient))


def check_layouts() -> None:
    group: Any = dist.group.WORLD
    for dtype in (torch.float32, torch.int16, torch.bool, torch.complex64):
        wanted = reduced((4, 6), dtype, Op.SUM)
        for x in strided(mine((4, 6), dtype)):
            group.allreduce([x]).wait()  # torch.distributed's functions refuse conjugated tensors themselves
            same(x, wanted)
        for x in strided(mine((4, 6), dtype)):
            group.broadcast([x], SIZE - 1).wait()
            same(x, mine((4, 6), dtype, SIZE - 1))
        for x in strided(mine((4, 6), dtype)):
            outputs = [each for rank in range(SIZE) for each in strided(mine((4, 6), dtype, rank, 9))[:1]]
            group.allgather([outputs], [x]).wait()
            for rank, output in enumerate(outputs):
                same(output, mine((4, 6), dtype, rank))
    whole = mine((SIZE * 4, 6))
    column = whole[:, 2]  # a part of a tensor: the rest stays as it is
    dist.all_reduce(column)
    wanted = mine((SIZE * 4, 6))
    wanted[:, 2] = reduced((SIZE * 4, 6), torch.float32, Op.SUM)[:, 2]
    same(whole, wanted)
    images = mine((2, 3, 4, 5)).to(memory_format=torch.channels_last)
    dist.all_reduce(images)
    same(images, reduced((2, 3, 4, 5), torch.float32, Op.SUM))
    blocks = torch.empty(3, 5 * SIZE).t()
    all_gather_single(blocks, mine((5, 3)))
    same(blocks, torch.cat([mine((5, 3), rank=rank) for rank in range(SIZE)]))
    part = torch.empty(3, 5).t()
    reduce_scatter_single(part, mine((3, 5 * SIZE)).t())
    same(part, reduced((3, 5 * SIZE), torch.float32, Op.SUM).t()[5 * RANK : 5 * RANK + 5])


def check_reduce() -> None:
    for dtype, op in [
        (torch.float32, Op.SUM),
        (torch.bfloat16, Op.AVG),
        (torch.int16, Op.PRODUCT),
        (torch.int32, Op.BXOR),
        (torch.bool, Op.MAX),
        (torch.complex64, Op.SUM),
    ]:
        for root in range(SIZE):
            given = to_reduce((3, 5), dtype, op)
            for x in (given.clone(), strided(given)[0]):
                dist.reduce(x, root, op)
                same(x, reduced((3, 5), dtype, op) if root == RANK else given, op, root)


def check_reduce_scatter() -> None:
    for dtype, op in [
        (torch.float32, Op.SUM),
        (torch.float32, Op.AVG),
        (torch.float16, Op.MAX),
        (torch.int16, Op.SUM),
        (torch.int64, Op.BOR),
        (torch.bool, Op.MIN),
        (torch.complex64, Op.SUM),
    ]:
        for count in (4, 0):
            wanted = reduced((SIZE, count), dtype, op)[RANK]
            row = to_reduce((SIZE, count), dtype, op)
            output = torch.empty(count, dtype=dtype)
            reduce_scatter_single(output, row, op)
            same(output, wanted)
            same(row, to_reduce((SIZE, count), dtype, op))
            output = torch.empty(count, dtype=dtype)
            dist.reduce_scatter(output, list(row.clone()), op)
            same(output, wanted)
            separate = [part.clone() for part in row]
            dist.reduce_scatter(output, separate, op)
            same(output, wanted)
            inside = row.clone()
            reduce_scatter_single(inside[RANK], inside, op)  # the output is a part of the input
            same(inside[RANK], wanted)
    output = torch.empty(RANK + 1)  # parts of different sizes
    dist.reduce_scatter(output, [mine((rank + 1,), seed=rank) for rank in range(SIZE)])
    same(output, reduced((RANK + 1,), torch.float32, Op.SUM, seed=RANK))


@on_ranks(2, 3)
def check_coalesced() -> None:
    shapes = [(3,), (2, 2), (0,), (5,)]
    tensors = [mine(shape) for shape in shapes]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor, shape in zip(tensors, shapes, strict=True):
        same(tensor, reduced(shape, torch.float32, Op.SUM))
    gathered = [torch.empty(SIZE, *shape) for shape in shapes]
    with dist._coalescing_manager(async_ops=True) as manager:
        for output, shape in zip(gathered, shapes, strict=True):
            all_gather_single(output, mine(shape))
    manager.wait()
    for output, shape in zip(gathered, shapes, strict=True):
        same(output, torch.stack([mine(shape, rank=rank) for rank in range(SIZE)]))
    outputs = [torch.empty(shape) for shape in shapes]
    with dist._coalescing_manager():
        for output, shape in zip(outputs, shapes, strict=True):
            reduce_scatter_single(output, mine((SIZE, *shape)))
    for output, shape in zip(outputs, shapes, strict=True):
        same(output, reduced((SIZE, *shape), torch.float32, Op.SUM)[RANK])
    lists = [[torch.empty(shape) for shape in shapes] for _ in range(SIZE)]
    group: Any = dist.group.WORLD
    group.allgather_coalesced(lists, [mine(shape) for shape in shapes]).wait()
    for rank, outputs in enumerate(lists):
        for output, shape in zip(outputs, shapes, strict=True):
            same(output, mine(shape, rank=rank))


# ---- copies ----------------------------------------------------------------------------------------------------------


def check_copies() -> None:
    cases = [*zip(MOVED, itertools.cycle(SHAPES)), *itertools.product([torch.float32, torch.complex64], SHAPES)]
    for root, (dtype, shape) in zip(itertools.cycle(range(SIZE)), cases, strict=False):
        x = mine(shape, dtype)
        dist.broadcast(x, root)
        same(x, mine(shape, dtype, root))
        outputs = [torch.empty(shape, dtype=dtype) for _ in range(SIZE)]
        dist.gather(mine(shape, dtype), outputs if root == RANK else None, root)
        if root == RANK:
            for rank, output in enumerate(outputs):
                same(output, mine(shape, dtype, rank))
        inputs = [mine(shape, dtype, root, rank) for rank in range(SIZE)]
        output = torch.empty(shape, dtype=dtype)
        dist.scatter(output, inputs if root == RANK else None, root)
        same(output, mine(shape, dtype, root, RANK))
        chunks = list(torch.empty((SIZE, *shape), dtype=dtype))  # side by side in memory
        for outputs in ([torch.empty(shape, dtype=dtype) for _ in range(SIZE)], chunks):
            dist.all_gather(outputs, mine(shape, dtype))
            for rank, output in enumerate(outputs):
                same(output, mine(shape, dtype, rank))
        outputs = [torch.empty(shape, dtype=dtype) for _ in range(SIZE)]
        dist.all_to_all(outputs, [mine(shape, dtype, RANK, rank) for rank in range(SIZE)])
        for rank, output in enumerate(outputs):
            same(output, mine(shape, dtype, rank, RANK))
        row = torch.empty((SIZE, *shape), dtype=dtype)
        all_gather_single(row, mine(shape, dtype))
        same(row, torch.stack([mine(shape, dtype, rank) for rank in range(SIZE)]))
        dist.all_to_all_single(row, torch.stack([mine(shape, dtype, RANK, rank) for rank in range(SIZE)]))
        same(row, torch.stack([mine(shape, dtype, rank, RANK) for rank in range(SIZE)]))


def check_uneven() -> None:
    outputs = [torch.empty(rank) for rank in range(SIZE)]
    dist.all_gather(outputs, mine((RANK,)))
    for rank, output in enumerate(outputs):
        same(output, mine((rank,), rank=rank))
    for dtype in (torch.float32, torch.complex64):
        # Rank r sends (r + s) % 3 rows to rank s.
        sent = [(RANK + rank) % 3 for rank in range(SIZE)]
        inputs = [mine((count, 2), dtype, RANK, rank) for rank, count in enumerate(sent)]
        wanted = [mine((count, 2), dtype, rank, RANK) for rank, count in enumerate(sent)]
        received = torch.empty(sum(sent), 2, dtype=dtype)
        dist.all_to_all_single(received, torch.cat(inputs), sent, sent)
        same(received, torch.cat(wanted))
        columns = torch.empty(2, sum(sent), dtype=dtype).t()
        work: Any = dist.all_to_all_single(columns, torch.cat(inputs), sent, sent, async_op=True)
        work.get_future().wait()
        same(columns, torch.cat(wanted))
        outputs = [torch.empty((count, 2), dtype=dtype) for count in sent]
        dist.all_to_all(outputs, inputs)
        for output, each in zip(outputs, wanted, strict=True):
            same(output, each)


def check_in_place() -> None:
    row = torch.zeros(SIZE, 3)
    row[RANK] = mine((3,))
    all_gather_single(row, row[RANK])  # the input is a part of the output
    same(row, torch.stack([mine((3,), rank=rank) for rank in range(SIZE)]))
    block = torch.stack([mine((3,), seed=rank) for rank in range(SIZE)])
    dist.all_to_all_single(block, block)
    same(block, torch.stack([mine((3,), rank=rank, seed=RANK) for rank in range(SIZE)]))
    block = torch.stack([mine((3,), seed=rank) for rank in range(SIZE)])
    dist.all_to_all_single(block, block, [1] * SIZE, [1] * SIZE)
    same(block, torch.stack([mine((3,), rank=rank, seed=RANK) for rank in range(SIZE)]))


def check_objects() -> None:
    objects = [{"from": RANK}, "text"]
    dist.broadcast_object_list(objects, SIZE - 1)
    assert objects == [{"from": SIZE - 1}, "text"]
    gathered: list[Any] = [None] * SIZE
    dist.all_gather_object(gathered, "x" * RANK)
    assert gathered == ["x" * rank for rank in range(SIZE)]
    collected: list[Any] | None = [None] * SIZE if RANK == 0 else None
    dist.gather_object(RANK, collected)
    assert collected is None or collected == list(range(SIZE))
    received: list[Any] = [None]
    dist.scatter_object_list(received, [f"for {rank}" for rank in range(SIZE)])
    assert received == [f"for {RANK}"]
    if SIZE > 1 and RANK == 0:
        dist.send_object_list([1, "two"], SIZE - 1)
    elif SIZE > 1 and RANK == SIZE - 1:
        pair: list[Any] = [None, None]
        assert dist.recv_object_list(pair, 0) == 0
        assert pair == [1, "two"]


def check_short_forms() -> None:
    """The group's own methods take a tensor, and an op, a root or a timeout instead of options."""
    group: Any = dist.group.WORLD
    x = mine((3,))
    group.allreduce(x).wait()
    group.allreduce([x], Op.MAX).wait()
    same(x, reduced((3,), torch.float32, Op.SUM))
    group.broadcast(x, 0).wait()
    x = mine((3,))
    group.reduce(x, 0, Op.MAX, timedelta(seconds=60)).wait()
    same(x, reduced((3,), torch.float32, Op.MAX) if RANK == 0 else mine((3,)))
    output = torch.empty(3)
    group.reduce_scatter(output, [mine((3,), seed=rank) for rank in range(SIZE)], Op.SUM).wait()
    same(output, reduced((3,), torch.float32, Op.SUM, seed=RANK))
    outputs = [torch.empty(3) for _ in range(SIZE)]
    group.allgather(outputs, mine((3,)), timedelta(seconds=60)).wait()
    same(outputs[NEXT], mine((3,), rank=NEXT))
    group.gather(outputs, mine((3,), seed=1), 0).wait()
    group.scatter(output, outputs, 0).wait()
    same(output, mine((3,), seed=1))
    row = torch.empty(3 * SIZE)
    group._allgather_base(row, mine((3,))).wait()
    group._reduce_scatter_base(output, row).wait()
    same(output, SIZE * mine((3,)))
    group.alltoall_base(row, row.clone(), [], []).wait()
    group.barrier(timedelta(seconds=60)).wait()
    group.barrier().wait()
    assert (group.rank(), group.size(), group.name()) == (RANK, SIZE, "gradientflow")


# ---- works and futures -----------------------------------------------------------------------------------------------


@on_ranks(2, 3)
def check_async() -> None:
    tensors = [mine((101 * i,), seed=i) for i in range(20)]
    works: list[Any] = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for i in reversed(range(20)):
        assert works[i].wait(timedelta(seconds=30))
        same(tensors[i], reduced((101 * i,), torch.float32, Op.SUM, i))
        assert works[i].is_completed()
        assert works[i].is_success()
        assert works[i].exception() is None
        assert works[i].result()[0] is tensors[i]
    tensors = [mine((1000,), seed=i) for i in range(20)]
    futures = [dist.all_reduce(tensor, async_op=True).get_future() for tensor in tensors]  # the works are dropped
    gc.collect()
    doubled = futures[7].then(lambda future: [2 * future.value()[0]])
    for i, future in enumerate(futures):
        value = future.wait()
        assert isinstance(value, list)
        assert value[0] is tensors[i]
        same(value[0], reduced((1000,), torch.float32, Op.SUM, i))
    same(doubled.wait()[0], 2 * tensors[7])
    work: Any = dist.barrier(async_op=True)
    deadline = time.monotonic() + scaled(30)
    while not work.is_completed():
        assert time.monotonic() < deadline
    assert work.get_future() is work.get_future()
    assert work.get_future().done()
    for i in range(10):  # nobody keeps anything
        dist.all_reduce(torch.full((50000,), float(i)), async_op=True)
    gc.collect()
    x = mine((4,))
    dist.all_reduce(x)
    same(x, reduced((4,), torch.float32, Op.SUM))


def check_a_rank_that_comes_later() -> None:
    """It waits for what another rank does after its asynchronous call."""
    x = mine((5000,))
    if RANK == 0:
        work: Any = dist.all_reduce(x, async_op=True)
        for rank in range(1, SIZE):
            dist.send(torch.ones(3), rank)
        work.wait()
    else:
        dist.recv(torch.zeros(3), 0)
        dist.all_reduce(x)
    same(x, reduced((5000,), torch.float32, Op.SUM))
    groups = [dist.new_group() for _ in range(2)]
    tensors = [mine((3000,), seed=number) for number in range(2)]
    order = (0, 1) if RANK == 0 else (1, 0)
    works = [dist.all_reduce(tensors[number], group=groups[number], async_op=True) for number in order]
    for work in works:
        work.wait()
    for number in range(2):
        same(tensors[number], reduced((3000,), torch.float32, Op.SUM, number))
        dist.destroy_process_group(groups[number])


def check_callbacks() -> None:
    """Callbacks may call the group too, whenever they run; the order is that in which they were registered."""
    order = []

    def gather(name: int, size: int) -> Callable[[Any], torch.Tensor]:
        def callback(future: Any) -> torch.Tensor:
            future.wait()
            order.append(name)
            output = torch.empty(SIZE * size)
            all_gather_single(output, mine((size,), seed=name))
            work: Any = dist.all_reduce(output, async_op=True)
            value: torch.Tensor = work.get_future().then(lambda inner: inner.value()[0] * 2).wait()
            return value

        return callback

    results = []
    for name in range(6):
        if name % (RANK + 2) == 0:
            time.sleep(0.01)  # the ranks are not in step
        futures: list[Any] = [dist.all_reduce(mine((3 + name,)), async_op=True).get_future() for _ in range(2)]  # type: ignore[union-attr]
        if name % (RANK + 3) == 0:
            futures[0].wait()
        results.append(futures[0].then(gather(2 * name, 4)).then(lambda done: done.wait() + 1))
        results.append(futures[1].then(gather(2 * name + 1, 5)))
    for name, result in enumerate(results):
        size = 5 if name % 2 else 4
        total = SIZE * torch.cat([mine((size,), rank=rank, seed=name) for rank in range(SIZE)])
        same(result.wait(), 2 * total + (name + 1) % 2)
    assert order == list(range(12))
    failing: Any = dist.barrier(async_op=True)
    failed = failing.get_future().then(lambda _: 1 // 0)
    with raises(ZeroDivisionError):
        failed.wait()
    done: list[Any] = []
    failing.get_future().add_done_callback(done.append)
    failing.get_future().then(lambda _: None).wait()
    assert done == [failing.get_future()]


# ---- between two ranks -----------------------------------------------------------------------------------------------


@on_ranks(2, 3)
def check_messages() -> None:
    if SIZE == 1:
        return
    for count in (1, 1000, 300000):  # all send first
        sending: Any = dist.isend(mine((count,)), NEXT)
        x = torch.empty(count)
        assert dist.recv(x, PREVIOUS) == PREVIOUS
        same(x, mine((count,), rank=PREVIOUS))
        sending.wait()
    first, second = torch.empty(200000), torch.empty(3)
    receiving: list[Any] = [dist.irecv(first, PREVIOUS, tag=1), dist.irecv(second, PREVIOUS, tag=2)]
    dist.isend(mine((3,)), NEXT, tag=2)  # the other order; nobody keeps tensor or work
    dist.isend(mine((200000,)), NEXT, tag=1)
    gc.collect()
    receiving[1].wait()
    receiving[0].wait()
    same(first, mine((200000,), rank=PREVIOUS))
    same(second, mine((3,), rank=PREVIOUS))
    if RANK == 0:
        sources = set()
        for _ in OTHERS:
            x = torch.empty(2, 3).t()
            source = dist.recv(x, tag=5)
            same(x, mine((3, 2), rank=source))
            sources.add(source)
        assert sources == set(OTHERS)
    else:
        dist.send(mine((2, 3)).new_tensor(numbers((3, 2), RANK)), 0, tag=5)
    x = torch.empty(7, dtype=torch.complex64)
    operations = [
        dist.P2POp(dist.isend, mine((7,), torch.complex64), NEXT),
        dist.P2POp(dist.irecv, x, PREVIOUS),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    same(x, mine((7,), torch.complex64, PREVIOUS))
    x = torch.empty(100)
    future = dist.irecv(x, PREVIOUS, tag=3).get_future().then(lambda value: value.wait()[0].sum().item())  # type: ignore[union-attr]
    dist.barrier()
    dist.send(torch.ones(100), NEXT, tag=3)
    assert future.wait() == 100
    dist.barrier()
    work = dist.irecv(torch.empty(3), PREVIOUS)
    with raises(CommunicationTimeoutError, "Timed out", f"the receive from rank {PREVIOUS}"):
        work.wait(timedelta(seconds=0.05))
    assert not work.is_completed()
    dist.barrier()
    dist.send(torch.zeros(2), NEXT)
    with raises(MismatchError, "of 12 bytes on rank", "met a message of 8 from rank"):
        work.wait()


# ---- groups ----------------------------------------------------------------------------------------------------------


@on_ranks(2, 3)
def check_groups() -> None:
    if SIZE == 1:
        return
    ranks = list(reversed(range(SIZE)))
    group: Any = dist.new_group(ranks, timeout=timedelta(seconds=60))
    members = dist.get_process_group_ranks(group)
    position = members.index(RANK)
    assert group.rank() == position
    gathered = torch.empty(SIZE)
    all_gather_single(gathered, torch.tensor([float(RANK)]), group=group)
    assert gathered.tolist() == members
    dist.destroy_process_group(group)
    with raises(ClosedError):
        group.allreduce(torch.zeros(1)).wait()
    reverse: Any = make_group(ranks)
    assert reverse.rank() == SIZE - 1 - RANK
    gathered = torch.empty(SIZE)
    reverse.all_gather_single(gathered, torch.tensor([float(RANK)])).wait()
    assert gathered.tolist() == ranks
    reverse.shutdown()
    reverse.shutdown()
    alone, groups = dist.new_subgroups(1)
    x = mine((3,))
    dist.all_reduce(x, group=alone)
    same(x, mine((3,)))
    assert alone is not None
    assert alone.size() == 1
    for each in groups:
        if each is alone:
            dist.destroy_process_group(each)
    pairs = [dist.new_group([0, rank]) for rank in range(1, SIZE)]
    for rank, pair in enumerate(pairs, 1):
        if RANK in (0, rank):
            x = torch.tensor([float(RANK)])
            dist.all_reduce(x, group=pair)
            assert x.item() == rank
            dist.broadcast(x, rank, group=pair)
            if rank == RANK:
                dist.send(torch.tensor([rank]), 0, group=pair)
            else:
                number = torch.tensor([0])
                assert dist.recv(number, group=pair) == rank
                assert number.item() == rank
            dist.destroy_process_group(pair)
    # PyTorch names what is made without the others by how many groups this rank is in (up to 2.13), or has made: the
    # numbers have to be the same on its ranks, and nothing can be made with the others afterwards.
    local = dist.new_group([0, SIZE - 1], use_local_synchronization=True) if RANK in (0, SIZE - 1) else None
    if local is not None:
        dist.barrier(group=local)


def make_group(ranks: list[int]) -> Any:
    """Make a group whose ranks have another order, which new_group would sort."""
    from gradientflow.torch.process_group import create

    options = C10D._DistributedBackendOptions()
    options.group_rank, options.group_size = ranks.index(RANK), len(ranks)
    options.global_ranks_in_group = ranks
    options.group_id = "reverse"
    options.timeout = timedelta(seconds=60)
    options.store = dist.PrefixStore("reverse", dist.distributed_c10d._get_default_store())
    return create(options, None)


def check_threads() -> None:
    if SIZE == 1:
        return
    groups = [dist.new_group(list(range(SIZE))) for _ in range(3)]

    def work(seed: int) -> None:
        for i in range(20):
            x = mine((100 * i,), seed=seed)
            dist.all_reduce(x, group=groups[seed])
            same(x, reduced((100 * i,), torch.float32, Op.SUM, seed))
            y = torch.empty(50)
            receiving: Any = dist.irecv(y, PREVIOUS, groups[seed], tag=i)
            dist.send(mine((50,), seed=seed), NEXT, groups[seed], tag=i)
            receiving.wait()
            same(y, mine((50,), rank=PREVIOUS, seed=seed))

    in_threads(work, range(len(groups)))


# ---- wrong use -------------------------------------------------------------------------------------------------------


def check_refusals() -> None:
    group: Any = dist.group.WORLD
    sparse = torch.sparse_coo_tensor([[0]], [1.0], (3,), check_invariants=True)
    with raises(ArgumentTypeError, "torch.sparse_coo", "to_dense"):
        dist.broadcast(sparse, 0)
    with raises(ArgumentTypeError, "CPU memory and on CUDA, not on meta"):
        dist.all_reduce(torch.empty(3, device="meta"))
    with raises(ArgumentTypeError, "BAND is not defined on torch.float32"):
        dist.all_reduce(torch.zeros(3), Op.BAND)
    with raises(ArgumentTypeError, "AVG is not defined on torch.bool"):
        dist.all_reduce(torch.zeros(3, dtype=torch.bool), Op.AVG)
    with raises(ArgumentTypeError, "SUM is not defined on torch.float8"):
        dist.all_reduce(torch.zeros(3).to(torch.float8_e4m3fn))
    with raises(ArgumentTypeError, "one dtype"):
        group.allgather([[torch.zeros(2, dtype=torch.int32)] * SIZE], [torch.zeros(2)])
    with raises(ArgumentError, f"one tensor for each of the {SIZE} ranks, not of {SIZE + 1}"):
        group.allgather([[torch.zeros(2)] * (SIZE + 1)], [torch.zeros(2)])
    with raises(ArgumentError, f"of {2 * SIZE} elements here, not of 1"):
        group.all_gather_single(torch.zeros(1), torch.zeros(2))
    with raises(ArgumentError, f"of {3 * SIZE} elements here, not of 5"):
        group.reduce_scatter_single(torch.zeros(3), torch.zeros(5))
    with raises(ArgumentError, "which are not"):
        group.all_to_all_single(torch.zeros(SIZE + 1), torch.zeros(SIZE), [1] * SIZE, [1] * SIZE)
    with raises(ArgumentError, "takes one tensor for each rank, not 2"):
        group.allreduce([torch.zeros(1), torch.zeros(1)])
    group = dist.distributed_c10d._get_default_group()
    with raises(ArgumentError, "lists of as many tensors, not of 0 and 1"):
        group.all_gather_single_coalesced([torch.ones(SIZE)], [])
    with raises(ArgumentError, "lists of as many tensors, not of 1 and 2"):
        group.reduce_scatter_single_coalesced([torch.ones(1)] * 2, [torch.ones(SIZE)])
    with raises(ArgumentTypeError, "a sequence of tensors, not 3"):
        group.all_gather_single_coalesced(3, [torch.ones(1)])
    for call in (group.allreduce, group.broadcast):
        with raises(ArgumentTypeError, "a sequence of tensors, not 3"):
            call(3)
    with raises(ArgumentTypeError, "a sequence of tensors, not 3"):
        group.allgather(3, torch.ones(1))
    with raises(ArgumentError, "tag -3"):
        group.send([torch.zeros(1)], NEXT, -3)
    with raises(ArgumentError, f"rank {SIZE} is not in the group"):
        group.broadcast(torch.zeros(1), SIZE)
    with raises(ArgumentTypeError, "no options"):
        dist.new_group(list(range(SIZE)), pg_options=object())
    if SIZE > 1:
        # A call that the ranks make differently fails on all of them, also where it is not waited for at once.
        work: Any = dist.all_reduce(torch.zeros(3 + (RANK == 0)), async_op=True)
        with raises(MismatchError, "the ranks made different calls"):
            work.wait()
        assert isinstance(work.exception(), MismatchError)
        future = dist.all_reduce(torch.zeros(3 + (RANK == 0)), async_op=True).get_future()  # type: ignore[union-attr]
        with raises(MismatchError, "the ranks made different calls"):
            future.wait()
    dist.barrier()


@on_ranks(2, 3)
def check_monitored_barrier() -> None:
    """The words of its errors are Gloo's, which PyTorch's tests look for."""
    group: Any = dist.new_group(list(range(SIZE)))
    group.monitored_barrier()
    came = f"Rank {RANK} successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
    if SIZE > 2:
        if RANK == 1:
            time.sleep(1.5)
            with raises(CommunicationTimeoutError, f"{came}rank 0: Timed out: Rank 0 failed to pass monitoredBarrier"):
                group.monitored_barrier(timedelta(seconds=0.1))
        else:
            begin = f"{came}rank 0: Timed out" if RANK else "Rank 0 timed out in monitoredBarrier"
            with raises(CommunicationTimeoutError, f"{begin}: Rank 1 failed to pass monitoredBarrier in 800 ms"):
                group.monitored_barrier(timedelta(seconds=0.8))
    dist.barrier()
    group.monitored_barrier(timedelta(seconds=30), wait_all_ranks=True)
    if RANK == 0 and SIZE > 1:
        begin = "Rank 0 timed out in monitoredBarrier: Rank"
        failed = "failed to pass monitoredBarrier in 0 ms"
        others = [str(rank) for rank in range(1, SIZE)]
        for together in (False, True):
            names = f"s {', '.join(others)}" if together and SIZE > 2 else " 1"
            then = f", and so did {', '.join(others[1:])}" if not together and SIZE > 2 else ""
            start = time.monotonic()
            with raises(CommunicationTimeoutError, f"{begin}{names} {failed}{then}"):
                group.monitored_barrier(timedelta(0), together)
            assert time.monotonic() - start < scaled(10)  # not the group's timeout
    dist.barrier()


def check_words_of_a_part() -> None:
    """Errors in a group of some ranks name them as the world does, and its timeout as what it is."""
    if SIZE < 3:
        raise SkipTest("for three ranks or more")
    members = list(range(1, SIZE))
    inner: Any = [dist.new_group(members, timeout=timedelta(seconds=1)) for _ in range(3)]
    if RANK == 1:
        wanted = "process group: Timed out ", "(timeout of the process group) on rank 1", "no sign of rank"
        with raises(CommunicationTimeoutError, *wanted):
            dist.barrier(inner[0])
        with raises(CommunicationTimeoutError, *wanted):
            dist.all_reduce(torch.zeros(3), group=inner[1], async_op=True).wait()  # type: ignore[union-attr]
        with raises(CommunicationTimeoutError, " Timed out ", "the receive from rank 2 with tag 4"):
            dist.recv(torch.zeros(3), 2, group=inner[2], tag=4)
        with raises(CommunicationTimeoutError, "Rank 1 timed out in monitoredBarrier: Rank 2 failed to pass"):
            inner[2].monitored_barrier(timedelta(0))
    dist.barrier()


@contextmanager
def process_group(settings: Mapping[str, str]) -> Iterator[tuple[()]]:
    os.environ["GRADIENTFLOW_NODE_SIZE"] = settings["node_size"]
    dist.init_process_group("gradientflow", timeout=timedelta(seconds=scaled(60)))
    try:
        assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (RANK, SIZE, "gradientflow")
        yield ()
    finally:
        dist.destroy_process_group()
    assert not dist.is_initialized()


if PLACE == "cuda":
    torch.set_default_device(DEVICE)
run_checks([{"node_size": argument} for argument in sys.argv[1:]], around=process_group)
