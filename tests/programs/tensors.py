"""What the calls take as a tensor, and what they refuse; after every refusal the communicator works as before."""

from __future__ import annotations

import array
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
from marks import on_ranks
from support import RANK, SIZE, BFloat16, raises, run_checks, still_works

import gradientflow as gf
from gradientflow.errors import ArgumentError, ArgumentTypeError

TOTAL = SIZE * (SIZE + 1) // 2  # of RANK + 1 over all ranks
NOT_CONTIGUOUS = "is not contiguous in row-major order; make a contiguous copy first"
READ_ONLY = "is read-only"
UNSUPPORTED: list[Any] = [">f4", ">f8", ">i4", ">i8", ">f2", "c8", "c16", "O", "U3", "S4", "V4", [("a", "f4")]]
UNSUPPORTED += ["i2", "u2", "u4", "u8", "g", "M8[s]", "m8[s]"]
SUPPORTED = "supported are float16, bfloat16, float32, float64, int8, uint8, int32, int64 and bool"


def mine(dtype: object = np.float32) -> Any:
    return np.full(6, RANK + 1, dtype)


# ---- NumPy -----------------------------------------------------------------------------------------------------------


def check_numpy_layouts(comm: gf.Communicator) -> None:
    for shape in [(), (1,), (0,), (2, 3), (2, 0, 3), (1, 1, 5), (2,) * 10]:
        x = np.full(shape, RANK + 1, np.float32)
        assert comm.allreduce(x) is x
        assert (x == TOTAL).all()
    contiguous_anyway = [
        np.full((4, 6), RANK + 1.0)[1:3],
        np.full((6, 1), RANK + 1.0, order="F"),
        np.full(6, RANK + 1.0, order="F"),
        np.full((3, 8), RANK + 1.0)[1],
        np.full((1, 8), RANK + 1.0)[:, 2:5],
        np.full((5, 4), RANK + 1.0, order="F").T,
        np.zeros((4, 0)).T,
    ]
    for x in contiguous_anyway:
        assert (comm.allreduce(x) == TOTAL).all()
    strided = [
        np.zeros((4, 6))[:, ::2],
        np.zeros((4, 6))[:, 1:3],
        np.zeros(6)[::2],
        np.zeros(6)[::-1],
        np.zeros((3, 4)).T,
        np.zeros((3, 4), order="F"),
        np.zeros((2, 3, 4)).swapaxes(0, 1),
    ]
    for x in strided:
        before = x.copy()
        for call in calls_with(comm, x):
            with raises(ArgumentError, NOT_CONTIGUOUS):
                call()
        assert (x == before).all()
    still_works(comm)


def calls_with(comm: gf.Communicator, x: Any) -> list[Callable[[], Any]]:
    return [
        lambda: comm.allreduce(x),
        lambda: comm.allreduce_async(x),
        lambda: comm.broadcast(x),
        lambda: comm.broadcast_async(x),
        lambda: comm.reduce(x),
        lambda: comm.reduce_async(x),
        lambda: comm.allgather(x),
        lambda: comm.allgather_async(x),
        lambda: comm.reduce_scatter(x),
        lambda: comm.reduce_scatter_async(x),
        lambda: comm.alltoall(x, out=np.empty(1)),
        lambda: comm.alltoall_async(x, out=np.empty(1)),
        lambda: comm.gather(x),
        lambda: comm.gather_async(x),
        lambda: comm.allgatherv(x, [1] * SIZE, out=np.empty(1)),
        lambda: comm.scatter(x, root=RANK, out=np.empty(1)),
        lambda: comm.scatter_async(x, root=RANK, out=np.empty(1)),
        lambda: comm.send(x, (RANK + 1) % SIZE),
        lambda: comm.recv(x, (RANK + 1) % SIZE),
    ]


def check_misaligned(comm: gf.Communicator) -> None:
    """An array may begin anywhere in memory; whoever does not care for alignment must not get wrong numbers."""
    for dtype in (np.float32, np.float64, np.int32, np.int64, np.float16):
        for count in (5, 3001):
            raw = np.zeros(count * 8 + 16, np.uint8)
            x = raw[1 : 1 + count * np.dtype(dtype).itemsize].view(dtype)
            assert not x.flags.aligned
            x[:] = RANK + 1
            assert (comm.allreduce(x) == TOTAL).all()
            assert raw[0] == 0


def check_read_only(comm: gf.Communicator) -> None:
    frozen = mine()
    frozen.flags.writeable = False
    with raises(ArgumentError, "the tensor", READ_ONLY):
        comm.allreduce(frozen)
    with raises(ArgumentError, "the tensor", READ_ONLY):
        comm.allreduce(np.broadcast_to(np.float32(1), ()))
    still_works(comm)
    # As an input only:
    assert (comm.allreduce(frozen, out=mine()) == TOTAL).all()
    assert comm.allgather(frozen).shape == (SIZE, 6)
    assert (comm.reduce_scatter(frozen) == TOTAL).all()
    if RANK == 0:
        with raises(ArgumentError, READ_ONLY):
            comm.reduce(frozen, root=0)
        with raises(ArgumentError, READ_ONLY):
            comm.broadcast(frozen, root=SIZE)
    # The root of a broadcast and the others of a reduce only send.
    assert (comm.broadcast(frozen if RANK == 0 else mine()) == 1).all()
    reduced = comm.reduce(frozen if RANK > 0 else mine())
    assert (reduced == (TOTAL if RANK == 0 else RANK + 1)).all()
    reduced = comm.reduce(frozen, out=mine())
    assert (reduced == (TOTAL if RANK == 0 else RANK + 1)).all()
    with raises(ArgumentError, "out", READ_ONLY):
        comm.allreduce(mine(), out=frozen)
    assert (frozen == RANK + 1).all()
    still_works(comm)


def check_dtypes(comm: gf.Communicator) -> None:
    for dtype in UNSUPPORTED:
        x = np.zeros(4, dtype)
        for call in calls_with(comm, x):
            with raises(ArgumentTypeError, "the tensor has dtype", str(x.dtype), SUPPORTED):
                call()
    for dtype in ("<f4", "=f8", "|i1", "<i8", "q", "l", "?"):
        x = np.ones(4, dtype)
        assert (comm.allreduce(x, "max") == 1).all()
    with raises(ArgumentTypeError, "op 'mean' needs a floating dtype, not int32"):
        comm.allreduce(mine(np.int32), "mean")
    for op in ("sum", "mean", "prod"):
        with raises(ArgumentTypeError, f"op '{op}'", "bool"):
            comm.allreduce(np.ones(3, bool), op)
        with raises(ArgumentTypeError, f"op '{op}'", "bool"):
            comm.reduce_scatter_async(np.ones(3, bool), op)
    still_works(comm)


# ---- other objects ---------------------------------------------------------------------------------------------------


def check_what_is_no_tensor(comm: gf.Communicator) -> None:
    for x in ([1.0, 2.0], None, 3, 2.5, "text", {}, (1.0,), object(), bytes, lambda: None):
        for call in calls_with(comm, x):
            with raises(ArgumentTypeError, type(x).__name__):
                call()
        if x is not None:
            with raises(ArgumentTypeError, "out is a " + type(x).__name__):
                comm.allreduce(mine(), out=x)
    still_works(comm)


def check_buffers(comm: gf.Communicator) -> None:
    data = bytearray([RANK + 1] * 5)
    assert comm.allreduce(data) is data
    assert list(data) == [TOTAL] * 5
    for code in "bBilqfd":
        numbers = array.array(code, [RANK + 1] * 5)
        assert comm.allreduce(numbers) is numbers
        assert numbers.tolist() == [TOTAL] * 5
        assert comm.allgather(numbers).tolist() == [[TOTAL] * 5] * SIZE
    for code in "hHILQ":
        with raises(ArgumentTypeError, "the tensor has dtype"):
            comm.allreduce(array.array(code, [1]))
    view = memoryview(array.array("f", [RANK + 1] * 6)).cast("B").cast("f", (2, 3))
    assert comm.allreduce(view) is view
    assert view.tolist() == [[TOTAL] * 3] * 2
    with raises(ArgumentError, NOT_CONTIGUOUS):
        comm.allreduce(memoryview(bytearray(6))[::2])
    with raises(ArgumentError, READ_ONLY):
        comm.allreduce(b"123456")
    assert bytes(comm.allgather(b"12")[0]) == b"12"
    gathered = bytearray(2 * SIZE)
    assert comm.allgather(bytes([RANK, 7]), out=gathered) is gathered
    assert list(gathered) == [value for rank in range(SIZE) for value in (rank, 7)]
    still_works(comm)


class Broken:
    """Something whose __dlpack__ does not do what it should."""

    def __init__(self, result: object) -> None:
        self._result = result

    def __dlpack__(self, **_: object) -> object:
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result


def check_dlpack(comm: gf.Communicator) -> None:
    bits = np.full(4, 0x3F80, np.uint16)  # 1.0
    assert isinstance(comm.allreduce(BFloat16(bits)), BFloat16)
    assert bits.tolist() == [{1: 0x3F80, 2: 0x4000, 3: 0x4040}[SIZE]] * 4
    with raises(ArgumentTypeError, "give out="):
        comm.allgather(BFloat16(bits))
    with raises(ArgumentTypeError, "cannot be shared through DLPack", "no way"):
        comm.allreduce(Broken(BufferError("no way")))
    with raises(KeyboardInterrupt):
        comm.allreduce(Broken(KeyboardInterrupt()))
    with raises(ArgumentTypeError, "DLPack"):
        comm.allreduce(Broken(42))
    with raises(ArgumentTypeError, "DLPack"):
        comm.allreduce(Broken(None))
    still_works(comm)


# ---- out, root, op, algorithm ----------------------------------------------------------------------------------------


@on_ranks(1, 3)
def check_out(comm: gf.Communicator) -> None:
    x = mine()
    assert comm.allreduce(x, out=x) is x
    assert (x == TOTAL).all()
    x = mine()
    same_memory = x[:]
    assert comm.allreduce(x, out=same_memory) is same_memory
    assert (x == TOTAL).all()
    out = np.zeros((2, 3), np.float32)  # the shape is the user's business
    assert comm.allreduce(mine(), out=out) is out
    assert (out == TOTAL).all()
    with raises(ArgumentTypeError, "out has dtype float64, but the input has float32"):
        comm.allreduce(mine(), out=np.zeros(6))
    with raises(ArgumentError, "out has 7 elements, but the result has 6"):
        comm.allreduce(mine(), out=np.zeros(7, np.float32))
    with raises(ArgumentError, "out has 5 elements, but the result has", str(6 * SIZE)):
        comm.allgather(mine(), out=np.zeros(5, np.float32))
    with raises(ArgumentError, "out has 7 elements"):
        comm.reduce_scatter(mine(), out=np.zeros(7, np.float32))
    with raises(ArgumentError, "out", NOT_CONTIGUOUS):
        comm.allreduce(mine(), out=np.zeros(12, np.float32)[::2])
    long = np.zeros(12, np.float32)
    for x, out in ((long[:6], long[1:7]), (long[3:9], long[:6]), (long[:6], long[5:11])):
        with raises(ArgumentError, "input and output overlap in "):
            comm.allreduce(x, out=out)
    comm.allreduce(long[:6], out=long[6:])
    x = np.zeros(6 * SIZE, np.float32)
    with raises(ArgumentError, "out"):
        comm.allgather(x[:6], out=x)
    with raises(ArgumentError, "out"):
        comm.reduce_scatter(x, out=x[RANK * 6 : RANK * 6 + 6])
    with raises(ArgumentError, "input and output overlap in alltoall, which does not work in place"):
        comm.alltoall(x, out=x)
    with raises(ArgumentTypeError, "out has dtype float64, but the input has float32"):
        comm.alltoall(x, out=np.zeros(6 * SIZE))
    if RANK == 0:
        with raises(ArgumentError, "out has 5 elements, but the result has", str(6 * SIZE)):
            comm.gather(mine(), out=np.zeros(5, np.float32))
        with raises(ArgumentError, "out has 7 elements, but the result has 6"):
            comm.scatter(x, out=np.zeros(7, np.float32))
    else:
        with raises(ArgumentTypeError, f"scatter needs out= on rank {RANK}: only the root, rank 0, knows how long"):
            comm.scatter()
    still_works(comm)


@on_ranks(1, 3)
def check_blocks(comm: gf.Communicator) -> None:
    """Where every rank has a block of its own, there must be one for each."""
    if SIZE > 1:
        message = f"needs a tensor of one block for each of the {SIZE} ranks, but {SIZE + 1} elements do not divide by"
        with raises(ArgumentError, "alltoall " + message):
            comm.alltoall(np.zeros(SIZE + 1))
        if RANK == 0:
            with raises(ArgumentError, "scatter " + message):
                comm.scatter(np.zeros(SIZE + 1))
    right = [6] * SIZE
    for counts in (right[1:], [*right, 6], []):
        with raises(ArgumentError, f"counts must have a number of elements for each of the {SIZE} ranks"):
            comm.allgatherv(mine(), counts)
    with raises(ArgumentError, "counts"):
        comm.allgatherv(mine(), [-6, *right[1:]])
    with raises(ArgumentError, "out has 5 elements, but the result has", str(6 * SIZE)):
        comm.allgatherv(mine(), right, out=np.zeros(5, np.float32))
    still_works(comm)


@on_ranks(1, 3)
def check_wires(comm: gf.Communicator) -> None:
    """Only float32 can travel as something shorter, only in allreduce, and only in messages of our own."""
    for wire in ("float16", "bfloat16", "float8_e4m3"):
        for dtype in (np.float64, np.int32, np.int8, np.bool_):
            with raises(
                ArgumentTypeError, f"cannot travel as {wire}: float32 can, as float16, bfloat16 or float8_e4m3"
            ):
                comm.allreduce(mine(dtype), "max", wire=wire)
            with raises(ArgumentTypeError, "cannot travel"):
                comm.allreduce_async(mine(dtype), "max", wire=wire)
        with raises(ArgumentError, "algorithm 'mpi' has no wire"):
            comm.allreduce(mine(), algorithm="mpi", wire=wire)
    with raises(ArgumentTypeError, "a tensor of float16 cannot travel as bfloat16"):
        comm.allreduce(mine(np.float16), wire="bfloat16")
    for wire in ("float64", "int8", "float8", "half", "Float16"):
        with raises(ArgumentError, f"wire is one of float32, float16, bfloat16, float8_e4m3, not '{wire}'"):
            comm.allreduce(mine(), wire=wire)
    for call in (comm.broadcast, comm.reduce, comm.allgather, comm.reduce_scatter):
        try:
            call(mine(), wire="float16")
        except TypeError:
            continue
        raise AssertionError(f"{call} took a wire")
    # A wire on which nothing is lost is none.
    for dtype, wire in ((np.float32, "float32"), (np.float16, "float32"), (np.float16, "float16")):
        handle = comm.allreduce_async(mine(dtype), wire=wire)
        assert (handle.wait() == TOTAL).all()
        assert handle.nonfinite is None
    still_works(comm)


@on_ranks(1, 3)
def check_names_and_roots(comm: gf.Communicator) -> None:
    for root in (-1, SIZE, 10**6, -(2**31), 2**31 - 1):
        with raises(ArgumentError, f"root {root} is not a rank: ranks are 0 to {SIZE - 1}"):
            comm.broadcast(mine(), root)
        with raises(ArgumentError, f"root {root} is not a rank"):
            comm.reduce_async(mine(), root)
    for op in ("", "Sum", "average", "avg"):
        with raises(ArgumentError, f"unknown op '{op}'; choose from sum, mean, max, min, prod"):
            comm.allreduce(mine(), op)
        for call in (comm.gather, comm.scatter):
            with raises(ArgumentError, f"root {root} is not a rank"):
                call(mine(), root, out=np.empty(6 * SIZE, np.float32))
    known = "auto, ring, hierarchical, hierarchical_lanes, recursive_doubling, shared, mpi, nccl"
    for algorithm in ("", "rings", "NCCL", "AUTO"):
        with raises(ArgumentError, f"unknown algorithm '{algorithm}'; choose from {known}"):
            comm.allreduce(mine(), algorithm=algorithm)
        with raises(ArgumentError, "unknown algorithm"):
            comm.broadcast(mine(), algorithm=algorithm)
    for algorithm in ("ring", "recursive_doubling", "hierarchical", "hierarchical_lanes"):
        with raises(ArgumentError, f"algorithm '{algorithm}' does not serve broadcast, only allreduce"):
            comm.broadcast(mine(), algorithm=algorithm)
    for root in (2**40, "0", None, 0.5):
        try:
            comm.broadcast(mine(), root)
        except (TypeError, ValueError):
            continue
        raise AssertionError(f"nothing was raised for root {root!r}")
    if comm.nodes > 1:
        with raises(ArgumentError, "algorithm 'shared' works inside one node", f"{comm.nodes} nodes"):
            comm.allreduce(mine(), algorithm="shared")
    for nonsense in ({"op": None}, {"op": 3}, {"algorithm": None}, {"algorithm": 1.5}, {"op": ["sum"]}):
        try:
            comm.allreduce(mine(), **nonsense)
        except (TypeError, ValueError):
            continue
        raise AssertionError(f"nothing was raised for {nonsense}")
    still_works(comm)


def check_errors_on_one_rank(comm: gf.Communicator) -> None:
    """Wrong arguments are noticed before anything is sent: the rank can do it right and the others see nothing."""
    if RANK == SIZE - 1:
        with raises(ArgumentTypeError):
            comm.allreduce([1, 2, 3])
        with raises(ArgumentError):
            comm.broadcast(mine(), root=99)
        with raises(ArgumentError):
            comm.allreduce(np.zeros((3, 3)).T)
        with raises(ArgumentError):
            comm.empty(-1)
    still_works(comm)


# ---- node memory -----------------------------------------------------------------------------------------------------


@on_ranks(1, 3)
def check_empty(comm: gf.Communicator) -> None:
    for shape in (0, 5, (), (3,), (2, 3), (0, 3), [4, 5], np.int64(3), (np.int32(2), 2), range(2, 4)):
        for dtype in ("float32", np.float64, "int8", bool, np.dtype("int64")):
            x = comm.empty(shape, dtype)
            assert x.dtype == np.dtype(dtype)
            assert x.shape == np.zeros(shape if not isinstance(shape, range) else tuple(shape)).shape
            assert x.flags.c_contiguous
            assert x.flags.writeable
            assert x.ctypes.data % 64 == 0 or x.size == 0
            assert not x.any()
    for shape in (-1, (2, -3), (-2, -2), 2.5, "3", (2, 2.0), None, (None,), [[1, 2]]):
        with raises(ArgumentError, "shape"):
            comm.empty(shape)
    for shape in (2**41, (2**20, 2**20), (2**31, 2**31), 2**62, 2**63, 2**64, (2**40, 2**40)):
        with raises(ArgumentError, "1 TiB"):
            comm.empty(shape)
    for dtype in ("float17", "f3", 3, object(), "object", "O"):
        with raises(ArgumentTypeError):
            comm.empty(3, dtype)
    if importlib.util.find_spec("ml_dtypes") is None:
        with raises(ArgumentTypeError, "ml_dtypes"):
            comm.empty(3, "bfloat16")
    else:
        x = comm.empty(3, "bfloat16")
        x[:] = RANK + 1
        assert (comm.allreduce(x) == TOTAL).all()
    still_works(comm)


run_checks([{}, {"inline_bytes": 0}, {"node_size": 1}], by_mpi=[check_wires])
