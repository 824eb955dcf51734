"""Schedule of a call: the messages and bytes that every rank of a real or imagined cluster sends.

The core's own selector names the algorithm; the counts below follow the algorithm's schedule (kernels/collective).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from gradientflow._location import core
from gradientflow.errors import ArgumentError
from gradientflow.memory import itemsize
from gradientflow.wires import Wire, check_wire, wires

from .cluster import Cluster, Counts, members_of, parts_of

_LINE = 64  # bytes: tensors are cut at cache lines

_Count = TypeVar("_Count", int, Counts)


@dataclass(frozen=True)
class Schedule:
    """The messages of a call.

    Attributes
    ----------
    path : str
        The algorithm, as in `Communicator.describe`.
    rounds : int
        Number of messages on the longest path, on which each message waits for the one before.
    messages, sent : numpy.ndarray
        Number of messages that each rank sends, and their bytes.
    leaving : numpy.ndarray
        Bytes that the ranks of each node send to other nodes.
    inside : int
        Bytes that the ranks of the largest node read and write in shared memory.
    """

    path: str
    rounds: int
    messages: Counts
    sent: Counts
    leaving: Counts
    inside: int = 0


class Lane(NamedTuple):
    """The messages of a lane, a list of ranks: arrays by its members; `rounds` as in `Schedule`."""

    rounds: int
    messages: Counts
    sent: Counts


def schedule_of(
    cluster: Cluster,
    kind: str,
    count: int,
    dtype: str = "float32",
    *,
    wire: str | None = None,
    algorithm: str = "auto",
    in_node_memory: bool = True,
) -> Schedule:
    """Return the messages of a call.

    Parameters
    ----------
    cluster : Cluster
        Cluster of the ranks that take part.
    kind : {"allreduce", "allgather", "barrier"}
        The call.
    count : int
        Number of elements that each rank contributes.
    dtype : str
        Dtype of the elements.
    wire : str, optional
        Format to which values are rounded between nodes, as in `Communicator.allreduce`.
    algorithm : str
        Same as in `Communicator.allreduce`.
    in_node_memory : bool
        True if the tensors lie in memory that the ranks of a node share, as in pools.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If there is no model of such a call, there is no such wire, or the algorithm does not support the call.
    """
    check_wire(wire)
    element = itemsize(dtype)
    rounds = wire is not None and len(cluster.nodes) > 1
    path, between, _ = cluster.selector.path_of(kind, count * element, rounds, algorithm, in_node_memory)
    travels = wires()[wire] if rounds and wire else Wire(element, 0, dtype)
    made = _Schedules(cluster, count, element, travels, in_node_memory)
    if path in ("announcement", "node_memory", "direct", "staged", "alone"):
        return made.inside_node(path)
    if kind == "barrier":
        return made.agreement(path, 0)
    if kind == "allgather":
        return made.agreement(path, count * element) if path == "agreement" else made.allgather(path)
    if kind == "allreduce":
        return made.allreduce(path, between)
    raise ArgumentError(f"there is no model of {kind}")


class _Schedules:
    def __init__(self, cluster: Cluster, count: int, element: int, wire: Wire, in_node_memory: bool) -> None:
        self.cluster, self.count, self.element, self.wire = cluster, count, element, wire
        self.is_staged = cluster.largest_node > 1 and not in_node_memory
        self.core = core.selector
        self.nodes = len(cluster.nodes)
        self.segment = cluster.selector.segment_bytes

    def inside_node(self, path: str) -> Schedule:
        nothing = np.zeros(self.cluster.ranks, np.int64)
        passes = 0 if path in ("alone", "announcement") else 2 if path in ("node_memory", "direct") else 6
        inside = passes * self.count * self.element * self.cluster.largest_node
        return Schedule(path, 0, nothing, nothing, np.zeros(1, np.int64), inside)

    def agreement(self, path: str, along: int) -> Schedule:
        return self._with_agreement(path, along, [])

    def allreduce(self, path: str, between: str) -> Schedule:
        if path == "agreement":
            return self.agreement(path, self.count * self.element)
        everybody = np.arange(self.cluster.ranks)
        if path in ("hierarchical", "hierarchical_lanes"):
            number = min(self.cluster.nodes) if path == "hierarchical_lanes" else 1
            lanes = [
                (np.asarray(members_of(self.cluster, local)), self._lane(between, self.nodes, int(count)))
                for stretch in self._stretches()
                for local, count in enumerate(parts_of(stretch, number, _LINE // self.element))
                if count
            ]
            passes = 6 if self.is_staged else 2
            return self._with_agreement(path, 0, lanes, passes * self.count * self.element * self.cluster.largest_node)
        if path == "pairwise" and self._parts_travel_along():
            return self._pairwise_along()
        if path in ("ring", "recursive_doubling", "pairwise"):
            return self._with_agreement(path, 0, [(everybody, self._lane(path, len(everybody), self.count))])
        raise ArgumentError(f"there is no model of an allreduce by {path!r}")

    def _stretches(self) -> list[int]:
        """Return the sizes of the parts in which ordinary arrays pass through node memory."""
        length = self.cluster.selector.stretch_bytes // _LINE * _LINE // self.element
        if not self.is_staged or self.count <= length:
            return [self.count]
        return [length] * (self.count // length) + [self.count % length]

    def allgather(self, path: str) -> Schedule:
        ranks = self.cluster.ranks
        segment = self.segment // self.element * self.element if path == "ring" else self.segment
        pieces = -(-self.count * self.element // segment)
        each = np.full(ranks, (ranks - 1) * self.count * self.element, np.int64)
        lane = Lane(ranks - 1 if path == "ring" else 1, np.full(ranks, (ranks - 1) * pieces, np.int64), each)
        return self._with_agreement(path, 0, [(np.arange(ranks), lane)], ring=path == "ring")

    # ---- the agreement on a call ---------------------------------------------------------------------------------

    def _with_agreement(
        self, path: str, along: int, lanes: list[tuple[Counts, Lane]], inside: int = 0, ring: bool | None = None
    ) -> Schedule:
        ring = path == "ring" if ring is None else ring
        messages = np.zeros(self.cluster.ranks, np.int64)
        sent = np.zeros(self.cluster.ranks, np.int64)
        leaving = np.zeros(self.nodes, np.int64)
        leaders = self.cluster.first_ranks
        direct = self.core.is_direct(self.nodes)
        number = np.full(self.nodes, self.nodes - 1) if direct else _sends_in_doubling(self.nodes)
        messages[leaders] += number
        sent[leaders] += number * (self.core.statement_bytes + along)
        leaving += sent[leaders]
        rounds = 1 if direct else _rounds_of_doubling(self.nodes)
        longest = 0
        for members, lane in lanes:
            messages[members] += lane.messages
            sent[members] += lane.sent
            longest = max(longest, lane.rounds)
            leaving += self._leaving(members, lane, ring)
        return Schedule(path, rounds + longest, messages, sent, leaving, inside)

    def _leaving(self, members: Counts, lane: Lane, ring: bool) -> Counts:
        """Return the bytes that leave each node."""
        node_of = self.cluster.node_of[members]
        if len(members) == self.nodes:
            return lane.sent
        if ring:
            crossing = node_of != np.roll(node_of, -1)
            share = crossing.astype(float)
        else:  # the same number to each of the remaining ranks
            share = (len(members) - np.asarray(self.cluster.nodes)[node_of]) / max(1, len(members) - 1)
        return np.bincount(node_of, lane.sent * share, minlength=self.nodes).astype(np.int64)

    # ---- lanes ---------------------------------------------------------------------------------------------------

    def _lane(self, algorithm: str, size: int, count: int) -> Lane:
        if size == 1:
            nothing = np.zeros(1, np.int64)
            return Lane(0, nothing, nothing)
        if algorithm in ("ring", "a ring"):
            return self._ring(size, count)
        if algorithm in ("recursive_doubling", "recursive doubling"):
            return self._doubling(size, count)
        return self._pairwise(size, count)

    def _ring(self, size: int, count: int) -> Lane:
        chunks = parts_of(count, size, _LINE // self.element)
        pieces = self._pieces(chunks)

        def all_but_two(of_chunk: Counts) -> Counts:  # reduce-scatter leaves out one chunk, allgather the next one
            left_out: Counts = np.roll(of_chunk, -1) + np.roll(of_chunk, -2)
            sent: Counts = 2 * of_chunk.sum() - left_out
            return sent

        messages = all_but_two(pieces)
        return Lane(2 * (size - 1), messages, self._sent(messages, all_but_two(chunks)))

    def _doubling(self, size: int, count: int) -> Lane:
        number = _sends_in_doubling(size)
        messages = number * self._pieces(count)
        return Lane(_rounds_of_doubling(size), messages, self._sent(messages, number * count))

    def _pairwise(self, size: int, count: int) -> Lane:
        slices = parts_of(count, size, _LINE // self.element)
        others = slices.sum() - slices  # first a part to each other member; then the result of the own part to each
        messages = (np.count_nonzero(slices) - (slices > 0)) + (slices > 0) * (size - 1)
        return Lane(2, messages, self._sent(messages, others + slices * (size - 1)))

    def _pieces(self, count: _Count) -> _Count:
        """Return the number of segments for `count` values."""
        return -(-count // ((self.segment - self.wire.header) // self.wire.element))

    def _sent(self, messages: Counts, values: Counts) -> Counts:
        """Return the bytes of `values` values in `messages` segments."""
        return messages * self.wire.header + values * self.wire.element

    def _parts_travel_along(self) -> bool:
        count = int(parts_of(self.count, self.nodes, _LINE // self.element)[0])
        largest = (count > 0) * self.wire.header + count * self.wire.element
        one_each = self.cluster.largest_node == 1
        return one_each and bool(self.core.is_direct(self.nodes)) and largest <= self.core.largest_along

    def _pairwise_along(self) -> Schedule:
        size = self.nodes
        slices = parts_of(self.count, size, _LINE // self.element)
        results = (slices > 0) * (size - 1)
        parts = np.count_nonzero(slices) - (slices > 0)
        sent = self._sent(parts + results, slices.sum() - slices + slices * (size - 1))
        sent += self.core.statement_bytes * (size - 1)
        return Schedule("pairwise", 2, np.full(size, size - 1) + results, sent, sent)


def _sends_in_doubling(size: int) -> Counts:
    """Return the sends of each member in recursive doubling; members past the largest power of two have a partner."""
    core = 1 << (size.bit_length() - 1)
    sends = np.full(size, core.bit_length() - 1, np.int64)
    sends[: size - core] += 1
    sends[core:] = 1
    return sends


def _rounds_of_doubling(size: int) -> int:
    core = 1 << (size.bit_length() - 1)
    return core.bit_length() - 1 + (2 if size > core else 0)


__all__ = ["Schedule", "schedule_of"]
