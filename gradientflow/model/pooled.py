"""Traffic of pools, for which the core determines the tensors that travel together."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from math import ceil, prod

from gradientflow._location import core
from gradientflow.memory import itemsize
from gradientflow.pools.base import native_threshold

from .cluster import Cluster
from .computation import Computation
from .costs import Call, Costs
from .traffic import CallSequence, EveryStep

_FLOAT, _INDEX = 4, 4  # bytes
_NUMBERS_BESIDE = 6  # numbers that a sparse pool sends in addition to its norms
_NO_LIMIT = 1 << 62
CHUNK_PASSES = 5 * _FLOAT  # bytes for each gradient: read it and its residual, write both, read its norm
SELECTION_PASSES = 6 * _FLOAT  # read gradient and residual, write the sum, compare, write residual, zero the gradient


class Allreduces:
    """Seconds of an allreduce, by its number of elements."""

    def __init__(self, costs: Costs, wire: str | None) -> None:
        self._costs, self._wire = costs, wire

    def seconds(self, elements: float) -> float:
        """Return the seconds of a call with this many elements."""
        return self._costs.seconds(Call("allreduce", int(elements), "float32", self._wire))


class Allgathers:
    """Seconds of an allgather of entries, by the number of entries that each rank contributes."""

    def __init__(self, costs: Costs, wire: str | None) -> None:
        self._costs = costs
        self._bytes = _INDEX + (itemsize(wire) if wire is not None and len(costs.cluster.nodes) > 1 else _FLOAT)

    def seconds(self, entries: float) -> float:
        """Return the seconds of a call in which each rank contributes this many entries."""
        return self._costs.seconds(Call("allgather", int(entries) * self._bytes, "uint8", in_node_memory=False))


def counts_of(computation: Computation) -> list[int]:
    """Return the elements of each tensor."""
    return [prod(shape) for shape in computation.shapes]


def _threshold(given: float | str, default: int) -> int:
    value = native_threshold(given)
    return default if value is None else int(value)


def _wire_of(computation: Computation, wire: str | None) -> str | None:
    """Return the dtype to which gradients are rounded between nodes; 16-bit gradients are not rounded."""
    return wire if computation.dtype == "float32" else None


def dense_traffic(
    computation: Computation, nodes: int, fusion_threshold: float | str, wire: str | None, algorithm: str
) -> EveryStep:
    """Return the traffic of a gradient pool: an allreduce of each range."""
    counts = counts_of(computation)
    width, wire = itemsize(computation.dtype), _wire_of(computation, wire)
    sizes = [count * width for count in counts]
    threshold = _threshold(fusion_threshold, core.selector.automatic_threshold(sum(sizes), nodes))
    return EveryStep(
        tuple(
            CallSequence((Call("allreduce", sum(counts[begin:end]), computation.dtype, wire, algorithm),), end)
            for begin, end in core.selector.fuse(sizes, threshold)
        )
    )


def chunk_traffic(
    computation: Computation,
    cluster: Cluster,
    density: float,
    chunk_size: int,
    fusion_threshold: float | str,
    wire: str | None,
    algorithm: str,
) -> EveryStep:
    """Return the traffic of a sparse pool: important chunks from anywhere in the pool, then the norms of all chunks."""
    ends = list(accumulate(counts_of(computation)))
    parameters = ends[-1] if ends else 0
    size = min(chunk_size, max(1, parameters))
    chunks = ceil(parameters / size)
    important = core.important_count(density, chunks)
    nodes = len(cluster.nodes)
    dtype, wire = computation.dtype, _wire_of(computation, wire)
    sizes = [size * itemsize(dtype)] * important
    default = core.selector.chunks_bytes if nodes > 1 else core.selector.automatic_threshold(sum(sizes), nodes)
    ranges = core.selector.fuse(sizes, _threshold(fusion_threshold, default))
    exchanges = []
    for begin, end in ranges:
        last = min(parameters, -(-end * chunks // important) * size)
        tensors = min(len(ends), bisect_left(ends, last) + 1)
        passes = (end - begin) / important * parameters * CHUNK_PASSES
        exchanges.append(
            CallSequence((Call("allreduce", (end - begin) * size, dtype, wire, algorithm),), tensors, passes)
        )
    norms = Call("allreduce", chunks + _NUMBERS_BESIDE, "float64", in_node_memory=False)
    return EveryStep(
        (*exchanges, CallSequence((norms,), len(ends))),
        passes_after=2.0 * important * size * _FLOAT,  # chunks are scattered to their places
        memory=float(parameters * _FLOAT + important * size * _FLOAT),
    )


def top_k_traffic(
    computation: Computation,
    cluster: Cluster,
    layers: Sequence[int],
    ratios: Sequence[float],
    *,
    merge_bytes: float | str = "auto",
    wire: str | None = None,
    algorithm: str = "auto",
    overlap: bool = True,
) -> EveryStep:
    """Return the traffic of a top-k pool: entries of layers that travel together, or whole layers if smaller."""
    counts = counts_of(computation)
    default = core.selector.entries_bytes if len(cluster.nodes) > 1 else _NO_LIMIT
    dtype, wire = computation.dtype, _wire_of(computation, wire)
    values = wire if wire is not None and len(cluster.nodes) > 1 else dtype
    least = _threshold(merge_bytes, default)
    messages = core.selector.top_k_messages(counts, list(layers), list(ratios), cluster.ranks, dtype, values, least)
    ends = list(accumulate(layers))  # tensors
    exchanges = []
    received = 0.0
    for begin, end, dense, nbytes in messages:
        first = ends[begin - 1] if begin else 0
        last = ends[end - 1] if end else 0
        elements = sum(counts[first:last])
        call = Call("allgather", nbytes, "uint8", in_node_memory=False)
        if dense:
            call = Call("allreduce", elements, dtype, wire, algorithm)
        else:
            received += nbytes * cluster.ranks
        exchanges.append(CallSequence((call,), last or len(counts), elements * SELECTION_PASSES * (not dense)))
    return EveryStep(
        tuple(exchanges), passes_after=2 * received, in_backward=overlap, memory=float(sum(counts) * _FLOAT + received)
    )


__all__ = [
    "CHUNK_PASSES",
    "SELECTION_PASSES",
    "Allgathers",
    "Allreduces",
    "chunk_traffic",
    "counts_of",
    "dense_traffic",
    "top_k_traffic",
]
