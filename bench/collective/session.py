"""Measurement of one collective at several sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gradientflow.machine import format_size

from ..core.case import Case
from ..core.data import Source, alphabet
from ..core.device import (
    DeviceFreshValues,
    Mirror,
    check_device,
    device_facts,
    synchronize,
    take_device,
)
from ..core.measure import Series, Steps, Times
from ..core.peers import Contestant, Peer, staged
from ..core.session import Observer, Session
from .columns import Result, summarize
from .contestants import PreparedPeer, our_contestant
from .limit import LimitPeer
from .plan import LIMIT, PREPARED

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator

    from .plan import CollectivePlan


class CollectiveSession(Session[int, Contestant, Result]):
    """All ranks measure one collective; a block is a size."""

    preposition = "at"

    def __init__(
        self,
        comm: Communicator,
        plan: CollectivePlan,
        observe: Observer | None = None,
        extra: Callable[[int, Case], list[Contestant]] | None = None,
    ) -> None:
        super().__init__(comm, plan, observe, extra)
        check_device(plan.device)
        self._device = take_device(comm) if plan.device == "cuda" else None
        self._limit: LimitPeer | None = None
        self._round_trip: float | None = None
        self.outcome.facts = device_facts(plan.device)
        others = "ring and recursive_doubling" if self._device is None else "nccl, ring and recursive_doubling"
        self.rounded_nevertheless = f", except by {others}"

    def place(self, block: int) -> str:
        """Name a size."""
        return format_size(block)

    def title(self, block: int) -> str:
        """Name the collective and the size."""
        collective = str(self.plan.collective)
        return collective if collective == "barrier" else f"{collective} {format_size(block)}"

    def case(self, block: int) -> Case:
        """Give the collective at this size."""
        plan, comm = self.plan, self.comm
        return Case(plan.collective, block, plan.dtype, plan.op, comm.size, comm.rank, plan.wires)

    def measure(self, block: int, peers: Sequence[Peer]) -> None:
        """Measure a size, unless it is too small for this many ranks."""
        if self.case(block).count == 0 and self.plan.collective != "barrier":
            self.outcome.remark(f"{format_size(block)} is less than one element for each rank and was left out.")
            self.done += 1
            return
        super().measure(block, peers)

    def contestants(self, block: int, case: Case, peers: Sequence[Peer]) -> Iterator[Contestant]:
        """Make our variants, and the contestants of the peers."""
        for memory, algorithm, wire in self.plan.variants:
            yield our_contestant(self.comm, case, algorithm, memory, wire, self._device)
        for peer in peers:
            with self.serving(block):
                contestant = peer.contestant(case)
                on_host = contestant.mirror is None
                yield staged(case, contestant) if self._device is not None and on_host else contestant

    def open_peer(self, name: str) -> object:
        """Open a peer; for the limit also measure the round trip of a cache line, on which small calls depend."""
        if name == PREPARED:
            return PreparedPeer(self.comm)
        if name != LIMIT:
            return super().open_peer(name)
        self._limit = LimitPeer(self.comm)
        self._round_trip = self._limit.round_trip()
        return self._limit

    def check_again(self, case: Case, source: Source, contestants: list[Contestant]) -> list[int]:
        """Count wrong elements after a series, except for contestants whose results need a barrier."""
        complete = [entry for entry in contestants if entry.completes_on_return]
        wrong = iter(super().check_again(case, source, complete))
        return [next(wrong) if entry.completes_on_return else 0 for entry in contestants]

    def end(self) -> None:
        """Report the round trip of a cache line before and after the run."""
        again = None if self._limit is None else self._limit.round_trip()
        if self._round_trip is not None and again is not None:
            trips = [self._round_trip, again]
            self.outcome.facts = {**self.outcome.facts, "round_trip_ns": [round(seconds * 1e9, 1) for seconds in trips]}
            before, after = (f"{seconds * 1e9:.0f} ns" for seconds in trips)
            self.outcome.remark(
                f"A cache line took {before} from rank 0 to rank 1 and back before the measurement, {after} after it."
            )

    def result(self, block: int, case: Case, contestant: Contestant, wrong: int, times: Times | None) -> Result:
        """Make the result of a contestant."""
        link_seconds = self.outcome.hosts.link_seconds(case, contestant.wire)
        return summarize(case, contestant, self.comm.nodes, wrong, times, link_seconds)

    def series(self, case: Case, contestants: list[Contestant]) -> tuple[Series, Series | None]:
        """On a device, write values there, and make two series: of calls that wait for the device, and of launches."""
        if self._device is None:
            return super().series(case, contestants)
        barrier, on_device = self.comm.barrier, DeviceFreshValues(case, alphabet(case), self.next_seed())
        steps = [
            _steps_on_device(on_device, entry.mirror, entry.call) for entry in contestants if entry.mirror is not None
        ]
        launches = [replace(step, call=entry.call) for step, entry in zip(steps, contestants, strict=True)]
        return Series(steps, on_device, barrier), Series(launches, on_device, barrier)


def _steps_on_device(fresh: DeviceFreshValues, mirror: Mirror, launch: Callable[[], object]) -> Steps:
    """Make the steps of a contestant on a device: values are written there, and a call ends when the device is done."""
    write = fresh.writer(mirror)

    def refill(start: int) -> None:
        write(start)
        synchronize()

    def call() -> None:
        launch()
        synchronize()

    return Steps(refill, call, write, call)
