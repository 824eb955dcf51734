"""Traffic of a strategy: its messages and their times. Each kind of traffic predicts its steps."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from .computation import Computation
from .costs import Call, Costs


class Step(NamedTuple):
    """A predicted step, as means over many steps.

    Attributes
    ----------
    seconds : float
        The whole step.
    exposed_seconds : float
        The part in which the rank waits for communication.
    own_seconds : float
        The part in which the rank selects, adds and applies the data that it exchanges.
    communication_seconds : float
        Duration of the calls.
    bytes_sent : float
        Bytes that a rank sends to other nodes.
    """

    seconds: float
    exposed_seconds: float
    own_seconds: float
    communication_seconds: float
    bytes_sent: float


class Traffic(ABC):
    """Traffic of a strategy: its messages and their times.

    Attributes
    ----------
    together : float
        Number of steps after which all ranks wait for each other. Within these steps, a rank that is slow for a moment
        can fall behind without making other ranks wait.
    memory : float
        Bytes that a rank needs beside weights, gradients and the state of the optimizer.
    """

    together: float = 1.0
    memory: float = 0.0

    @abstractmethod
    def step(self, computation: Computation, costs: Costs) -> Step:
        """Predict a step."""


class CallSequence(NamedTuple):
    """Calls made in succession as soon as the first `tensors` gradients are final.

    Attributes
    ----------
    calls : tuple of Call
        The calls.
    tensors : int
        Number of gradients that have to be final.
    passes : float
        Bytes of memory that a rank first passes over to select the data to send.
    """

    calls: tuple[Call, ...]
    tensors: int
    passes: float = 0.0


@dataclass(frozen=True)
class EveryStep(Traffic):
    """Gradients are exchanged in every step, along with backpropagation, in a fixed order.

    Attributes
    ----------
    exchanges : tuple of CallSequence
        The exchanges in order. Each begins when its gradients are final and the previous exchange has ended.
    passes_after : float
        Bytes of memory that a rank passes over after all exchanges.
    in_backward : bool
        True if exchanges begin during backpropagation, False if they begin at its end.
    """

    exchanges: tuple[CallSequence, ...]
    passes_after: float = 0.0
    in_backward: bool = True
    memory: float = 0.0

    def events(self, computation: Computation, costs: Costs) -> list[tuple[float, float, float]]:
        """Return (time of final gradients, begin, end) of each exchange."""
        # Selecting the data to send delays the rest of backpropagation, which runs in the same thread.
        late, free, found = 0.0, 0.0, []
        end = computation.ready[-1] if computation.ready else computation.seconds
        for exchange in self.exchanges:
            at = computation.ready[exchange.tensors - 1] if self.in_backward and exchange.tensors else end
            late += costs.pass_seconds(exchange.passes)
            begin = max(at + late, free)
            idle = begin - free if free else math.inf
            free = begin
            for call in exchange.calls:
                free += costs.seconds(call, idle)
                idle = 0.0
            found.append((at + late, begin, free))
        return found

    def step(self, computation: Computation, costs: Costs) -> Step:  # noqa: D102
        found = self.events(computation, costs)
        before = sum(costs.pass_seconds(each.passes) for each in self.exchanges)
        after = costs.pass_seconds(self.passes_after)
        end = computation.ready[-1] if computation.ready else computation.seconds
        exposed = max(0.0, (found[-1][2] if found else 0.0) - end - before)
        return Step(
            computation.seconds + before + exposed + after,
            exposed,
            before + after,
            sum(stop - begin for _, begin, stop in found),
            sum(costs.sent(call) for exchange in self.exchanges for call in exchange.calls),
        )


@dataclass(frozen=True)
class EveryFewSteps(Traffic):
    """Weights are exchanged every `period` steps, in `parts` that take turns.

    Attributes
    ----------
    calls : tuple of Call
        Calls for one part.
    period : int
        Steps in which each part is exchanged once.
    parts : int
        Number of exchanges in `period` steps.
    delay : int
        Steps after which the result of an exchange is needed; the exchange may take as long.
    passes : float
        Bytes of memory that a rank passes over for each part.
    """

    calls: tuple[Call, ...]
    period: float
    parts: int = 1
    delay: int = 0
    passes: float = 0.0
    memory: float = 0.0

    @property
    def together(self) -> float:  # type: ignore[override]
        """Steps from one exchange to the next."""
        return self.period / max(1, self.parts)

    def step(self, computation: Computation, costs: Costs) -> Step:  # noqa: D102
        often = self.parts / self.period
        travelling = sum(map(costs.seconds, self.calls))
        own = costs.pass_seconds(self.passes) * often
        late = (travelling - self.delay * computation.seconds) * often
        # Exchanges of several parts may be under way at once, but the link carries them in turn.
        exposed = max(0.0, late, travelling * often - computation.seconds - own)
        sent = sum(map(costs.sent, self.calls)) * often
        return Step(computation.seconds + exposed + own, exposed, own, travelling * often, sent)


@dataclass(frozen=True)
class InBackground(Traffic):
    """Successive exchanges in the background, for which no step waits.

    Attributes
    ----------
    calls : tuple of Call
        Calls of one exchange, which begins with the first step after the previous exchange has ended.
    passes : float
        Bytes of memory that a rank passes over in each step.
    passes_of_exchange : float
        Bytes of memory that a rank passes over for each exchange.
    """

    calls: tuple[Call, ...]
    passes: float = 0.0
    passes_of_exchange: float = 0.0
    memory: float = 0.0

    together = math.inf

    def step(self, computation: Computation, costs: Costs) -> Step:  # noqa: D102
        travelling = sum(map(costs.seconds, self.calls))
        own = costs.pass_seconds(self.passes)
        alone = computation.seconds + own
        steps = max(1, math.ceil(travelling / alone)) if alone else 1
        own += costs.pass_seconds(self.passes_of_exchange) / steps
        sent = sum(map(costs.sent, self.calls)) / steps
        return Step(computation.seconds + own, 0.0, own, travelling / steps, sent)


@dataclass(frozen=True)
class Served(Traffic):
    """Gradients are pushed to servers in every step, and weights are pulled every few steps.

    Attributes
    ----------
    ranges : tuple of (int, int)
        (bytes, number of gradients that have to be final) of each range that travels together.
    servers : int
        Number of servers; 0 means the number of ranks.
    period : int
        Steps from one pull to the next.
    waits : bool
        True if a worker waits for its pull, False if it computes another step meanwhile.
    together : float
        Same as in `Traffic`.
    passes : float
        Bytes of memory that a worker passes over in each step.
    passes_of_server : float
        Bytes of memory that all servers together pass over for each push that they apply.
    """

    ranges: tuple[tuple[int, int], ...]
    servers: int = 0
    period: int = 1
    waits: bool = True
    together: float = 1.0
    passes: float = 0.0
    passes_of_server: float = 0.0
    memory: float = 0.0

    def _travelling(self, nbytes: float, costs: Costs) -> float:
        """Return the seconds in which every worker sends this many bytes to the servers, or gets them."""
        cluster = costs.cluster
        if cluster.ranks == 1:
            return 0.0
        nodes = len(cluster.nodes)
        hosting = min(nodes, self.servers or nodes)  # nodes with servers
        workers = cluster.largest_node
        away = nbytes * workers * (1 - 1 / nodes)  # bytes that workers of a node send to other nodes
        coming = nbytes * (cluster.ranks - workers) / hosting  # bytes that servers of a node get from other nodes
        link = costs.link
        inside = link.call_inside + workers * nbytes * 2 / nodes * link.per_byte_inside if workers > 1 else 0.0
        if nodes == 1:
            return inside
        everywhere = nbytes * cluster.ranks * (1 - 1 / nodes)
        return inside + link.call + link.latency + costs.wire_seconds(max(away, coming), everywhere)

    def step(self, computation: Computation, costs: Costs) -> Step:  # noqa: D102
        free = 0.0
        pushing = 0.0
        end = computation.ready[-1] if computation.ready else computation.seconds
        for nbytes, tensors in self.ranges:
            seconds = self._travelling(nbytes, costs)
            free = max(free, computation.ready[tensors - 1] if tensors else end) + seconds
            pushing += seconds
        all_bytes = sum(nbytes for nbytes, _ in self.ranges)
        own = costs.pass_seconds(self.passes)
        servers = self.servers or costs.cluster.ranks
        serving = costs.pass_seconds(self.passes_of_server) * costs.cluster.ranks / servers
        pulling = self._travelling(all_bytes, costs)
        if self.waits:
            exposed = max(0.0, free - end) + serving + pulling
        else:  # the pull overlaps with the next step; pushes that take longer than a step delay it
            busy = pushing + serving + pulling / self.period
            late = max(0.0, free - end + serving + pulling - computation.seconds - own) / self.period
            exposed = max(busy - computation.seconds - own, late, 0.0)
        nodes = len(costs.cluster.nodes)
        sent = all_bytes * (1 - 1 / nodes) * (1 + 1 / self.period)
        return Step(computation.seconds + own + exposed, exposed, own, pushing + pulling / self.period, sent)


@dataclass(frozen=True)
class Nothing(Traffic):
    """No traffic before the end."""

    together = math.inf

    def step(self, computation: Computation, costs: Costs) -> Step:  # noqa: D102
        return Step(computation.seconds, 0.0, 0.0, 0.0, 0.0)


__all__ = [
    "CallSequence",
    "EveryFewSteps",
    "EveryStep",
    "InBackground",
    "Nothing",
    "Served",
    "Step",
    "Traffic",
]
