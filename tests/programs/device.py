"""CUDA tensors of other kinds than our own, streams, errors, pools and timelines on devices."""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from marks import on_ranks
from support import RANK, SIZE, WORLD, expected, in_threads, raises, run_checks, same_bits

import gradientflow as gf
from gradientflow import _core, device
from gradientflow.errors import (
    ArgumentError,
    ArgumentTypeError,
    ClosedError,
    CommunicationTimeoutError,
    MismatchError,
    NodeMemoryError,
)

DEVICES = _core.device.count()
DEVICE = RANK % DEVICES
TOTAL = SIZE * (SIZE + 1) // 2  # of RANK + 1 over all ranks


def mine(count: int = 6, dtype: str = "float32") -> device.DeviceArray:
    return device.asarray(np.full(count, RANK + 1, dtype), DEVICE)


def still_works(comm: gf.Communicator) -> None:
    x = mine(3)
    comm.allreduce(x)
    assert x.get().tolist() == [TOTAL] * 3


class Interface:
    """What has the CUDA array interface alone, as Numba's arrays have."""

    def __init__(self, array: device.DeviceArray, **changes: Any) -> None:
        self._array = array
        self.shape = array.shape
        self.dtype = np.dtype(array.dtype)
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, **changes}


class Capsules:
    """What has DLPack alone, as JAX's arrays had: nobody knows the stream."""

    def __init__(self, array: device.DeviceArray) -> None:
        self._array = array
        self.streams: list[int | None] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        self.streams.append(stream)
        return self._array.__dlpack__(stream=stream)


# ---- arrays ----------------------------------------------------------------------------------------------------------


@on_ranks(1, 3)
def check_arrays(comm: gf.Communicator) -> None:
    for shape in [(), (3,), (0,), (2, 3), (4, 0, 2)]:
        for dtype in ("float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool"):
            values = np.random.default_rng(RANK).integers(0, 2, shape).astype(dtype)
            x = device.asarray(values, DEVICE)
            assert (x.shape, x.dtype, x.size, x.nbytes, x.device) == (shape, dtype, values.size, values.nbytes, DEVICE)
            assert same_bits(x.get(), values)
    assert device.empty(5, device=DEVICE).get().tolist() == [0] * 5
    assert device.empty((2, 2), "bfloat16", f"cuda:{DEVICE}").nbytes == 8
    assert device.empty(1).device == _core.device.current()
    assert device.empty(3, device=DEVICE).set(7).get().tolist() == [7, 7, 7]
    with raises(ArgumentError, "broadcast"):
        device.empty(3, device=DEVICE).set([1, 2])
    with raises(ArgumentError, f"there is no CUDA device {DEVICES}, there are {DEVICES}"):
        device.empty(3, device=DEVICES)
    with raises(ArgumentError, "a device is 'cpu', 'cuda'", "'gpu'"):
        device.empty(3, device="gpu")
    with raises(ArgumentTypeError, "cannot lie on a device"):
        device.asarray(np.array([object()]), DEVICE)
    assert "float32 on CUDA device" in repr(mine())
    still_works(comm)


@on_ranks(1, 3)
def check_protocols(comm: gf.Communicator) -> None:
    x = mine()
    assert comm.allreduce(Interface(x), label="x") is not None
    assert (x.get() == TOTAL).all()
    x = mine()
    for version_2 in (Interface(x, version=2, stream=None), Interface(x, strides=(4,))):
        x.set(RANK + 1)
        comm.allreduce(version_2)
        assert (x.get() == TOTAL).all()
    capsules = Capsules(mine())
    comm.allreduce(capsules, label="x")
    assert (capsules._array.get() == TOTAL).all()
    assert capsules.streams == [1]  # it was asked to put its work before the default stream
    handle = comm.allreduce_async(capsules)
    handle.wait()
    assert (capsules._array.get() == TOTAL * SIZE).all()
    gathered = comm.allgather(Interface(mine(2)))
    assert isinstance(gathered, device.DeviceArray)
    assert gathered.get().tolist() == [[rank + 1] * 2 for rank in range(SIZE)]
    x = mine()
    for changes, kind, message in (
        ({"strides": (8,)}, ArgumentError, "is not contiguous"),
        ({"strides": (3,)}, ArgumentError, "is not contiguous"),
        ({"data": (x._address, True)}, ArgumentError, "is read-only"),
        ({"typestr": ">f4"}, ArgumentTypeError, "has dtype >f4"),
        ({"typestr": "<c8"}, ArgumentTypeError, "has dtype <c8"),
        ({"mask": x}, ArgumentTypeError, "has a mask"),
    ):
        with raises(kind, message):
            comm.allreduce(Interface(x, **changes))
    still_works(comm)


def check_places(comm: gf.Communicator) -> None:
    """Everything that is in different places, or in the wrong one."""
    x, host = mine(), np.full(6, RANK + 1, np.float32)
    still_works(comm)  # from here on this is the communicator's device
    with raises(ArgumentError, f"out is in memory of the host, but the tensor is on CUDA device {DEVICE}"):
        comm.allreduce(x, out=host)
    with raises(ArgumentError, f"out is on CUDA device {DEVICE}, but the tensor is in memory of the host"):
        comm.allgather(host, out=device.empty(6 * SIZE, device=DEVICE))
    if DEVICES > 1:
        other = (DEVICE + 1) % DEVICES
        elsewhere = device.empty(6, device=other)
        with raises(ArgumentError, f"out is on CUDA device {other}, but the tensor is on CUDA device {DEVICE}"):
            comm.allreduce(x, out=elsewhere)
        for call in (comm.allreduce, comm.allreduce_async):
            with raises(ArgumentError, f"on CUDA device {other}", f"has served device {DEVICE} before"):
                call(elsewhere)
    if SIZE > 1:
        with raises(MismatchError, "rank 0: allreduce of 6 float32, op sum", "on CUDA devices"):
            comm.allreduce(host if RANK == 0 else x)
        with raises(MismatchError, "allreduce of 6 float32", "allreduce of 5 float32"):
            comm.allreduce(mine(6 - (RANK == SIZE - 1)))
    with raises(ArgumentError, "algorithm 'nccl' serves tensors on CUDA devices"):
        comm.allreduce(host, algorithm="nccl")
    with raises(ArgumentError, "algorithm 'ring' does not serve broadcast"):
        comm.broadcast(x, algorithm="ring")
    with raises(ArgumentTypeError, "op 'mean' needs a floating dtype"):
        comm.allreduce(mine(3, "int32"), "mean")
    with raises(ArgumentError, "out has 5 elements, but the result has 6"):
        comm.allreduce(x, out=device.empty(5, device=DEVICE))
    assert comm.allreduce(host.copy()).tolist() == [TOTAL] * 6
    still_works(comm)


def check_closed(_: gf.Communicator) -> None:
    comm = gf.init()
    x = mine()
    pool = gf.GradientPool(comm, [4], device=DEVICE)
    comm.allreduce(x)
    comm.close()
    for call in (comm.allreduce, comm.allreduce_async, comm.broadcast):
        with raises(ClosedError, "the communicator is closed"):
            call(x)
    with raises(ClosedError, "closed"):
        comm.empty(3, device=DEVICE)
    with raises(ClosedError, "closed"):
        pool.ready(0)
    assert pool.views[0].get().tolist() == [0] * 4  # the memory stays
    WORLD.Barrier()


@on_ranks(1, 3)
def check_memory(comm: gf.Communicator) -> None:
    x = comm.empty((3, 5), "float32", device=DEVICE)
    assert x.get().tolist() == np.zeros((3, 5)).tolist()
    x.set(RANK + 1)
    handle = comm.allreduce_async(x)
    assert handle.wait() is x
    assert (x.get() == TOTAL).all()
    assert comm.empty(0, device=DEVICE).size == 0
    with raises(NodeMemoryError, "cannot get 549755813888 bytes of memory of its device"):
        comm.empty(1 << 39, "uint8", device=DEVICE)
    if SIZE > 1:
        with raises(MismatchError, "allocate of"):
            comm.empty(64 + RANK, "uint8", device=DEVICE)
    still_works(comm)


# ---- calls -----------------------------------------------------------------------------------------------------------


def check_many_calls(comm: gf.Communicator) -> None:
    """One after the other, without waiting for the device, blocking and in the background, host and device mixed."""
    x, y, host = mine(1000), mine(3), np.ones(5)
    handles = []
    for turn in range(20):
        comm.allreduce(x, "max")
        handles.append(comm.allreduce_async(y, "max"))
        if turn % 3 == 0:
            comm.allreduce(host, "max")
    for handle in handles:
        handle.wait()
    assert (x.get() == SIZE).all()
    assert (y.get() == SIZE).all()


def check_threads(comm: gf.Communicator) -> None:
    """Two communicators, each used by a thread of its own."""
    parts = [comm.split(0), comm.split(0)]

    def work(part: Any) -> None:
        for count in (1, 1000, 70_000):
            x = mine(count)
            part.allreduce(x)
            assert (x.get() == TOTAL).all(), count

    in_threads(work, parts)
    for part in parts:
        part.close()


def check_point_to_point(comm: gf.Communicator) -> None:
    if SIZE == 1:
        return
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for count in (0, 1, 100_003):
        x, y = mine(count), device.empty(count, device=DEVICE)
        if RANK % 2 == 0:
            comm.send(x, right)
        comm.recv(y, left) if RANK % 2 or SIZE % 2 == 0 or RANK > 0 else None
        if RANK % 2:
            comm.send(x, right)
        if SIZE % 2 and RANK == 0:
            comm.recv(y, left)
        assert (y.get() == left + 1).all()
    received = np.zeros(3, np.float32)  # from a device to the host
    if RANK == 0:
        comm.send(mine(3), 1)
    elif RANK == 1:
        assert comm.recv(received, 0).tolist() == [1, 1, 1]


# ---- pools -----------------------------------------------------------------------------------------------------------

SHAPES: list[Any] = [(30, 20), 7, (), (0,), (100, 101), 16, (3001,)]


def fill(pool: gf.GradientPool, seed: int) -> list[list[np.ndarray]]:
    """Write random values into all views; return those of every rank, by tensor."""
    values = []
    for index, view in enumerate(pool.views):
        everybody = [
            np.random.default_rng([seed, index, rank]).standard_normal(view.shape).astype(view.dtype)
            for rank in range(SIZE)
        ]
        view.set(everybody[RANK])
        values.append(everybody)
    return values


def compare_means(comm: gf.Communicator, pool: gf.GradientPool, values: list[list[np.ndarray]]) -> None:
    """Inside a node the same bits as on the host; between nodes the order of additions is another."""
    for view, everybody in zip(pool.views, values, strict=True):
        flat = [np.ascontiguousarray(each).reshape(-1) for each in everybody]
        wanted, found = expected(flat, str(view.dtype), "mean"), view.get().reshape(-1)
        if comm.nodes == 1:
            assert same_bits(found, wanted), f"wrong mean in a tensor of shape {view.shape}"
        else:
            np.testing.assert_allclose(found, wanted, rtol=1e-3 if view.dtype == "float16" else 1e-5, atol=1e-3)


@on_ranks(1, 3)
def check_pool(comm: gf.Communicator) -> None:
    for dtype, threshold in (("float32", 0), ("float32", 5000), ("float16", math.inf), ("float64", "auto")):
        pool = gf.GradientPool(comm, SHAPES, dtype, fusion_threshold=threshold, device=DEVICE)
        assert pool.device == DEVICE
        assert pool.memory.nbytes == pool.nbytes
        for iteration in range(3):
            values = fill(pool, iteration)
            order = np.random.default_rng([iteration, RANK]).permutation(len(SHAPES))
            for index in order[:-2]:
                pool.ready(int(index))
            pool.ready()
            pool.wait(timeout=60)
            compare_means(comm, pool, values)
        assert pool.iteration == 3
        assert len(pool.reports) == len(pool.ranges)
        if dtype != "float64":
            assert pool.count_nonfinite() == 0
            pool.views[0].set(np.nan)
            assert pool.count_nonfinite() == 600
        pool.close()


def check_what_is_not_ready(comm: gf.Communicator) -> None:
    pool = gf.GradientPool(comm, [5, 1000, 3], fusion_threshold=0, device=DEVICE)
    for view in pool.views:
        view.set(RANK + 1)
    if RANK == 0:
        pool.ready(1)
    pool.wait()
    assert (pool.views[0].get() == 0).all()
    np.testing.assert_allclose(pool.views[1].get(), 1 / SIZE, rtol=1e-6)
    if RANK == 0:
        pool.views[0].set(5)
        pool.ready(0)
        pool.rollback()
    else:
        pool.wait()
    assert pool.iteration == 2
    with raises(ArgumentTypeError, "a stream is a number, or a stream of CuPy or PyTorch, not a str"):
        pool.ready(0, "stream")
    with raises(ArgumentError, "tensor 3 is not in the pool"):
        pool.ready(3)
    pool.ready(0)
    with raises(ArgumentError, "tensor 0 was already ready"):
        pool.ready(0)
    pool.wait()


def check_wire(comm: gf.Communicator) -> None:
    """Rounded on the device, counted where it overflows: only where values travel between nodes."""
    x = device.asarray(np.full(5000, 1.0 + RANK, np.float32), DEVICE)
    handle = comm.allreduce_async(x, "mean", wire="float16")
    handle.wait()
    np.testing.assert_allclose(x.get(), (SIZE + 1) / 2, rtol=2e-3)
    everyone = [np.random.default_rng(rank).standard_normal(5000).astype(np.float32) for rank in range(SIZE)]
    x = device.asarray(everyone[RANK], DEVICE)
    handle = comm.allreduce_async(x, "mean", wire="float8_e4m3")
    handle.wait()
    assert np.abs(x.get() - np.mean(everyone, axis=0)).max() <= (SIZE + 1) / 64 * np.abs(everyone).max()
    assert handle.nonfinite == (0 if comm.nodes > 1 else None)
    for wire in ("float16", "float8_e4m3"):
        handle = comm.allreduce_async(mine(0), wire=wire)
        handle.wait()
        assert handle.nonfinite == (0 if comm.nodes > 1 else None)
    x.set(60_000)
    handle = comm.allreduce_async(x, "sum", wire="float16")
    handle.wait()
    if comm.nodes > 1 and SIZE > 1:
        assert np.isinf(x.get()).all()
        assert handle.nonfinite == 5000
    else:
        assert (x.get() == 60_000 * SIZE).all()
        assert handle.nonfinite is None


def check_streams(comm: gf.Communicator) -> None:
    """Gradients that are written in several streams: the pool waits for each of them, and only for those."""
    made = [_core.device.CopyStream(DEVICE) for _ in range(3)]
    streams = [stream.address for stream in made]
    pool = gf.GradientPool(comm, [40_000] * 6, fusion_threshold=400_000, device=DEVICE)
    source = device.asarray(np.full(40_000, RANK + 1, np.float32), DEVICE)
    for _ in range(3):
        for index, view in enumerate(pool.views):
            stream = streams[index % 3]
            _core.device.copy(DEVICE, view._address, source._address, view.nbytes, stream)
            pool.ready(index, stream)
        pool.wait(stream=streams[0])
        for view in pool.views:
            host = np.zeros(40_000, np.float32)
            _core.device.read(DEVICE, view._address, host, host.nbytes, streams[0])
            assert (host == np.float32(TOTAL) / np.float32(SIZE)).all()


def check_timeout(comm: gf.Communicator) -> None:
    """A rank that comes late: the others' wait ends in time, and the iteration goes on."""
    if SIZE == 1:
        return
    pool = gf.GradientPool(comm, [10, 20_000], device=DEVICE)
    for view in pool.views:
        view.set(RANK + 1)
    if RANK == 0:
        time.sleep(0.5)
    pool.ready()
    if RANK > 0:
        with raises(CommunicationTimeoutError, "not averaged within 0.05 s; it goes on"):
            pool.wait(timeout=0.05)
    pool.wait()
    for view in pool.views:
        np.testing.assert_allclose(view.get(), (SIZE + 1) / 2)


@on_ranks(1, 3)
def check_timeline(comm: gf.Communicator) -> None:
    """The device's own times: an allreduce begins while later gradients are not ready yet."""
    with tempfile.TemporaryDirectory() as folder:
        comm.start_timeline(Path(folder) / "trace.json")
        pool = gf.GradientPool(comm, [50_000, 50_000], fusion_threshold=0, device=DEVICE)
        pool.ready(0)
        time.sleep(0.3)
        pool.ready(1)
        pool.wait()
        comm.allreduce(mine())
        pool.memory.get()
        pool.close()
        comm.stop_timeline()
        events = json.loads((Path(folder) / f"trace.rank{RANK}.json").read_text(encoding="utf-8"))
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    of_pool = [event for event in events if rows.get(event.get("tid"), "").startswith("gradient pool")]
    on_device = [event for event in of_pool if rows[event["tid"]].endswith(f"on CUDA device {DEVICE}")]
    ready = {event["name"]: event["ts"] for event in on_device if event["ph"] == "i"}
    spans = [event for event in on_device if event["ph"] == "X"]
    assert set(ready) == {"tensor 0 ready", "tensor 1 ready"}, rows
    assert ready["tensor 1 ready"] - ready["tensor 0 ready"] > 2e5
    assert [span["name"].partition(", range ")[2].split()[0] for span in spans] == ["0", "1"]
    assert all(span["dur"] >= 0 and span["args"]["path"] for span in spans)
    if SIZE > 1:
        assert ready["tensor 0 ready"] <= spans[0]["ts"] < ready["tensor 1 ready"], (ready, spans)
    assert any(name == f"collectives on CUDA device {DEVICE}" for name in rows.values()), rows


if __name__ == "__main__":
    run_checks([{"node_size": int(sys.argv[1]) if len(sys.argv) > 1 else 0}])
