"""The doors of the library, Python and C, have one contract: the same bad input is the same sentence at both.

The functions of C are called through ctypes, on the same tensors. Every row of a table is a call: a kind, and what is
said beside the tensors, which are of 12 float32 unless the row says otherwise.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
from marks import on_ranks
from mpi4py import MPI
from support import RANK, SIZE, WORLD, run_checks

import gradientflow as gf
from gradientflow.errors import ArgumentError, ArgumentTypeError, GradientFlowError, MismatchError

DTYPES = ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool"]
OPS = ["sum", "mean", "max", "min", "prod"]
ALGORITHMS = ["auto", "ring", "hierarchical", "hierarchical_lanes", "recursive_doubling", "shared", "mpi", "nccl"]
STATUS = {1: ArgumentError, 2: ArgumentTypeError, 3: MismatchError}
HAS_OP = ("allreduce", "reduce", "reduce_scatter")
HAS_ROOT = ("reduce", "broadcast", "gather", "scatter")

LIBRARY = ctypes.CDLL(str(Path(gf.__file__).parent / "lib" / "libgradientflow.so"))
LIBRARY.gf_last_error_message.restype = ctypes.c_char_p


class Options(ctypes.Structure):
    """gf_call_options."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("algorithm", ctypes.c_int),
        ("wire", ctypes.c_int),
        ("device", ctypes.c_int),
        ("stream", ctypes.c_void_p),
        ("label", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_size_t)),
        ("dimensions", ctypes.c_size_t),
    )


def c_communicator() -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    handle, size = ctypes.c_void_p(MPI._addressof(WORLD)), ctypes.c_size_t(MPI._sizeof(MPI.Comm))
    status = LIBRARY.gf_init_handle(handle, size, None, ctypes.byref(made))
    assert status == 0, LIBRARY.gf_last_error_message()
    return made


def through_c(comm: ctypes.c_void_p, kind: str, x: np.ndarray, out: np.ndarray, said: dict[str, Any]) -> Any:
    options = Options(ctypes.sizeof(Options), ALGORITHMS.index(said.get("algorithm", "auto")), 0, -1)
    if said.get("wire"):
        options.wire = DTYPES.index(said["wire"]) + 1
    if said.get("label") is not None:
        options.label = said["label"].encode()
        options.shape = (ctypes.c_size_t * x.ndim)(*x.shape)
        options.dimensions = x.ndim
    counts = said.get("counts")
    arguments: list[Any] = [comm, ctypes.c_void_p(x.ctypes.data)]
    if kind != "broadcast":
        arguments.append(ctypes.c_void_p(out.ctypes.data))
    blocks = SIZE if kind in ("alltoall", "scatter") else 1
    arguments.append((ctypes.c_size_t * SIZE)(*counts) if counts else ctypes.c_size_t(x.size // blocks))
    arguments.append(DTYPES.index(str(x.dtype)) + 1)
    if kind in HAS_OP:
        arguments.append(OPS.index(said.get("op", "sum")))
    if kind in HAS_ROOT:
        arguments.append(said.get("root", 0))
    status = getattr(LIBRARY, "gf_" + kind)(*arguments, ctypes.byref(options))
    return STATUS[status], LIBRARY.gf_last_error_message().decode()


def through_python(comm: gf.Communicator, kind: str, x: np.ndarray, out: np.ndarray, said: dict[str, Any]) -> Any:
    try:
        getattr(comm, kind)(x, **({} if kind == "broadcast" else {"out": out}), **said)
    except GradientFlowError as error:
        return type(error), str(error)
    raise AssertionError(f"{kind} with {said} was served")


TABLE: list[tuple[str, dict[str, Any]]] = [
    ("allreduce", {"dtype": "int32", "op": "mean"}),
    ("reduce", {"dtype": "bool", "op": "sum"}),
    ("reduce_scatter", {"dtype": "bool", "op": "prod"}),
    ("broadcast", {"root": SIZE}),
    ("reduce", {"root": -1}),
    ("gather", {"root": SIZE}),
    ("scatter", {"root": -1}),
    ("allreduce", {"wire": "int8"}),
    ("allreduce", {"wire": "float16", "dtype": "float64"}),
    ("allreduce", {"wire": "float16", "algorithm": "mpi"}),
    ("broadcast", {"algorithm": "ring"}),
    ("alltoall", {"algorithm": "recursive_doubling"}),
    ("allgather", {"algorithm": "hierarchical"}),
    ("allgather", {"algorithm": "nccl"}),
    ("allreduce", {"shift": 1}),
    ("reduce", {"shift": 2, "root": RANK}),
    ("alltoall", {"shift": 0}),
    ("reduce_scatter", {"shift": 0}),
]
BETWEEN_NODES: list[tuple[str, dict[str, Any]]] = [("allreduce", {"algorithm": "shared"})]
OF_SEVERAL: list[tuple[str, dict[str, Any]]] = [
    ("allreduce", {"op": OPS[RANK % 2]}),
    ("allreduce", {"dtype": "int32" if RANK else "float32"}),
    ("allreduce", {"label": f"tensor {RANK}"}),
    ("broadcast", {"label": "x", "shape": (6, 1, 2) if RANK else (2, 6)}),
    ("gather", {"label": "x" if RANK else None}),
    ("allgather", {"label": "x" * 300 + str(RANK)}),
    ("allgatherv", {"label": f"x{RANK}", "counts": [12] * SIZE}),
    ("allgatherv", {"counts": [12 if rank == RANK else 2**62 for rank in range(SIZE)]}),
]


@on_ranks(1, 2, 3)
def check_sentences(comm: gf.Communicator) -> None:
    of_c = c_communicator()
    own_block = (12 + SIZE - 1 - RANK) // SIZE
    lengths = {"allgather": 12 * SIZE, "allgatherv": 12 * SIZE, "gather": 12 * SIZE, "reduce_scatter": own_block}
    for kind, row in TABLE + (BETWEEN_NODES if comm.nodes > 1 else []) + (OF_SEVERAL if SIZE > 1 else []):
        said = dict(row)
        memory = np.zeros(14 * SIZE, said.pop("dtype", "float32"))
        x = memory[:12].reshape(said.pop("shape", (12,)))
        shift = said.pop("shift", None)
        length = lengths.get(kind, 12)
        out = np.zeros(length, x.dtype) if shift is None else memory[shift : shift + length]
        assert through_c(of_c, kind, x, out, said) == through_python(comm, kind, x, out, said), (kind, row)
    LIBRARY.gf_close(of_c)
    LIBRARY.gf_communicator_free(of_c)


run_checks()
