"""Measuring one collective as planned: for each size build the contestants, check, time, and check them again."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from gradientflow.errors import CommunicationError

from .collectives import COLLECTIVES, Case
from .contestants import Contestant, Key, MpiPeer, NotServedError, Peer, our_contestant, staged
from .data import RandomSource, Source, alphabet, count_wrong, fill
from .device import DeviceFreshValues, Mirror, check_device, device_facts, synchronize, take_device
from .environment import memory_available
from .hosts import Hosts, find_hosts
from .load import Load, LoadMeter
from .measure import Course, FreshValues, Steps, refiller
from .plan import Plan, PlanError, format_size
from .results import Result, Times, summarise
from .series import sum_over_ranks, take_series

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator

    Observer = Callable[[int, str], None]
    Builder = Callable[[Case], list[Contestant]]


class Checked(Protocol):
    """A result that says how much of it was wrong."""

    @property
    def wrong(self) -> int:
        """Wrong elements, summed over ranks and checks."""
        ...


R = TypeVar("R", bound=Checked)


@dataclass
class Outcome(Generic[R]):
    """What came out of a run.

    Attributes
    ----------
    hosts : Hosts
        Where it was.
    results : list
        On rank 0 with times, on the others without.
    remarks : list of str
        What the reader should know, one sentence each.
    load : Load or None
        What else the machine was busy with; known after the run.
    device : mapping
        What is to be said of the device in the environment; nothing of the processor.
    """

    hosts: Hosts
    results: list[R] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    load: Load | None = None
    device: Mapping[str, Any] = field(default_factory=dict)

    @property
    def wrong(self) -> int:
        """Wrong elements of all results."""
        return sum(result.wrong for result in self.results)

    def remark(self, sentence: str) -> None:
        """Add a remark, once."""
        if sentence not in self.remarks:
            self.remarks.append(sentence)


class Session:
    """All ranks measure one plan together.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    plan : Plan
        What to measure.
    observe : callable, optional
        Told before each size: how many are done, and what comes now.
    extra : callable, optional
        Further contestants for a case, beside those of the plan.
    """

    def __init__(
        self, comm: Communicator, plan: Plan, observe: Observer | None = None, extra: Builder | None = None
    ) -> None:
        self._comm = comm
        self._plan = plan
        self._observe = observe or (lambda done, text: None)
        self._extra = extra or (lambda case: [])
        self._seed = comm.mpi.bcast(secrets.randbits(48), 0)
        check_device(plan.device)
        self._device = take_device(comm) if plan.device == "cuda" else None
        self._outcome: Outcome[Result] = Outcome(find_hosts(comm), device=device_facts(plan.device))
        self._refusals: dict[str, list[str]] = {}  # the sizes that every reason was heard at

    def run(self) -> Outcome[Result]:
        """Measure every size of the plan; after an exception the ranks are no longer in step."""
        plan = self._plan
        with measuring(self._comm, plan.peers, self._outcome) as peers:
            if self._comm.nodes == 1 and any(wire != plan.dtype for wire in plan.wires):
                others = "ring and recursive_doubling" if self._device is None else "nccl, ring and recursive_doubling"
                self._outcome.remark(f"All ranks are on one node: nothing is rounded there, except by {others}.")
            for done, size in enumerate(plan.sizes):
                text = plan.collective if plan.collective == "barrier" else f"{plan.collective} {format_size(size)}"
                self._observe(done, text)
                ranks = self._comm.size, self._comm.rank
                self._measure(Case(plan.collective, size, plan.dtype, plan.op, *ranks, plan.wires), peers)
            self._observe(len(plan.sizes), "done")
            for reason, sizes in self._refusals.items():
                self._outcome.remark(f"{', '.join(sizes)}: {reason}")
        return self._outcome

    def _measure(self, case: Case, peers: Sequence[Peer]) -> None:
        if case.count == 0 and case.collective != "barrier":
            self._outcome.remark(f"{format_size(case.size)} is less than one element for each rank and was left out.")
            return
        contestants = self._build(case, peers)
        contestants, wrong = self._check_first(case, contestants)
        right = [contestant for contestant in contestants if not wrong[contestant.key]]
        times = self._time(case, right, wrong) if right else {}
        for contestant in contestants:
            count = wrong[contestant.key]
            if count:
                self._outcome.remark(f"WRONG: {contestant.name} at {format_size(case.size)}: {count} wrong elements.")
            link_seconds = self._outcome.hosts.link_seconds(case, contestant.wire)
            self._outcome.results.append(
                summarise(case, contestant, self._comm.nodes, count, times.get(contestant.key), link_seconds)
            )

    def _build(self, case: Case, peers: Sequence[Peer]) -> list[Contestant]:
        contestants = [
            our_contestant(self._comm, case, algorithm, memory, wire, self._device)
            for memory, algorithm, wire in self._plan.variants
        ]
        contestants += [entry for peer in peers if (entry := self._from_peer(peer, case)) is not None]
        return contestants + self._extra(case)

    def _from_peer(self, peer: Peer, case: Case) -> Contestant | None:
        try:
            contestant = peer.contestant(case)
            return staged(case, contestant) if self._device is not None and contestant.mirror is None else contestant
        except NotServedError as reason:
            self._refuse(case, f"{reason}.")
            return None

    def _check_first(self, case: Case, contestants: list[Contestant]) -> tuple[list[Contestant], dict[Key, int]]:
        """Call each contestant once on fresh random values; drop those that say they cannot serve the call."""
        self._seed += 1
        source = RandomSource(alphabet(case), self._seed)
        served = []
        for contestant in contestants:
            fill(contestant.source, source, case.rank)
            contestant.push()
            self._comm.barrier()
            refusal = None
            try:
                contestant.call()
            except (ValueError, TypeError, RuntimeError) as error:
                if isinstance(error, CommunicationError):
                    raise
                refusal = f"{type(error).__name__}: {error}"
            refusals = [text for text in self._comm.mpi.allgather(refusal) if text is not None]
            if refusals:
                self._refuse(case, f"{contestant.name} was not measured: {refusals[0]}")
            else:
                served.append(contestant)
        counts = self._count_wrong(case, source, served)
        return served, {contestant.key: count for contestant, count in zip(served, counts, strict=True)}

    def _time(self, case: Case, contestants: list[Contestant], wrong: dict[Key, int]) -> dict[Key, Times]:
        """Take all series, adding what the checks after them find to `wrong`; return rank 0's view of the times."""
        self._seed += 1
        course, launches = self._courses(case, contestants)

        def check(iteration: int) -> None:
            counts = self._count_wrong(case, course.fresh.source(iteration), contestants)
            for contestant, count in zip(contestants, counts, strict=True):
                wrong[contestant.key] += count

        plan = self._plan
        times = take_series(self._comm, course, plan.iterations, plan.seconds, check, launches=launches)
        return {contestant.key: taken for contestant, taken in zip(contestants, times, strict=True)}

    def _courses(self, case: Case, contestants: list[Contestant]) -> tuple[Course, Course | None]:
        """Make what the series need; on a device also those whose calls nobody waits for."""
        barrier, values = self._comm.barrier, alphabet(case)
        if self._device is None:
            fresh = FreshValues(case, values, self._seed)
            return Course(
                [_steps(case, contestant, fresh.block_length) for contestant in contestants], fresh, barrier
            ), None
        on_device = DeviceFreshValues(case, values, self._seed)
        steps = [
            _steps_on_device(on_device, contestant.mirror, contestant.call)
            for contestant in contestants
            if contestant.mirror is not None
        ]
        launches = [replace(entry, call=contestant.call) for entry, contestant in zip(steps, contestants, strict=True)]
        return Course(steps, on_device, barrier), Course(launches, on_device, barrier)

    def _count_wrong(self, case: Case, source: Source, contestants: list[Contestant]) -> list[int]:
        """Count wrong elements over all ranks."""
        for contestant in contestants:
            contestant.pull()
        return sum_over_ranks(self._comm, count_wrong(case, source, [contestant.result for contestant in contestants]))

    def _refuse(self, case: Case, reason: str) -> None:
        self._refusals.setdefault(reason, []).append(format_size(case.size))


@contextlib.contextmanager
def measuring(comm: Communicator, names: Sequence[str], outcome: Outcome[R]) -> Iterator[list[Peer]]:
    """Have peers ready and the load watched while all ranks measure; the load is then part of the outcome.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    names : sequence of str
        The peers.
    outcome : Outcome
        What the load, and a warning of it, is added to.

    Yields
    ------
    list of Peer
        In the order of their names.
    """
    hosts = outcome.hosts
    peers = [_open_peer(name, comm) for name in names]
    meter = LoadMeter(comm, hosts.machine)
    yield peers
    # Not after an exception: the other ranks would not come, and the job ends anyway.
    outcome.load = meter.stop()
    if remark := outcome.load.remark(hosts.ranks_on_this_machine):
        outcome.remark(remark)
    for peer in peers:
        peer.close()


def check_job(plan: Plan, ranks: int, *, on_this_machine: bool) -> None:
    """Refuse, before anything is started, what could only fail on the way.

    Parameters
    ----------
    plan : Plan
        What is to be measured.
    ranks : int
        With how many ranks.
    on_this_machine : bool
        Whether all ranks will share this machine's memory.
    """
    if ranks < 1:
        raise PlanError(f"-n needs at least 1 rank, not {ranks}")
    case = Case(plan.collective, max(plan.sizes, default=0), plan.dtype, plan.op, ranks, 0, plan.wires)
    alphabet(case)
    contestants = len(plan.variants) + len(plan.peers)
    buffers = 1 if COLLECTIVES[plan.collective].in_place else 2
    needed = contestants * ranks * buffers * case.bytes
    if on_this_machine and needed > (available := memory_available()):
        raise PlanError(
            f"{format_size(case.size)} with {contestants} contestants and {ranks} ranks needs {needed / 2**30:.1f} GiB "
            f"of buffers, and {available / 2**30:.1f} GiB are free: choose smaller --sizes, or less to --compare"
        )


def _open_peer(name: str, comm: Communicator) -> Peer:
    if name == "nccl":
        from .nccl import NcclPeer

        return NcclPeer(comm.mpi)
    if name == "gloo":
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # it warns of addresses that have no name
        from .gloo import GlooPeer  # imports PyTorch, which takes a second or two

        return GlooPeer(comm.mpi)
    return MpiPeer(comm.mpi)


def _steps(case: Case, contestant: Contestant, block_length: int) -> Steps:
    refill = refiller(case, contestant.source, block_length)
    return Steps(refill, contestant.call, refill, contestant.call)


def _steps_on_device(fresh: DeviceFreshValues, mirror: Mirror, launch: Callable[[], object]) -> Steps:
    """Write on the device; a call ends when the device is done."""
    write = fresh.writer(mirror)

    def refill(start: int) -> None:
        write(start)
        synchronize()

    def call() -> None:
        launch()
        synchronize()

    return Steps(refill, call, write, call)
