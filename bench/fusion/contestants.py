"""The contestants of ``gradientflow bench fusion``: ways to average all gradients of a model over the ranks.

Each has tensors of its own, in the order in which backpropagation produces them. It is told of each as soon as that is
written, and waited for at the end of the step:

- *per tensor*: one allreduce a tensor;
- *copy fusion*: tensors are copied into a buffer until it is full, one allreduce runs over the buffer, and its parts
  are copied back, as Horovod does it;
- *pool fusion*: `GradientPool`, whose tensors lie side by side, so that one allreduce takes many without a copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gradientflow.pool import GradientPool

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
        What it is, as results name it.
    threshold : float, str or None
        In bytes, of a pool, or of the buffer of copy fusion.
    tensors : sequence of array
        The gradients, flat, in the order of backpropagation; their means are there after a step.
    calls : int
        How many allreduces a step has.
    ready : callable
        Told the index of a tensor once that is written.
    wait : callable
        Returns when all tensors are averaged.
    copied : callable
        How many bytes have been copied into and out of buffers so far.
    close : callable
        Gives back what it holds; all ranks together.
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
        """What tells this contestant from the others."""
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
        """Where values are written to."""
        return self.tensors

    @property
    def results(self) -> Sequence[Values]:
        """Where the means are."""
        return self.tensors

    def push(self) -> None:
        """Nothing to do: values are where they are averaged."""

    def pull(self) -> None:
        """Nothing to do, likewise."""

    def call(self) -> None:
        """Average tensors that are written already."""
        ready = self.ready
        for index in range(len(self.tensors)):
            ready(index)
        self.wait()

    def steps(self, block_length: int) -> Steps:
        """Say how it is timed: backpropagation writes the tensors one by one, each a block over and over."""
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
    """One library's allreduce.

    Attributes
    ----------
    backend, wire : str
        Whose it is, and what values are rounded to on their way.
    bind : callable
        Makes the function that reduces an array in place.
    divisor : int
        What the result has to be divided by to be a mean.
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
    """Copies tensors into a buffer until that is full, reduces the buffer, and copies its parts back.

    A tensor that has the buffer for itself, or is larger, is reduced where it is. A division that makes the sum a mean
    costs no pass of its own: it is done while copying back.

    Parameters
    ----------
    tensors : sequence of array
        In the order in which they will be ready.
    buffer_bytes : int
        The size of the buffer.
    reducer : Reducer
        Whose allreduce it is.
    """

    def __init__(self, tensors: Sequence[Values], buffer_bytes: int, reducer: Reducer) -> None:
        self._copied = 0
        self._divisor = reducer.divisor
        self._groups: dict[int, _Group] = {}  # by the index of the last tensor
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
        """Give how many bytes have been copied so far."""
        return self._copied

    def ready(self, index: int) -> None:
        """Reduce what is fused with this tensor, if it is the last of them."""
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
    """Choose the tensors that are fused with each other: as many in a row as the buffer holds."""
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
    """Make all contestants for a model; all ranks together.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    case : Case
        The allreduce of all gradients, for element type and ranks.
    model : Model
        Whose gradients are exchanged.
    plan : FusionPlan
        Which variants there are.
    peers : sequence of Peer
        The other libraries.

    Yields
    ------
    FusionContestant
        With fresh tensors.
    """
    reducers = [_our_reducer(comm, case, wire) for wire in plan.wires]
    reducers += [_peer_reducer(name, peer, case) for name, peer in zip(plan.peers, peers, strict=True)]
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
    """Lay the tensors side by side in node memory, as a pool does."""
    lengths = [math.prod(shape) for shape in model.gradients]
    step = _ALIGNMENT // np.dtype(case.dtype).itemsize
    ends = np.cumsum([-(-length // step) * step for length in lengths])
    parts = np.split(comm.empty(int(ends[-1]), case.dtype), ends[:-1])
    return [part[:length] for part, length in zip(parts, lengths, strict=True)]
