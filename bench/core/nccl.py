"""NCCL as a peer on CUDA devices: its C functions, called directly through ctypes.

The communicator is blocking, as in most programs; the collectives run in the default stream.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gradientflow.device import empty

from .case import COLLECTIVES, ROOT, Case
from .data import Values
from .device import address
from .objects import from_all, from_root
from .peers import Contestant, NotServedError, mirrored

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator

_TYPES = {"int8": 0, "uint8": 1, "int32": 2, "int64": 4, "float16": 6, "float32": 7, "float64": 8}
_OPERATIONS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "mean": 4}
_STREAM = None  # default stream
_SUCCESS = 0

_POINTER, _COUNT, _NUMBER = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_ARGUMENTS = {
    "ncclAllReduce": [_POINTER, _POINTER, _COUNT, _NUMBER, _NUMBER, _POINTER, _POINTER],
    "ncclBroadcast": [_POINTER, _POINTER, _COUNT, _NUMBER, _NUMBER, _POINTER, _POINTER],
    "ncclReduce": [_POINTER, _POINTER, _COUNT, _NUMBER, _NUMBER, _NUMBER, _POINTER, _POINTER],
    "ncclAllGather": [_POINTER, _POINTER, _COUNT, _NUMBER, _POINTER, _POINTER],
    "ncclReduceScatter": [_POINTER, _POINTER, _COUNT, _NUMBER, _NUMBER, _POINTER, _POINTER],
}


class _UniqueId(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_byte * 128),)


class NcclPeer:
    """NCCL between the current devices of all ranks.

    If it cannot be used, there are no contestants, and the first rank that has a reason gives it.
    """

    _nccl: ctypes.CDLL

    def __init__(self, comm: Communicator) -> None:
        self._handle = ctypes.c_void_p()
        identity = _UniqueId()
        self._trouble = _first(comm, self._try(lambda: self._load(identity if comm.rank == ROOT else None)))
        if self._trouble is None:
            identity = _UniqueId.from_buffer_copy(from_root(comm, bytes(identity)))
            size, rank = comm.size, comm.rank
            self._trouble = _first(
                comm, self._try(lambda: self._nccl.ncclCommInitRank(ctypes.byref(self._handle), size, identity, rank))
            )

    def contestant(self, case: Case, source: Values | None = None) -> Contestant:
        """Make a contestant for a case on the device."""
        if self._trouble is not None:
            raise NotServedError(f"nccl was not measured: {self._trouble}")
        if source is not None:
            raise NotServedError("NCCL does not work on memory of the host")
        if case.collective in ("alltoall", "gather", "scatter", "barrier"):
            raise NotServedError(f"NCCL has no {case.collective} of its own")
        if case.collective == "reduce-scatter" and case.count % case.ranks:
            raise NotServedError("NCCL's reduce-scatter needs a size that divides evenly among the ranks")
        on_source = empty(case.input_count, case.dtype)
        in_place = COLLECTIVES[case.collective].in_place
        on_result = on_source if in_place else empty(case.result_count, case.dtype)
        mirror = mirrored(case, on_source, on_result)
        call = self._call(case, address(on_source), address(on_result))
        return Contestant("nccl", "nccl", "array", case.dtype, mirror.source_image, mirror.result_image, call, mirror)

    def close(self) -> None:
        """Destroy the communicator. Collective."""
        if self._handle:
            self._nccl.ncclCommDestroy(self._handle)

    def _call(self, case: Case, source: int, result: int) -> Callable[[], object]:
        """Bind a function to its arguments, which are converted beforehand."""
        nccl, kind = self._nccl, _TYPES[case.dtype]
        memory = ctypes.c_void_p(source), ctypes.c_void_p(result)
        end = self._handle, _STREAM
        operation = _OPERATIONS[case.op]
        share = ctypes.c_size_t(case.count // case.ranks)
        count = ctypes.c_size_t(case.count)
        if case.collective == "allreduce":
            return partial(nccl.ncclAllReduce, *memory, count, kind, operation, *end)
        if case.collective == "broadcast":
            return partial(nccl.ncclBroadcast, *memory, count, kind, ROOT, *end)
        if case.collective == "reduce":
            return partial(nccl.ncclReduce, *memory, count, kind, operation, ROOT, *end)
        if case.collective == "allgather":
            return partial(nccl.ncclAllGather, *memory, share, kind, *end)
        return partial(nccl.ncclReduceScatter, *memory, share, kind, operation, *end)

    def _load(self, identity: _UniqueId | None) -> None:
        """Load the library; one rank creates the identity of the communicator."""
        nccl = ctypes.CDLL(_library())
        nccl.ncclGetErrorString.restype = ctypes.c_char_p
        nccl.ncclGetErrorString.argtypes = [_NUMBER]

        def check(status: int, function: Callable[..., object], _: object) -> int:
            if status != _SUCCESS:
                text = nccl.ncclGetErrorString(status).decode(errors="replace")
                raise RuntimeError(f"{function.__name__} failed: {text}")
            return status

        nccl.ncclCommInitRank.argtypes = [ctypes.POINTER(ctypes.c_void_p), _NUMBER, _UniqueId, _NUMBER]
        nccl.ncclCommDestroy.argtypes = [ctypes.c_void_p]
        for name, arguments in _ARGUMENTS.items():
            getattr(nccl, name).argtypes = arguments
        for name in (*_ARGUMENTS, "ncclCommInitRank", "ncclGetUniqueId"):
            getattr(nccl, name).errcheck = check
        self._nccl = nccl
        if identity is not None:
            nccl.ncclGetUniqueId(ctypes.byref(identity))

    @staticmethod
    def _try(step: Callable[[], object]) -> str | None:
        """Run a step; give the text of its error, if any."""
        try:
            step()
        except (OSError, AttributeError, RuntimeError) as error:  # no library, another library, or an error of NCCL
            return str(error)
        return None


def _library() -> str:
    """Name the library, by the same rules as our communicators: as configured, from its package, or the system's."""
    configured = os.environ.get("GRADIENTFLOW_NCCL_LIBRARY", "auto")
    if configured not in ("auto", "off"):
        return configured
    with contextlib.suppress(ModuleNotFoundError):
        spec = importlib.util.find_spec("nvidia.nccl")
        for folder in (spec.submodule_search_locations if spec is not None else None) or ():
            if (path := Path(folder) / "lib" / "libnccl.so.2").exists():
                return str(path)
    return "libnccl.so.2"


def _first(comm: Communicator, trouble: str | None) -> str | None:
    """Agree on the error of the first rank that has one."""
    return next((text for text in from_all(comm, trouble) if text is not None), None)
