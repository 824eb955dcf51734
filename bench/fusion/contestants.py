"""Contestants of ``gradientflow bench fusion``: ways to average all gradients of a model over the ranks.

Each has its own tensors, in the order of backpropagation. Each tensor is marked as ready as soon as it is written, and
the step ends with a wait:

- *per tensor*: one allreduce for each tensor;
- *copy fusion*: tensors are copied into a buffer until it is full, one allreduce runs over the buffer, and its parts
  are copied back, as in Horovod;
- *pool fusion*: `GradientPool`, whose tensors lie side by side, so that one allreduce reduces many without a copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gradientflow.pools.gradient import GradientPool

from ..core.case import Case
from ..core.data import Values
from ..core.measure import Steps, writer
from ..core.peers import OURS, Peer, then_divide
from ..core.plan import Threshold, format_threshold
from ..core.shapes import Model
from .plan import FusionPlan

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator

PER_TENSOR = "per-tensor"
COPY_FUSION = "copy-fusion"
POOL_FUSION = "pool-fusion"

_ALIGNMENT = 64

Key = tuple[str, str, str, Threshold | None, str]  # method, backend, memory, threshold, wire


@dataclass(frozen=True)
class FusionContestant:
    """One way to average the gradients of a model.

    Attributes
    ----------
    method, backend, memory, wire : str
        Names in results.
    threshold : float, str or None
        The threshold of a pool, or the buffer size of copy fusion, in bytes.
    tensors : sequence of array
        The gradients, flat, in the order of backpropagation; after a step their means.
    calls : int
        The number of allreduces in a step.
    ready : callable
        Takes the index of a tensor once it is written.
    wait : callable
        Returns when all tensors are averaged.
    copied : callable
        Gives the bytes copied into and out of buffers so far.
    close : callable
        Releases its resources. Collective.
    """

    method: str
    backend: str
    memory: str
    threshold: Threshold | None
    wire: str
    tensors: Sequence[Values]
    calls: int
    ready: Callable[[int], object]
    wait: Callable[[], object]
    copied: Callable[[], int] = lambda: 0
    close: Callable[[], object] = lambda: None

    @property
    def key(self) -> Key:
        """The key that identifies this contestant."""
        return self.method, self.backend, self.memory, self.threshold, self.wire

    @property
    def name(self) -> str:
        """The contestant in words."""
        by = "ours" if self.backend == OURS else self.backend
        details = [by, self.memory] if self.method == PER_TENSOR else [by]
        if self.threshold is not None:
            details.append(format_threshold(self.threshold))
        if self.wire != self.tensors[0].dtype.name:
            details.append(f"{self.wire} on the wire")
        return f"{self.method.replace('-', ' ')} ({', '.join(details)})"

    @property
    def inputs(self) -> Sequence[Values]:
        """The arrays for input values."""
        return self.tensors

    @property
    def results(self) -> Sequence[Values]:
        """The arrays with the means."""
        return self.tensors

    def push(self) -> None:
        """Do nothing: values are averaged in place."""

    def pull(self) -> None:
        """Do nothing: means are in place."""

    def call(self) -> None:
        """Average tensors that are already written."""
        ready = self.ready
        for index in range(len(self.tensors)):
            ready(index)
        self.wait()

    def steps(self, block_length: int) -> Steps:
        """Give the steps to time: backpropagation writes the tensors in turn, each with a repeated block."""
        writers = [writer(tensor, block_length) for tensor in self.tensors]
        numbered = list(enumerate(writers))
        ready = self.ready

        def write(block: Values) -> None:
            for write_tensor in writers:
                write_tensor(block)

        def backpropagate(block: Values) -> None:
            for index, write_tensor in numbered:
                write_tensor(block)
                ready(index)

        return Steps(write, self.call, backpropagate, self.wait)


@dataclass(frozen=True)
class Reducer:
    """The allreduce of one library.

    Attributes
    ----------
    backend, wire : str
        The library, and the dtype of its messages.
    bind : callable
        Makes the function that reduces an array in place.
    divisor : int
        The divisor that turns the result into a mean.
    """

    backend: str
    wire: str
    bind: Callable[[Values], Callable[[], object]]
    divisor: int = 1

    def bind_mean(self, array: Values) -> Callable[[], object]:
        """Make the function that replaces an array by its mean over the ranks."""
        call = self.bind(array)
        return call if self.divisor == 1 else then_divide(call, array, self.divisor)


class CopyFusion:
    """Copies tensors into a buffer until it is full, reduces the buffer, and copies its parts back.

    A tensor that would be alone in the buffer, or is larger, is reduced in place. The division that turns a sum into a
    mean needs no extra pass: it happens while copying back.

    Parameters
    ----------
    tensors : sequence of array
        The tensors, in the order in which they become ready.
    buffer_bytes : int
        The size of the buffer.
    reducer : Reducer
        The allreduce.
    """

    def __init__(self, tensors: Sequence[Values], buffer_bytes: int, reducer: Reducer) -> None:
        self._copied = 0
        self._divisor = reducer.divisor
        self._groups: dict[int, _Group] = {}  # groups by the index of their last tensor
        buffer = np.empty(buffer_bytes // tensors[0].itemsize, tensors[0].dtype)
        for group in fused_groups(tensors, buffer_bytes):
            if len(group) == 1:
                self._groups[group[0]] = _Group([], reducer.bind_mean(tensors[group[0]]))
                continue
            ends = np.cumsum([len(tensors[index]) for index in group]).tolist()
            parts = [
                (tensors[index], buffer[end - len(tensors[index]) : end])
                for index, end in zip(group, ends, strict=True)
            ]
            self._groups[group[-1]] = _Group(parts, reducer.bind(buffer[: ends[-1]]))
        self.calls = len(self._groups)

    def copied_bytes(self) -> int:
        """Give the bytes copied so far."""
        return self._copied

    def ready(self, index: int) -> None:
        """Reduce the group of this tensor, if it is the last of the group."""
        group = self._groups.get(index)
        if group is None:
            return
        for tensor, part in group.parts:
            self._copy(part, tensor)
        group.reduce()
        for tensor, part in group.parts:
            self._copy(tensor, part, self._divisor)

    def _copy(self, target: Values, source: Values, divisor: int = 1) -> None:
        if divisor == 1:
            np.copyto(target, source)
        else:
            np.divide(source, divisor, out=target)
        self._copied += source.nbytes


@dataclass(frozen=True)
class _Group:
    """Tensors that are reduced together, each with its part of the buffer."""

    parts: list[tuple[Values, Values]]
    reduce: Callable[[], object]


def fused_groups(tensors: Sequence[Values], buffer_bytes: int) -> list[list[int]]:
    """Group consecutive tensors, as many as fit the buffer."""
    groups: list[list[int]] = []
    room = -1
    for index, tensor in enumerate(tensors):
        if tensor.nbytes > room:
            groups.append([])
            room = buffer_bytes
        groups[-1].append(index)
        room -= tensor.nbytes
    return groups


def fusion_contestants(
    comm: Communicator, case: Case, model: Model, plan: FusionPlan, peers: Sequence[Peer]
) -> Iterator[FusionContestant]:
    """Make all contestants for a model, with fresh tensors. Collective."""
    reducers = [_our_reducer(comm, case, wire) for wire in plan.wires]
    reducers += [_peer_reducer(name, peer, case) for name, peer in zip(plan.peers, peers, strict=False)]
    for reducer in reducers:
        if reducer.backend == OURS:
            yield _per_tensor(reducer, "pool", _node_tensors(comm, case, model))
        yield _per_tensor(reducer, "array", _ordinary_tensors(case, model))
    for reducer in reducers:
        tensors = _ordinary_tensors(case, model)
        fusion = CopyFusion(tensors, plan.buffer_bytes, reducer)
        yield FusionContestant(
            *(COPY_FUSION, reducer.backend, "array", float(plan.buffer_bytes), reducer.wire, tensors, fusion.calls),
            ready=fusion.ready,
            wait=lambda: None,
            copied=fusion.copied_bytes,
        )
    for wire in plan.wires:
        for threshold in plan.thresholds:
            rounding = None if wire == case.dtype else wire
            pool = GradientPool(comm, model.gradients, case.dtype, fusion_threshold=threshold, wire=rounding)
            tensors = [view.reshape(-1) for view in pool.views]
            yield FusionContestant(
                *(POOL_FUSION, OURS, "pool", threshold, wire, tensors, len(pool.ranges)),
                ready=pool.ready,
                wait=pool.wait,
                close=pool.close,
            )


def _per_tensor(reducer: Reducer, memory: str, tensors: Sequence[Values]) -> FusionContestant:
    calls = [reducer.bind_mean(tensor) for tensor in tensors]
    return FusionContestant(
        *(PER_TENSOR, reducer.backend, memory, None, reducer.wire, tensors, len(calls)),
        ready=lambda index: calls[index](),
        wait=lambda: None,
    )


def _our_reducer(comm: Communicator, case: Case, wire: str) -> Reducer:
    rounding = {} if wire == case.dtype else {"wire": wire}
    return Reducer(OURS, wire, lambda array: partial(comm.allreduce, array, "mean", "auto", **rounding))


def _peer_reducer(name: str, peer: Peer, case: Case) -> Reducer:
    def bind(array: Values) -> Callable[[], object]:
        return peer.contestant(replace(case, size=array.nbytes, op="sum"), array).call

    return Reducer(name, case.dtype, bind, case.ranks)


def _ordinary_tensors(case: Case, model: Model) -> list[Values]:
    return [np.empty(math.prod(shape), case.dtype) for shape in model.gradients]


def _node_tensors(comm: Communicator, case: Case, model: Model) -> list[Values]:
    """Lay the tensors side by side in node memory, as in a pool."""
    lengths = [math.prod(shape) for shape in model.gradients]
    step = _ALIGNMENT // np.dtype(case.dtype).itemsize
    ends = np.cumsum([-(-length // step) * step for length in lengths])
    parts = np.split(comm.empty(int(ends[-1]), case.dtype), ends[:-1])
    return [part[:length] for part, length in zip(parts, lengths, strict=True)]
