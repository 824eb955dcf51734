"""Collectives through memory of the devices that the ranks of a node map: each against NumPy and the host's path."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from support import OPS, RANK, SIZE, WORLD, Array, difference, expected, raises, run, same_bits, say, scaled

import gradientflow as gf
from gradientflow import _core
from gradientflow.device import DeviceArray, asarray
from gradientflow.errors import NodeMemoryError, PeerError

DEVICE = RANK % max(_core.device.count(), 1)
SLOT = 4096  # bytes; half of it serves at a time
REDUCING = ["allreduce", "reduce", "reduce_scatter"]
IN_PLACE = ["allreduce", "reduce", "broadcast"]
MOVING = ["broadcast", "allgather", "allgatherv", "alltoall", "gather", "scatter"]
FAULTY = 1
SOON = scaled(10.0)  # seconds within which everybody must know of a death


def small_numbers(count: int, seed: int, rank: int) -> Array:
    """Return numbers on which every order of additions gives the same bits."""
    return np.random.default_rng([seed, rank]).integers(-9, 9, count).astype(np.float32)


def uneven(count: int) -> list[int]:
    return [count * ((rank + count) % 3) // 2 for rank in range(SIZE)]


def block(count: int) -> slice:
    base, extra = divmod(count, SIZE)
    begin = RANK * base + min(RANK, extra)
    return slice(begin, begin + base + (extra > RANK))


def wanted(kind: str, inputs: list[Array], root: int, count: int) -> Array | None:
    """Return what this rank must get, if anything."""
    if kind in REDUCING:
        total = expected(inputs, "float32", "sum")
        if kind == "reduce_scatter":
            return total[block(count)]
        return total if kind == "allreduce" or root == RANK else None
    each = count // SIZE
    if kind == "broadcast":
        return inputs[root]
    if kind == "scatter":
        return inputs[root][RANK * each : (RANK + 1) * each]
    if kind == "alltoall":
        return np.concatenate([values[RANK * each : (RANK + 1) * each] for values in inputs])
    if kind == "allgatherv":
        return np.concatenate([values[:length] for values, length in zip(inputs, uneven(count), strict=True)])
    return np.concatenate(inputs) if kind == "allgather" or root == RANK else None


def call(comm: gf.Communicator, kind: str, x: Any, root: int, out: Any, count: int) -> Any:
    calls: dict[str, Callable[[], Any]] = {
        "allreduce": lambda: comm.allreduce(x, out=out),
        "reduce": lambda: comm.reduce(x, root, out=out),
        "reduce_scatter": lambda: comm.reduce_scatter(x, out=out),
        "broadcast": lambda: comm.broadcast(x, root),
        "allgather": lambda: comm.allgather(x, out=out),
        "allgatherv": lambda: comm.allgatherv(x, uneven(count), out=out),
        "alltoall": lambda: comm.alltoall(x, out=out),
        "gather": lambda: comm.gather(x, root, out=out),
        "scatter": lambda: comm.scatter(x if root == RANK else None, root, out=out),
    }
    return calls[kind]()


def cut(kind: str, values: Array, count: int) -> Array:
    """Return what of its values this rank puts in."""
    if kind in ("alltoall", "scatter"):
        return values[: count // SIZE * SIZE]
    return values[: uneven(count)[RANK]] if kind == "allgatherv" else values


def check_call(comm: gf.Communicator, kind: str, count: int, root: int, *, apart: bool) -> None:
    """Make a call on the device; `apart`: into a tensor of its own, where the call could work in place."""
    inputs = [small_numbers(count, count, rank) for rank in range(SIZE)]
    result = wanted(kind, inputs, root, count)
    mine = cut(kind, inputs[RANK] if kind != "broadcast" or root == RANK else np.zeros(count, np.float32), count)
    x = asarray(mine, DEVICE)
    out = None
    if kind == "scatter" or (result is not None and kind != "broadcast" and (apart or kind not in IN_PLACE)):
        out = asarray(np.full_like(result, 1), DEVICE)
    found = call(comm, kind, x, root, out, count)
    assert (kind == "gather" and root != RANK) == (found is None)
    what = f"{kind} of {count} with root {root}"
    if result is not None:
        got = (x if out is None else out).get()
        assert same_bits(got, result), f"{what} is wrong: {difference(got, result)}"
    if out is not None or result is None:
        assert same_bits(x.get(), mine), f"{what} changed its input"


def counts_around() -> list[int]:
    """Return counts around every border that the slots draw."""
    half = SLOT // 2 // 4
    each = half // SIZE // 16 * 16
    borders = [each * SIZE - 1, each * SIZE, each * SIZE + SIZE, half - 1, half, half + 1, 3 * half + 5]
    return sorted({0, 1, SIZE - 1, SIZE + 1, 97, *borders})


def check_all_sizes(comm: gf.Communicator) -> None:
    """Go through all kinds, sizes and roots."""
    for kind in (*REDUCING, *MOVING):
        for turn, count in enumerate(counts_around()):
            check_call(comm, kind, count, turn % SIZE, apart=turn % 2 == 0)


def random_floats(count: int, dtype: str) -> Array:
    return np.random.default_rng([RANK, count]).standard_normal(count).astype(dtype)


def check_against_the_host(comm: gf.Communicator) -> None:
    """Compare with the same calls on arrays of the host, bit for bit; also in memory of the devices of all ranks."""
    for dtype in ("float32", "float16", "float64"):
        for count in (1, 1000, 9001):
            values = random_floats(count, dtype)
            shared = comm.empty(count + 3, dtype, device=DEVICE)
            offset = RANK % 3
            for op in OPS:
                host = comm.allreduce(values.copy(), op)
                found = comm.allreduce(asarray(values, DEVICE), op).get()
                assert same_bits(found, host), f"allreduce of {count} {dtype}, op {op}: {difference(found, host)}"
                padded = np.full(count + 3, 7, dtype)
                padded[offset : offset + count] = values
                shared.set(padded)
                part = part_of(shared, offset, count)
                handle = comm.allreduce_async(part, op)
                found = handle.wait().get()
                assert handle.path == "device_memory", handle.path
                assert same_bits(found, host), f"in place, {count} {dtype}, op {op}: {difference(found, host)}"
                padded[offset : offset + count] = host
                assert same_bits(shared.get(), padded), "memory around the tensor was changed"
            host = comm.reduce_scatter(values.copy(), "mean")
            assert same_bits(comm.reduce_scatter(asarray(values, DEVICE), "mean").get(), host)
            host = comm.reduce(values.copy(), SIZE - 1, "mean")
            found = comm.reduce(asarray(values, DEVICE), SIZE - 1, "mean").get()
            assert RANK != SIZE - 1 or same_bits(found, host)


def part_of(array: DeviceArray, offset: int, count: int) -> DeviceArray:
    """Return elements of a device's array."""
    item = np.dtype(array.dtype).itemsize
    return DeviceArray(array._owner, offset * item, (count,), array.dtype, array.device)


class InStream:
    """An array whose values are ready in a stream of its own."""

    def __init__(self, array: DeviceArray, stream: int) -> None:
        self._array = array
        self.shape = array.shape
        self.dtype = array.dtype
        self.stream = stream

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self._array.__cuda_array_interface__, "stream": self.stream}


@contextmanager
def streams_of_a_user(number: int) -> Iterator[list[int]]:
    """Make streams, and wait for what is in them at the end."""
    streams = [_core.device.CopyStream(DEVICE) for _ in range(number)]
    yield [stream.address for stream in streams]
    for stream in streams:
        stream.wait()


def synchronize(stream: int) -> None:
    """Wait for what is in a stream."""
    word = asarray(np.zeros(1, np.uint8), DEVICE)
    _core.device.read(DEVICE, word._address, np.zeros(1, np.uint8), 1, stream)


def check_streams(comm: gf.Communicator) -> None:
    """Make calls in several streams, of every kind and size, and wait for nothing until the end."""
    choices = random.Random(5)
    started = []
    with streams_of_a_user(3) as streams:
        shared = comm.empty(3000, "float32", device=DEVICE)
        for turn in range(60):
            kind = choices.choice(["allreduce", "reduce_scatter", "allgather", "alltoall", "broadcast"])
            count = choices.choice([8 * SIZE, 500 * SIZE, 1500 * SIZE])
            inputs = [small_numbers(count, turn, rank) for rank in range(SIZE)]
            result = wanted(kind, inputs, 0, count)
            assert result is not None
            stream = choices.choice(streams)
            x = asarray(inputs[RANK], DEVICE)
            out = x if kind in ("allreduce", "broadcast") else asarray(np.zeros_like(result), DEVICE)
            call(comm, kind, InStream(x, stream), 0, None if out is x else InStream(out, stream), count)
            started.append((kind, count, x, out, result))
            if choices.random() < 0.2:
                comm.allreduce(InStream(shared, choices.choice(streams)))
    for kind, count, _, out, result in started:
        found = out.get()
        assert same_bits(found, result), f"{kind} of {count}: {difference(found, result)}"


def check_chain(comm: gf.Communicator) -> None:
    """Reduce the same arrays again and again in one stream: each call must see all of the last one."""
    with streams_of_a_user(1) as (stream,):
        for count in (10, 5000):
            arrays = [comm.empty(count, "int64", device=DEVICE), asarray(np.zeros(count, np.int64), DEVICE)]
            for array in arrays:
                array.set(RANK + 1)
            for _ in range(10):
                for array in arrays:
                    comm.allreduce(InStream(array, stream))
            synchronize(stream)
            total = np.full(count, SIZE * (SIZE + 1) // 2 * SIZE**9)
            for array in arrays:
                assert same_bits(array.get(), total)


def check_two_communicators(comm: gf.Communicator) -> None:
    """Make calls on two communicators in turn, in streams of their own."""
    with gf.init(config=gf.Config(device_slot_bytes=2 * SLOT)) as other:
        arrays = [[asarray(np.full(3000, RANK + 1.0 + turn), DEVICE) for turn in range(8)] for _ in range(2)]
        handles = []
        for first, second in zip(*arrays, strict=True):
            handles += [comm.allreduce_async(first), other.allreduce_async(second)]
        for handle in handles:
            handle.wait()
        for turn, pair in enumerate(zip(*arrays, strict=True)):
            for array in pair:
                assert (array.get() == SIZE * (SIZE + 1) / 2 + SIZE * turn).all()


def check_memory_comes_back(comm: gf.Communicator) -> None:
    """Make and drop more memory than the device has, on some ranks sooner than on others."""
    kept = []
    for turn in range(12):
        array = comm.empty(1 << 20, "float32", device=DEVICE)
        assert not array.get().any(), "new memory is not zero-filled"
        array.set(1)
        comm.allreduce(array)
        assert (array.get() == SIZE).all()
        if turn % 3 == RANK % 3:
            kept.append(array)
        if len(kept) > 1:
            kept.clear()
        del array
    comm.barrier()


def with_room(main: Any) -> None:
    with gf.init(config=gf.Config(device_slot_bytes=SLOT)) as comm:
        main(comm)


def path_of(comm: gf.Communicator) -> str:
    handle = comm.allreduce_async(asarray(np.ones(5, np.float32), DEVICE))
    assert (handle.wait().get() == SIZE).all()
    return str(handle.path)


def values() -> None:
    """Run all that compares values."""

    def everything(comm: gf.Communicator) -> None:
        assert path_of(comm) == ("device_staged" if SIZE > 1 else "alone")
        check_all_sizes(comm)
        if SIZE > 1:
            check_against_the_host(comm)
        check_two_communicators(comm)

    with_room(everything)


def large() -> None:
    """Run what takes several pieces of many slices, of which every rank reduces one."""
    with gf.init(config=gf.Config(device_slot_bytes=2 << 20)) as comm:
        x = asarray(np.zeros(700_001, np.float32), DEVICE)
        for turn in range(3):
            values = random_floats(700_001 - turn, "float32")
            host = comm.allreduce(values.copy())
            part = part_of(x, turn, values.size)
            padded = np.zeros(x.size, np.float32)
            padded[turn:] = values
            x.set(padded)
            found = comm.allreduce(part).get()
            assert same_bits(found, host), difference(found, host)
            assert not x.get()[:turn].any()


def order() -> None:
    """Run what shows a missing order, with delays in the streams."""
    with_room(check_streams)
    with_room(check_chain)


def memory() -> None:
    """Run what memory does: given back, and missing on one rank."""
    with_room(check_memory_comes_back)
    with gf.init(config=gf.Config(device_slot_bytes=SLOT)) as comm:
        path_of(comm)
        hog = asarray(np.zeros(20 << 20, np.uint8), DEVICE) if RANK == FAULTY else None
        with raises(
            NodeMemoryError, f"rank {FAULTY} cannot get {20 << 20} bytes of memory of its device: CUDA: out of memory"
        ):
            comm.empty(20 << 20, "uint8", device=DEVICE)
        del hog
        assert comm.empty(20 << 20, "uint8", device=DEVICE).size == 20 << 20
        assert path_of(comm) == "device_staged"


def trouble() -> None:
    """Make calls where the ranks do not reach each other's memory: by way of the host, and all know why."""
    with gf.init() as comm:
        paths = path_of(comm)
        array = comm.empty(1000, "float32", device=DEVICE).set(np.full(1000, RANK + 1))
        assert (comm.allreduce(array).get() == SIZE * (SIZE + 1) / 2).all()
        say("trouble", paths, comm.describe()["device_memory"])


def no_slot() -> None:
    """Leave no memory for a slot on one rank."""
    hog = asarray(np.zeros(30 << 20, np.uint8), DEVICE) if RANK == FAULTY else None
    trouble()
    del hog


def death() -> None:
    """Kill a rank in the middle of calls."""
    comm = gf.init(config=gf.Config(device_slot_bytes=SLOT))
    x = asarray(np.ones(1000, np.float32), DEVICE)
    path_of(comm)
    start = time.monotonic()
    try:
        for turn in range(10_000):
            if RANK == FAULTY and turn == 20:
                os.kill(os.getpid(), signal.SIGKILL)
            comm.allreduce(x)
    except PeerError as error:
        if f"rank {FAULTY} " not in str(error):
            raise
        assert time.monotonic() - start < SOON
        say("survived", RANK)
        with contextlib.suppress(PeerError):
            comm.barrier()
    comm.close()
    os._exit(0)  # MPI's own end would wait for the dead rank


PARTS = {f.__name__: f for f in (values, large, order, memory, trouble, no_slot, death)}

if __name__ == "__main__":
    run(PARTS[sys.argv[1]])
    WORLD.Barrier()
