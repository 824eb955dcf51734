"""Measuring one collective as planned: for each size build the contestants, check, time, and check them again."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gradientflow.errors import CommunicationError

from .collectives import Case
from .contestants import Contestant, MpiPeer, NotServedError, Peer, our_contestant
from .data import RandomSource, Source, alphabet, count_wrong, fill
from .environment import memory_available
from .load import Load, LoadMeter
from .measure import Course, FreshValues, fitting_iterations, slowest
from .plan import Plan, PlanError, format_size
from .results import Result, Times, summarise

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator

    Observer = Callable[[int, str], None]
    Builder = Callable[[Case], list[Contestant]]

_WARM_UP_ROUNDS = 3


@dataclass
class Outcome:
    """What came out of a run.

    Attributes
    ----------
    results : list of Result
        On rank 0 with times, on the others without.
    remarks : list of str
        What the reader should know, one sentence each.
    load : Load or None
        What else the machine was busy with; known after the run.
    """

    results: list[Result] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    load: Load | None = None

    @property
    def wrong(self) -> int:
        """Wrong elements of all results."""
        return sum(result.wrong for result in self.results)


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
        self._outcome = Outcome()

    def run(self) -> Outcome:
        """Measure every size of the plan; after an exception the ranks are no longer in step."""
        plan = self._plan
        peers = [_open_peer(name, self._comm) for name in plan.peers]
        meter = LoadMeter(self._comm)
        for done, size in enumerate(plan.sizes):
            text = plan.collective if plan.collective == "barrier" else f"{plan.collective} {format_size(size)}"
            self._observe(done, text)
            self._measure(Case(plan.collective, size, plan.dtype, plan.op, self._comm.size, self._comm.rank), peers)
        self._observe(len(plan.sizes), "done")
        self._outcome.load = meter.stop()
        if remark := self._outcome.load.remark(self._comm.local_size):
            self._remark(remark)
        for peer in peers:  # together; after an exception the others would not come, and the job ends anyway
            peer.close()
        return self._outcome

    def _measure(self, case: Case, peers: Sequence[Peer]) -> None:
        if case.input_count == 0 and case.collective != "barrier":
            self._remark(f"{format_size(case.size)} is less than one element for each rank and was left out.")
            return
        contestants = self._build(case, peers)
        contestants, wrong = self._check_first(case, contestants)
        right = [contestant for contestant in contestants if not wrong[contestant.key]]
        times = self._time(case, right, wrong) if right else {}
        for contestant in contestants:
            count = wrong[contestant.key]
            if count:
                self._remark(f"WRONG: {contestant.name} at {format_size(case.size)}: {count} wrong elements.")
            self._outcome.results.append(
                summarise(case, contestant, self._comm.nodes, count, times.get(contestant.key))
            )

    def _build(self, case: Case, peers: Sequence[Peer]) -> list[Contestant]:
        # A barrier touches no memory: one variant of ours is all there is.
        memories = ("array",) if case.collective == "barrier" else self._plan.memories
        contestants = [
            our_contestant(self._comm, case, algorithm, memory)
            for memory in memories
            for algorithm in self._plan.algorithms
        ]
        contestants += [entry for peer in peers if (entry := self._from_peer(peer, case)) is not None]
        return contestants + self._extra(case)

    def _from_peer(self, peer: Peer, case: Case) -> Contestant | None:
        try:
            return peer.contestant(case)
        except NotServedError as reason:
            self._remark(f"{format_size(case.size)}: {reason}.")
            return None

    def _check_first(
        self, case: Case, contestants: list[Contestant]
    ) -> tuple[list[Contestant], dict[tuple[str, str, str], int]]:
        """Call each contestant once on fresh random values; drop those that say they cannot serve the call."""
        self._seed += 1
        source = RandomSource(alphabet(case), self._seed)
        served = []
        for contestant in contestants:
            fill(contestant.source, source, case.rank)
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
                self._remark(f"{format_size(case.size)}: {contestant.name} was not measured: {refusals[0]}")
            else:
                served.append(contestant)
        counts = self._count_wrong(case, source, served)
        return served, {contestant.key: count for contestant, count in zip(served, counts, strict=True)}

    def _time(
        self, case: Case, contestants: list[Contestant], wrong: dict[tuple[str, str, str], int]
    ) -> dict[tuple[str, str, str], Times]:
        """Take both series, adding what the checks after them find to `wrong`; return rank 0's view of the times."""
        comm, plan = self._comm, self._plan
        self._seed += 1
        fresh = FreshValues(case, alphabet(case), self._seed)
        course = Course(case, contestants, fresh, comm.barrier)
        course.run(_WARM_UP_ROUNDS, with_refill=True)
        start = time.perf_counter()
        course.run(_WARM_UP_ROUNDS, with_refill=False)
        course.run(_WARM_UP_ROUNDS, with_refill=True)
        seconds = max(comm.mpi.allgather((time.perf_counter() - start) / _WARM_UP_ROUNDS))
        iterations = plan.iterations or fitting_iterations(plan.seconds, seconds)
        series = []
        for with_refill in (False, True):
            samples = course.run(iterations, with_refill=with_refill)
            for contestant, count in zip(
                contestants, self._count_wrong(case, fresh.source(iterations - 1), contestants), strict=True
            ):
                wrong[contestant.key] += count
            samples_of_ranks = comm.mpi.gather(samples, 0)
            series.append(samples if samples_of_ranks is None else slowest(samples_of_ranks))
        return {
            contestant.key: Times(series[0][number], series[1][number]) for number, contestant in enumerate(contestants)
        }

    def _count_wrong(self, case: Case, source: Source, contestants: list[Contestant]) -> list[int]:
        """Count wrong elements over all ranks."""
        own = count_wrong(case, source, [contestant.result for contestant in contestants])
        return [sum(counts) for counts in zip(*self._comm.mpi.allgather(own), strict=True)]

    def _remark(self, sentence: str) -> None:
        if sentence not in self._outcome.remarks:
            self._outcome.remarks.append(sentence)


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
    case = Case(plan.collective, max(plan.sizes, default=0), plan.dtype, plan.op, ranks, 0)
    alphabet(case)
    contestants = len(plan.memories) * len(plan.algorithms) + len(plan.peers)
    separate_result = plan.collective in ("allgather", "reduce-scatter")
    needed = contestants * ranks * (case.bytes + separate_result * case.bytes)
    if on_this_machine and needed > (available := memory_available()):
        raise PlanError(
            f"{format_size(case.size)} with {contestants} contestants and {ranks} ranks needs {needed / 2**30:.1f} GiB "
            f"of buffers, and {available / 2**30:.1f} GiB are free: choose smaller --sizes, or less to --compare"
        )


def _open_peer(name: str, comm: Communicator) -> Peer:
    if name == "gloo":
        from .gloo import GlooPeer  # imports PyTorch, which takes a second or two

        return GlooPeer(comm.mpi)
    return MpiPeer(comm.mpi)
