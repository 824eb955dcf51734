"""Measurement of the parameter server."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from gradientflow.machine import format_size
from gradientflow.netlab import bytes_per_second

from ..core.case import Case
from ..core.data import Values
from ..core.measure import Steps, Times, writer
from ..core.objects import from_all
from ..core.session import Observer, Session
from .columns import ServerResult, summarize
from .contestants import MpiServers, ServerContestant, in_place_contestant, our_contestant, owner
from .plan import ARRAY, DTYPE, IN_PLACE, ServerPlan

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator

Block = tuple[int, int]


class ServerSession(Session[Block, ServerContestant, ServerResult]):
    """All ranks are workers; a block is a size and a number of servers."""

    rounded_nevertheless = ", but by servers: all workers get the same weights, wherever they are"

    def __init__(self, comm: Communicator, plan: ServerPlan, observe: Observer | None = None) -> None:
        super().__init__(comm, plan, observe)
        self._places: list[str] = from_all(comm, socket.gethostname())

    def open_peer(self, name: str) -> object:
        """Open a peer. Collective."""
        if name == "rpc":
            from .rpc import RpcServers  # imports PyTorch, which takes a second or two

            return RpcServers(self.comm)
        return MpiServers(self.comm.mpi)

    def place(self, block: Block) -> str:
        """Name a size and a number of servers."""
        servers = self._servers(block)
        return f"{format_size(block[0])}, {servers} server{'s' if servers > 1 else ''}"

    def title(self, block: Block) -> str:
        """Name the bench, the size and the number of servers."""
        return f"ps {self.place(block)}"

    def case(self, block: Block) -> Case:
        """Give the allreduce with op mean, whose result is the negative weights."""
        return Case("allreduce", block[0], DTYPE, "mean", self.comm.size, self.comm.rank, self.plan.wires)

    def contestants(self, block: Block, case: Case, peers: Sequence[Any]) -> Iterator[ServerContestant]:
        """Make our variants, and the contestants of the peers."""
        servers = self._servers(block)
        make = {ARRAY: our_contestant, IN_PLACE: in_place_contestant}
        for memory, wire in product(self.plan.memories, self.plan.wires):
            with self.serving(block):
                yield make[memory](self.comm, case, servers, wire)
        for peer in peers:
            yield peer.contestant(case, servers)

    def steps(self, case: Case, contestant: ServerContestant, block_length: int) -> Steps:
        """Give the steps, which write to the present gradient buffer."""
        writers: dict[int, Callable[[Values], None]] = {}

        def refill(values: Values) -> None:
            turn = contestant.turn
            if turn not in writers:
                writers[turn] = writer(contestant.gradient, block_length)
            writers[turn](values)

        return Steps(refill, contestant.call, refill, contestant.call)

    def result(
        self, block: Block, case: Case, contestant: ServerContestant, wrong: int, times: Times | None
    ) -> ServerResult:
        """Make the result of a contestant."""
        servers = self._servers(block)
        link_seconds = self._link_seconds(case.count, servers, contestant.wire)
        return summarize(case, contestant, servers, self.comm.nodes, wrong, times, link_seconds)

    def _servers(self, block: Block) -> int:
        return block[1] or self.comm.size

    def _link_seconds(self, count: int, servers: int, wire: str) -> float | None:
        """Give the least time in which the busiest host can send gradients to servers, and weights to workers."""
        rate = bytes_per_second(self.outcome.hosts.rate)
        if rate is None or self.outcome.hosts.number == 1:
            return None
        share = count * (4 if wire == DTYPE else 2) / servers
        homes = [self._places[owner(server, servers, self.comm.size)] for server in range(servers)]
        links = [(worker, home) for worker in self._places for home in homes if worker != home]
        sent = {host: sum(share for link in links for end in link if end == host) for host in self._places}
        return max(sent.values()) / rate
