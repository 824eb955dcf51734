"""What the rank programs share: running to an end on all ranks, expecting errors, and tensors to calculate with."""

from __future__ import annotations

import ctypes
import hashlib
import inspect
import itertools
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import SkipTest, mock

import numpy as np
import paths  # noqa: F401
from numpy.typing import NDArray
from pace import scaled
from saying import say, tell  # noqa: F401
from world import HAS_MPI, WORLD

from gradientflow import Communicator, Config, init
from gradientflow.model import fit
from gradientflow.strategies.predict import explanation

Array = NDArray[Any]


TRANSPORTS = ("mpi", "tcp") if HAS_MPI else ("tcp",)
_TRANSPORT = "GRADIENTFLOW_TRANSPORT"
RANK: int = WORLD.rank
SIZE: int = WORLD.size

# The nodes of most checks: one; one for each rank; and nodes of two, of which the last may have one.
_LAYOUTS: list[dict[str, Any]] = [{}, {"node_size": 1}, {"node_size": 2}]
LAYOUTS = {1: _LAYOUTS[:1], 2: _LAYOUTS[:2], 3: _LAYOUTS[::2]}.get(SIZE, _LAYOUTS[2:])

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTEGERS = ["int8", "uint8", "int32", "int64"]
DTYPES = [*FLOATS, *INTEGERS, "bool"]
OPS = ["sum", "mean", "max", "min", "prod"]

# How NumPy stores each element type; bfloat16, which it does not know, as its bits.
STORAGE: dict[str, np.dtype[Any]] = {name: np.dtype("uint16" if name == "bfloat16" else name) for name in DTYPES}


def is_defined(dtype: str, op: str) -> bool:
    """Tell whether op is defined on dtype."""
    if dtype == "bool":
        return op in ("max", "min")
    return op != "mean" or dtype in FLOATS


def require_same_state(state: Any, what: object) -> None:
    """Raise unless all ranks have the same state: numbers, arrays and tensors, in dictionaries and lists."""
    everyone = WORLD.allgather(dict(_leaves(state, "")))
    for path in everyone[0] | everyone[RANK]:
        theirs, mine = (each.get(path, "nothing") for each in (everyone[0], everyone[RANK]))
        assert mine == theirs, f"{what}: {path} is {mine} on rank {RANK} and {theirs} on rank 0"


def bits(arrays: Any) -> bytes:
    """Return the bytes of an array or several, of NumPy or PyTorch."""
    if not hasattr(arrays, "dtype"):
        return b"".join(map(bits, arrays))
    if hasattr(arrays, "untyped_storage"):
        arrays = arrays.detach().contiguous().view(-1).view(sys.modules["torch"].uint8).cpu().numpy()
    return np.ascontiguousarray(arrays).tobytes()


def same_everywhere(arrays: Any) -> None:
    """Raise unless all ranks have the same bits in an array or several."""
    everyone = WORLD.allgather(hashlib.sha256(bits(arrays)).digest())
    differ = [rank for rank, each in enumerate(everyone) if each != everyone[RANK]]
    assert not differ, f"ranks {differ} have other bits than rank {RANK}"


def flat(arrays: Any) -> NDArray[np.float32]:
    """Return all elements in one row."""
    return np.concatenate([np.asarray(array, np.float32).reshape(-1) for array in arrays])


def mine(count: int = 10, factor: int = 1) -> NDArray[np.float64]:
    """Make what this rank puts into a sum."""
    return np.full(count, factor * (RANK + 1), np.float64)


def still_works(comm: Communicator) -> None:
    """Check sums of few and of many elements."""
    for count in (3, 5000, 200_000):
        assert (comm.allreduce(np.full(count, comm.rank + 1)) == comm.size * (comm.size + 1) // 2).all()


def _leaves(state: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Give what can be compared, by what leads to it."""
    if isinstance(state, Mapping):
        for key, each in state.items():
            yield from _leaves(each, f"{path}/{key}")
    elif isinstance(state, list | tuple):
        for index, each in enumerate(state):
            yield from _leaves(each, f"{path}/{index}")
    else:
        yield path, state.tolist() if hasattr(state, "tolist") else state


def run(main: Callable[[], None]) -> None:
    """Run a program on this rank; an exception ends the whole job at once, with its traceback."""
    try:
        main()
    except BaseException:
        print(f"rank {RANK}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        WORLD.Abort(1)


@contextmanager
def communicator(settings: Mapping[str, Any]) -> Iterator[tuple[Communicator]]:
    """Make a communicator for a check."""
    with init(config=Config(**settings)) as comm:
        yield (comm,)


@contextmanager
def nothing(_: Mapping[str, Any]) -> Iterator[tuple[()]]:
    """Make nothing for a check, which makes all itself."""
    yield ()


@contextmanager
def over(transport: str) -> Iterator[None]:
    """Have communicators exchange messages over "mpi" or "tcp"; those over TCP meet through MPI."""
    before = os.environ.get(_TRANSPORT, "auto")
    os.environ[_TRANSPORT] = before if transport == "auto" else transport
    try:
        yield
    finally:
        os.environ[_TRANSPORT] = before


def run_checks(
    settings: Sequence[Mapping[str, Any]] = ({},),
    *,
    once: Sequence[Callable[..., None]] = (),
    by_mpi: Sequence[Callable[..., None]] = (),
    sends: bool = False,
    around: Callable[[Mapping[str, Any]], AbstractContextManager[tuple[Any, ...]]] = communicator,
) -> None:
    """Run the checks of the program, the functions check_*, each under all settings, also after one has failed.

    Settings that make nodes take turns with the transports, and so do checks and numbers of ranks: the first settings
    of the first check are over MPI with 2 and 4 ranks, over TCP with 3 and 5. Checks that send messages under any
    settings (`sends`) run over both. Those in `by_mpi`, which need MPI, and settings without nodes are left to the
    environment.

    Those in `once` run under no settings. `around` makes what a check is called with: a communicator of its own, unless
    said otherwise. A rank whose check fails leaves `around`, so that the other ranks do not wait for it. A check may
    raise SkipTest, on all ranks. pytest names the checks to run, and a file for the outcomes.
    """
    checks = {
        name: each
        for name, each in vars(sys.modules["__main__"]).items()
        if name.startswith("check_") and inspect.isfunction(each) and each.__module__ == "__main__"
    }
    selected = os.environ["CHECKS"].split(",") if "CHECKS" in os.environ else [*checks]
    failures = 0
    for number, (name, check) in enumerate(checks.items()):
        if name not in selected:
            continue
        tell(RANK, begun=name)
        failure, skipped = "", "" if settings or check in once else f"not with {SIZE} ranks"
        cases = [({}, "auto")] if check in once else _cases(number, settings, sends, check in by_mpi)
        if check in by_mpi and not HAS_MPI:
            cases, skipped = [], "needs MPI"
        for each, transport in cases:
            try:
                with over(transport), around(each) as given:
                    check(*given)
            except SkipTest as reason:
                skipped = str(reason)
            except Exception:
                text = f"rank {RANK}: {name} with {each} over {transport}:\n{traceback.format_exc()}\n"
                print(text, file=sys.stderr, flush=True)
                failure += text
            WORLD.Barrier()
        failure = "".join(WORLD.allgather(failure))
        failures += failure != ""
        tell(RANK, ended=name, failure=failure, skipped=skipped)
    if failures:
        sys.exit(1)


def _cases(
    number: int, settings: Sequence[Mapping[str, Any]], sends: bool, by_mpi: bool
) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Give all settings with the transports that the check of this number is to be tried with."""
    turns = itertools.islice(itertools.cycle(TRANSPORTS), (number + SIZE) % 2, None)
    for each in settings:
        if SIZE == 1 or by_mpi or not (sends or int(each.get("node_size", 0))):
            yield each, "auto"
        elif sends:
            yield from ((each, transport) for transport in TRANSPORTS)
        else:
            yield each, next(turns)


def in_threads(work: Callable[[Any], object], arguments: Iterable[Any]) -> None:
    """Call work with each argument in a thread of its own; an exception in one of them is raised here."""
    failures: list[BaseException] = []

    def guarded(argument: Any) -> None:
        try:
            work(argument)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=[each], daemon=True) for each in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=scaled(40))
        assert not thread.is_alive(), f"a thread hangs; failures so far: {failures}"
    if failures:
        raise failures[0]


@contextmanager
def quick_link() -> Iterator[None]:
    """Measure less than usual while explanations are made."""
    with (
        mock.patch.object(explanation, "SIZES", (256, 4096, 16_384)),
        mock.patch.multiple(fit, _PASSED=1 << 16, _REST=0.0, _BUDGET=0.05),
    ):
        yield


@contextmanager
def raises(kind: type[BaseException], *fragments: str) -> Iterator[None]:
    """Expect an exception of exactly this kind, whose message holds all the fragments."""
    caught: BaseException | None = None
    try:
        yield
    except BaseException as error:
        caught = error
    if type(caught) is not kind:
        raise AssertionError(f"expected {kind.__name__}, not {type(caught).__name__}: {caught}") from caught
    for fragment in fragments:
        assert fragment in str(caught), f"{fragment!r} is not in {str(caught)!r}"


# ---- bfloat16 without a framework ------------------------------------------------------------------------------------


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_BFLOAT = 4  # DLPack's code


class BFloat16:
    """The bits of an array, offered through DLPack (the form from before version 1) as bfloat16."""

    def __init__(self, bits: Array) -> None:
        self._bits = bits
        self._shape = (ctypes.c_int64 * 1)(bits.size)
        self._tensor = _Tensor(
            bits.ctypes.data, _Device(1, 0), 1, _DataType(_BFLOAT, 16, 1), self._shape, None, 0, None, None
        )

    def __dlpack__(self) -> Any:
        # The library keeps the capsule while it needs the memory; here the test keeps this object, and so the memory.
        return _new_capsule(ctypes.addressof(self._tensor), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def as_tensor(storage: Array, dtype: str) -> Any:
    """Return what the library takes for an array that stores elements of that dtype."""
    return BFloat16(storage) if dtype == "bfloat16" else storage


def widen(bits: Array) -> NDArray[np.float32]:
    """Return the values of bfloat16 numbers."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrow(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to bfloat16, to nearest even; any NaN becomes the plain one."""
    bits = values.view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


# ---- the oracle ------------------------------------------------------------------------------------------------------


def values_of(storage: Array, dtype: str) -> Array:
    """Return numbers to calculate with: 16-bit floats as float32."""
    if dtype == "bfloat16":
        return widen(storage)
    return storage.astype(np.float32) if dtype == "float16" else storage


def store(values: Array, dtype: str) -> Array:
    """Return numbers as they are stored."""
    return narrow(values.astype(np.float32)) if dtype == "bfloat16" else values.astype(STORAGE[dtype])


# The first of two equal numbers is kept (0.0 and -0.0 are equal), and NaN wins.
COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "mean": np.add,
    "prod": np.multiply,
    "max": lambda a, b: np.where((a >= b) | (a != a), a, b),
    "min": lambda a, b: np.where((a <= b) | (a != a), a, b),
}


def expected(inputs: list[Array], dtype: str, op: str) -> Array:
    """Reduce in rank order, 16-bit floats in float32 and rounded once; integers wrap around."""
    values = [values_of(each, dtype) for each in inputs]
    combine = COMBINE[op]
    with np.errstate(all="ignore"):
        result = values[0].copy()
        for each in values[1:]:
            result = combine(result, each)
        if op == "mean":
            result = result / result.dtype.type(len(inputs))
        return store(result, dtype)


def exact_inputs(dtype: str, count: int, seed: int, *, overflow: bool = True) -> list[Array]:
    """Make every rank's input: numbers on which every order of operations gives the same bits.

    Floats hold small powers of two. Integers have their whole range, or, without `overflow`, one so small that the
    results for up to five ranks fit into it.
    """
    random = np.random.default_rng([seed, DTYPES.index(dtype)])
    inputs = []
    for _ in range(SIZE):
        if dtype == "bool":
            inputs.append(random.integers(0, 2, count).astype(np.bool_))
        elif dtype in INTEGERS:
            limits = np.iinfo(dtype)
            lowest, highest = (limits.min, limits.max) if overflow else (max(limits.min, -2), 2)
            inputs.append(random.integers(lowest, highest, count, dtype=dtype, endpoint=True))
        else:
            inputs.append(store(random.choice(np.float32([-4, -2, -1, 1, 2, 4]), count), dtype))
    return inputs


def same_bits(left: Array, right: Array) -> bool:
    """Compare two arrays byte for byte."""
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def difference(found: Array, wanted: Array) -> str:
    """Describe where two arrays differ first."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return f"{found.dtype}{found.shape} instead of {wanted.dtype}{wanted.shape}"
    differing = np.flatnonzero(found != wanted)
    first = differing[0] if differing.size else 0
    return f"{differing.size} of {wanted.size} differ, first [{first}]: {found[first]} instead of {wanted[first]}"
