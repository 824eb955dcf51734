"""Collectives over NCCL, on tensors of CUDA devices, one to each rank: against what NumPy computes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from unittest import SkipTest

import numpy as np
from marks import on_ranks
from support import (
    DTYPES,
    OPS,
    RANK,
    SIZE,
    STORAGE,
    Array,
    communicator,
    difference,
    exact_inputs,
    expected,
    is_defined,
    raises,
    run,
    run_checks,
    same_bits,
    say,
    values_of,
)

import gradientflow as gf
from gradientflow._location import core
from gradientflow.device import DeviceArray, asarray
from gradientflow.errors import ArgumentError

DEVICE = RANK % core.device.count()
COUNTS = (0, 1, SIZE, 37, 1000 * SIZE, 5003)
ROUNDING = {"float16": 3e-3, "bfloat16": 3e-2, "float32": 1e-6, "float64": 1e-14}
NCCL = {"algorithm": "nccl"}


def to_device(storage: Array, dtype: str) -> DeviceArray:
    """Copy an array as NumPy stores it to this rank's device; bfloat16, which NumPy does not know, as its bits."""
    raw = asarray(storage, DEVICE)
    return DeviceArray(raw._owner, 0, raw.shape, dtype, DEVICE)


def room(count: int, dtype: str) -> DeviceArray:
    """Return an array on this rank's device with something in it that is no result."""
    return to_device(np.full(count, 77).astype(STORAGE[dtype]), dtype)


def from_device(array: DeviceArray, dtype: str) -> Array:
    return DeviceArray(array._owner, 0, array.shape, STORAGE[dtype].name, array.device).get()


def assert_is(found: DeviceArray, wanted: Array, dtype: str, op: str, what: str) -> None:
    """Compare a result; a mean is divided before it is added, so it is rounded elsewhere."""
    values = from_device(found, dtype)
    if op == "mean":
        close = np.allclose(
            values_of(values, dtype), values_of(wanted, dtype), rtol=ROUNDING[dtype], atol=4 * ROUNDING[dtype]
        )
        assert close, f"{what}: {difference(values, wanted)}"
    else:
        assert same_bits(values, wanted), f"{what}: {difference(values, wanted)}"


@on_ranks(1, 3)
def check_reductions(comm: gf.Communicator) -> None:
    for dtype in DTYPES:
        for op in OPS:
            if not is_defined(dtype, op):
                continue
            for count in COUNTS if dtype in ("float32", "int32") else (SIZE, 5003):
                what = f"{op} of {count} {dtype}"
                inputs = exact_inputs(dtype, count, seed=count)
                mine, result = inputs[RANK], expected(inputs, dtype, op)
                x, out = to_device(mine, dtype), room(count, dtype)
                comm.allreduce(x, op, out=out, **NCCL)
                assert_is(out, result, dtype, op, f"allreduce {what}")
                assert same_bits(from_device(x, dtype), mine), f"allreduce {what} changed its input"
                comm.allreduce(x, op, **NCCL)
                assert_is(x, result, dtype, op, f"allreduce {what} in place")

                x, root = to_device(mine, dtype), count % SIZE
                total = room(count, dtype) if root == RANK else None
                comm.reduce(x, root, op, out=total, **NCCL)
                if total is not None:
                    assert_is(total, result, dtype, op, f"reduce {what}")
                bounds = np.array_split(np.arange(count), SIZE)[RANK]
                out = room(bounds.size, dtype)
                comm.reduce_scatter(x, op, out=out, **NCCL)
                assert_is(out, result[bounds], dtype, op, f"reduce_scatter {what}")


@on_ranks(1, 3)
def check_moves(comm: gf.Communicator) -> None:
    for dtype in DTYPES:
        for count in (0, 1, 37, 20001) if dtype in ("float32", "int8") else (38,):
            what = f"of {count} {dtype}"
            inputs = exact_inputs(dtype, count, seed=count + 1)
            root = count % SIZE
            x = to_device(inputs[RANK], dtype)
            comm.broadcast(x, root, **NCCL)
            assert same_bits(from_device(x, dtype), inputs[root]), f"broadcast {what}"

            x, out = to_device(inputs[RANK], dtype), room(SIZE * count, dtype)
            comm.allgather(x, out=out, **NCCL)
            assert same_bits(from_device(out, dtype), np.concatenate(inputs)), f"allgather {what}"

            gathered = room(SIZE * count, dtype) if root == RANK else None
            comm.gather(x, root, out=gathered, **NCCL)
            if gathered is not None:
                assert same_bits(from_device(gathered, dtype), np.concatenate(inputs)), f"gather {what}"

            blocks = exact_inputs(dtype, SIZE * count, seed=count + 2)
            mine = slice(RANK * count, (RANK + 1) * count)
            out = room(count, dtype)
            comm.scatter(to_device(blocks[root], dtype) if root == RANK else None, root, out=out, **NCCL)
            assert same_bits(from_device(out, dtype), blocks[root][mine]), f"scatter {what}"

            out = room(SIZE * count, dtype)
            comm.alltoall(to_device(blocks[RANK], dtype), out=out, **NCCL)
            assert same_bits(from_device(out, dtype), np.concatenate([each[mine] for each in blocks])), (
                f"alltoall {what}"
            )

            for counts in ([count] * SIZE, [(rank * 7 + count) % 40 for rank in range(SIZE)]):
                inputs = [exact_inputs(dtype, max(counts), seed=5)[rank][:size] for rank, size in enumerate(counts)]
                out = room(sum(counts), dtype)
                comm.allgatherv(to_device(inputs[RANK], dtype), counts, out=out, **NCCL)
                assert same_bits(from_device(out, dtype), np.concatenate(inputs)), f"allgatherv of {counts} {dtype}"


@on_ranks(1, 3)
def check_not_a_number(comm: gf.Communicator) -> None:
    """max takes the number where another rank has one, unlike other algorithms."""
    x = np.array([np.nan, RANK, np.nan if RANK == 0 else RANK], np.float32)
    out = asarray(x, DEVICE)
    comm.allreduce(out, "max", **NCCL)
    last = SIZE - 1 if SIZE > 1 else np.nan
    assert np.array_equal(out.get(), np.array([np.nan, SIZE - 1, last], np.float32), equal_nan=True), out.get()


@on_ranks(1, 3)
def check_wire(comm: gf.Communicator) -> None:
    """Values that float16 has come through unchanged; what is too large for it becomes infinite, and is counted."""
    for algorithm in ["nccl"] + ["hierarchical"] * (comm.nodes > 1):
        for dtype in ("float16", "bfloat16"):
            for op in ("sum", "mean", "max"):
                for count in (1, 5003, 300, 0):
                    inputs = exact_inputs("float32", count, seed=count)
                    x = asarray(inputs[RANK], DEVICE)
                    handle = comm.allreduce_async(x, op, algorithm=algorithm, wire=dtype)
                    handle.wait()
                    assert handle.nonfinite == 0
                    what = f"{algorithm} {op} of {count} over {dtype}"
                    wanted = expected(inputs, "float32", op)
                    assert np.allclose(x.get(), wanted, rtol=ROUNDING[dtype], atol=4 * ROUNDING[dtype]), what
                    if op != "mean":
                        assert same_bits(x.get(), wanted), what
        values = np.full(1000, 1.0, np.float32)
        values[:3] = 6e4
        x, mean = asarray(values, DEVICE), asarray(values, DEVICE)
        handle = comm.allreduce_async(x, algorithm=algorithm, wire="float16")
        handle.wait()
        found = x.get()
        assert handle.nonfinite == (3 if SIZE > 1 else 0)
        assert np.isinf(found[:3]).all() == (SIZE > 1)
        assert np.isfinite(found[3:]).all()
        comm.allreduce(mean, "mean", algorithm=algorithm, wire="float16")
        assert np.allclose(mean.get(), values, rtol=3e-3), "a mean is divided before it can be too large"
    if SIZE > 1:
        with raises(ArgumentError, "NCCL does not add values that share a scale, as those of float8_e4m3"):
            comm.allreduce(mean, algorithm="nccl", wire="float8_e4m3")
        mean.set(2.0)
        handle = comm.allreduce_async(mean, wire="float8_e4m3")
        handle.wait()
        assert not handle.path.startswith("nccl")
        assert (mean.get() == 2 * SIZE).all()


def check_streams(comm: gf.Communicator) -> None:
    """Calls in the communicator's own stream and in the default one, without waiting in between."""
    arrays = [asarray(np.full(1000 + k, RANK + k, np.int64), DEVICE) for k in range(80)]
    handles = []
    for k, array in enumerate(arrays):
        if k % 3 == 0:
            handles.append(comm.allreduce_async(array, **NCCL))
        else:
            comm.allreduce(array, **NCCL)
    for handle in handles:
        handle.wait()
    for k, array in enumerate(arrays):
        assert (array.get() == sum(range(SIZE)) + k * SIZE).all(), k
    first, second = arrays[:2]
    for _ in range(5):  # each on the result of the one before
        comm.allreduce_async(second, **NCCL).wait()
        comm.allreduce(second, **NCCL)
    assert (second.get() == (sum(range(SIZE)) + SIZE) * SIZE**10).all()
    assert (first.get() == sum(range(SIZE))).all()


def check_two_communicators(comm: gf.Communicator) -> None:
    """Calls of two communicators in one stream, half of the time in the other order."""
    half = comm.split(RANK % 2)
    assert half is not None
    with half:
        for k in range(10):
            whole, part = asarray(np.full(999, RANK, np.int32), DEVICE), asarray(np.full(99, RANK, np.int32), DEVICE)
            for each in (comm, half) if k % 2 else (half, comm):
                each.allreduce(whole if each is comm else part, algorithm="nccl" if each.size > 1 else "auto")
            assert (whole.get() == sum(range(SIZE))).all()
            assert (part.get() == sum(range(RANK % 2, SIZE, 2))).all()


def check_hierarchical(comm: gf.Communicator) -> None:
    """Nodes of different sizes; so a mean cannot be the mean of means."""
    for dtype in DTYPES:
        for op in OPS:
            if not is_defined(dtype, op):
                continue
            for count in (0, 1, 5003) if dtype == "float64" else (999,):
                inputs = exact_inputs(dtype, count, seed=count)
                x, out = to_device(inputs[RANK], dtype), room(count, dtype)
                comm.allreduce(x, op, algorithm="hierarchical", out=out)
                what = f"hierarchical {op} of {count} {dtype}"
                assert_is(out, expected(inputs, dtype, op), dtype, op, what)
                comm.allreduce(x, op, algorithm="hierarchical")
                assert_is(x, expected(inputs, dtype, op), dtype, op, what)


def check_many_calls(comm: gf.Communicator) -> None:
    """More than there are events, and all still under way when the communicator is closed."""
    arrays = [asarray(np.full(100, RANK, np.float32), DEVICE) for _ in range(5)]
    for _ in range(40):
        for array in arrays:
            comm.allreduce(array, "mean", **NCCL)
    comm.close()
    assert np.allclose(arrays[0].get(), (SIZE - 1) / 2)


def refusals() -> None:
    """What NCCL cannot be used for is said, and other algorithms are there."""
    cases = {
        "NCCL is switched off": ({"nccl_library": "off"}, {}),
        "cannot be loaded: /no/libnccl.so.2": ({"nccl_library": "/no/libnccl.so.2"}, {}),
        "is NCCL 2.13.4; GradientFlow needs 2.14.0 or newer": ({}, {"NCCL_EMULATOR_VERSION": "21304"}),
        "rank 1 has NCCL 2": ({}, {"NCCL_EMULATOR_VERSION": f"2280{RANK}"}),
    }
    if core.device.count() < SIZE:
        cases = {"have the same device": ({}, {})}
    for reason, (config, variables) in cases.items():
        os.environ.update(variables)
        with gf.init(config=config) as comm:
            x = asarray(np.full(100, RANK + 1, np.float32), DEVICE)
            with raises(ArgumentError, "algorithm 'nccl'", reason):
                comm.allreduce(x, **NCCL)
            comm.allreduce(x)
            assert (x.get() == SIZE * (SIZE + 1) // 2).all()


@contextmanager
def with_nccl(settings: Mapping[str, object]) -> Iterator[tuple[gf.Communicator]]:
    """Make a communicator, where a real NCCL can be used."""
    if REASON:
        raise SkipTest(REASON)
    with communicator(settings) as given:
        yield given


def without_nccl() -> str:
    """Say why there is no NCCL here."""
    with gf.init() as comm:
        try:
            comm.allreduce(asarray(np.zeros(1, np.float32), DEVICE), **NCCL)
        except ArgumentError as error:
            return str(error)
    return ""


if __name__ == "__main__":
    if sys.argv[1:] == ["refused"]:
        run(refusals)
        say("done")
    else:
        REASON = without_nccl() if sys.argv[1:] == ["real"] else ""
        run_checks(around=with_nccl)
