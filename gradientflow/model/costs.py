"""Costs of messages and passes over memory, in seconds."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache

from gradientflow.arguments import checked_nonnegative
from gradientflow.errors import ArgumentError
from gradientflow.settings_file import read_settings_file

from .cluster import Cluster
from .schedule import Schedule, schedule_of
from .units import bits_per_second_of, seconds_of

_PAYLOAD = 1448 / 1538  # share of user data in full Ethernet frames of TCP, with preamble and gap


@dataclass(frozen=True)
class Call:
    """A call: arguments of `schedule_of`."""

    kind: str
    count: int
    dtype: str = "float32"
    wire: str | None = None
    algorithm: str = "auto"
    in_node_memory: bool = True


@dataclass(frozen=True)
class Link:
    """The costs of messages and memory, in seconds.

    With `Schedule` they give the time of a call::

        call + rounds * latency + max((leaving - burst) * per_byte, processors) + inside * per_byte_inside

    `leaving` are the bytes that leave the busiest node, `inside` the bytes that pass through the memory of a node, and
    `processors` is ``sum of leaving * processor_per_byte / cores`` if all nodes share `cores` processors.

    Attributes
    ----------
    call : float
        Cost of each call between nodes.
    latency : float
        Cost of each message that waits for an earlier message.
    per_byte : float
        Cost of each byte that leaves a node.
    burst : float
        Bytes that an idle link lets through at once: a token bucket that fills at the rate of the link.
    call_inside : float
        Cost of each call inside a node.
    per_byte_inside : float
        Cost of each byte that the ranks of a node read or write in shared memory.
    per_byte_of_pass : float
        Cost of each byte of memory that a rank passes over to choose the data to send.
    processor_per_byte : float
        Seconds of a processor for each byte between nodes: to send, receive and add it.
    cores : float
        Number of processors that all nodes share, if the nodes are emulated; 0 if each rank has its own processor.
    """

    call: float = 0.0
    latency: float = 20e-6
    per_byte: float = 0.0
    burst: float = 0.0
    call_inside: float = 5e-6
    per_byte_inside: float = 5e-11
    per_byte_of_pass: float = 4e-11
    processor_per_byte: float = 0.0
    cores: float = 0.0

    def __post_init__(self) -> None:  # noqa: D105
        for each in fields(self):
            checked_nonnegative(each.name, getattr(self, each.name))

    @classmethod
    def parse(cls, text: str) -> Link:
        """Return a link with this rate and latency, such as ``"25gbit,20us"``, and usual values for the rest.

        The rate is that of the wire; in frames of 1,500 bytes, TCP can use 94 % of it for data.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If the text is not a rate and a latency.
        """
        words = text.split(",")
        rates = [rate for rate in map(bits_per_second_of, words) if rate]
        latencies = [seconds for seconds in map(seconds_of, words) if seconds is not None]
        if len(rates) != 1 or len(latencies) > 1 or len(words) > len(rates) + len(latencies):
            raise ArgumentError(f"a link is a rate and a latency, such as 25gbit,20us, not {text!r}")
        return replace(cls(latency=latencies[0]) if latencies else cls(), per_byte=8 / (rates[0] * _PAYLOAD))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Link:
        """Return the link in the table ``[link]`` of a settings file.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If the file cannot be read, or has no link.
        """
        table = read_settings_file(path, of_anyone=True).link
        if not table:
            raise ArgumentError(f"{path} has no table [link]: gradientflow tune writes one")
        known = {each.name for each in fields(cls)}
        if unknown := sorted(set(table) - known):
            raise ArgumentError(f"{path}: [link] has {', '.join(unknown)}, and a link is {', '.join(sorted(known))}")
        try:
            return cls(**table)
        except (ArgumentError, TypeError) as error:
            raise ArgumentError(f"{path}: [link] {error}") from error

    def __str__(self) -> str:
        """Return the two main costs in words."""
        rate = f"{8e-9 / self.per_byte:.3g} Gbit/s of data" if self.per_byte else "no limit of bandwidth"
        return f"{rate}, {self.latency * 1e6:.0f} us"


class Costs:
    """The times of calls on a cluster.

    Parameters
    ----------
    cluster : Cluster
        Cluster of the ranks that make the calls.
    link : Link
        Costs of messages.
    """

    def __init__(self, cluster: Cluster, link: Link) -> None:
        self.cluster = cluster
        self.link = link
        self.schedule: Callable[[Call], Schedule] = lru_cache(maxsize=4096)(
            lambda call: schedule_of(cluster, **vars(call))
        )

    def seconds(self, call: Call, idle: float = math.inf) -> float:
        """Return the seconds of a call that begins after the link has been idle for `idle` seconds."""
        if self.cluster.ranks == 1:
            return 0.0
        return self.of_schedule(self.schedule(call), idle)

    def of_schedule(self, schedule: Schedule, idle: float = math.inf) -> float:
        """Return the seconds that the messages of a call take."""
        link, inside = self.link, schedule.inside * self.link.per_byte_inside
        if len(self.cluster.nodes) == 1:
            return link.call_inside + inside
        start = link.call_inside if self.cluster.largest_node > 1 else 0.0
        return (
            start
            + inside
            + link.call
            + schedule.rounds * link.latency
            + self.wire_seconds(float(schedule.leaving.max()), float(schedule.leaving.sum()), idle)
        )

    def wire_seconds(self, busiest: float, everywhere: float, idle: float = math.inf) -> float:
        """Return the seconds for bytes between nodes: `busiest` from the busiest node, `everywhere` from all nodes."""
        busiest -= min(busiest, self.link.burst, idle / self.link.per_byte if self.link.per_byte else math.inf)
        shared = everywhere * self.link.processor_per_byte / self.link.cores if self.link.cores else 0.0
        return max(busiest * self.link.per_byte, shared)

    def pass_seconds(self, nbytes: float) -> float:
        """Return the seconds in which each rank passes over `nbytes` bytes of its memory."""
        crowd = max(1.0, self.cluster.ranks / self.link.cores) if self.link.cores else 1.0
        return nbytes * self.link.per_byte_of_pass * crowd

    def sent(self, call: Call) -> float:
        """Return the bytes that a rank sends to other nodes in a call, as a mean over the ranks."""
        if self.cluster.ranks == 1:
            return 0.0
        return float(self.schedule(call).leaving.sum()) / self.cluster.ranks


__all__ = ["Call", "Costs", "Link"]
