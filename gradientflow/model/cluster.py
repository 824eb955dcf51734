"""A cluster, real or imagined: the number of ranks on each node, and the transport of their messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from gradientflow._location import core
from gradientflow.annotations import JsonObject
from gradientflow.arguments import checked_int
from gradientflow.communicator import Communicator
from gradientflow.config import Config
from gradientflow.errors import ArgumentError

Transport = Literal["tcp", "mpi"]
TRANSPORTS = get_args(Transport)
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Cluster:
    """The ranks of a real or imagined job.

    Attributes
    ----------
    nodes : tuple of int
        The number of ranks on each node. Ranks are numbered node by node.
    transport : {"tcp", "mpi"}
        Transport of messages between ranks.
    settings : mapping of str to str
        Settings by which the core selects algorithms, such as ``{"ring_bytes": "1MiB"}``; missing settings are taken
        from a `gradientflow.Config` without arguments.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If there is no node, a node without ranks, or an unknown transport.
    """

    nodes: tuple[int, ...]
    transport: Transport = "tcp"
    settings: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:  # noqa: D105
        object.__setattr__(self, "nodes", tuple(checked_int("ranks of a node", ranks, 1) for ranks in self.nodes))
        if self.transport not in TRANSPORTS:
            raise ArgumentError(f"transport is 'tcp' or 'mpi', not {self.transport!r}")
        if not self.nodes:
            raise ArgumentError("a cluster has at least one node")

    @classmethod
    def of(cls, comm: Communicator) -> Cluster:
        """Return the cluster of a communicator's ranks."""
        facts: JsonObject = comm.describe()
        return cls(tuple(len(each) for each in facts["nodes"]), facts["transport"], facts["settings"])

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return sum(self.nodes)

    @property
    def largest_node(self) -> int:
        """The number of ranks on the largest node."""
        return max(self.nodes)

    @cached_property
    def first_ranks(self) -> Counts:
        """The first rank of each node."""
        return np.concatenate([[0], np.cumsum(self.nodes)[:-1]]).astype(np.int64)

    @cached_property
    def node_of(self) -> Counts:
        """The node of each rank."""
        return np.repeat(np.arange(len(self.nodes)), self.nodes)

    @cached_property
    def selector(self) -> core.selector.Selector:
        """The selector of the core for this cluster."""
        return core.selector.Selector(list(self.nodes), self.transport, dict(Config(**self.settings)))

    def __str__(self) -> str:
        """Return the cluster in words, such as "4 hosts x 8 ranks"."""
        if len(set(self.nodes)) > 1:
            return f"{len(self.nodes)} hosts, {self.ranks} ranks"
        return f"{len(self.nodes)} {'host' if len(self.nodes) == 1 else 'hosts'} x {self.nodes[0]}"


def hosts(number: int, ranks: int = 1, transport: Transport = "tcp") -> Cluster:
    """Return a cluster of `number` hosts with `ranks` ranks each."""
    return Cluster((checked_int("ranks of a node", ranks, 1),) * checked_int("hosts", number, 1), transport)


def parts_of(count: int, parts: int, grain: int = 1) -> Counts:
    """Return the elements of nearly equal parts, cut at multiples of `grain`, like the core's partition."""
    grains = -(-count // grain)
    sizes = np.full(parts, grains // parts, np.int64)
    sizes[: grains % parts] += 1
    ends = np.minimum(np.cumsum(sizes) * grain, count)
    return np.diff(ends, prepend=0)


def members_of(cluster: Cluster, local: int) -> Sequence[int]:
    """Return the rank with local number `local` on each node."""
    return [int(first) + local for first in cluster.first_ranks]


__all__ = ["Cluster", "Counts", "hosts", "members_of", "parts_of"]
