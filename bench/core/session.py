"""Measuring a plan: for each block of it build the contestants, check them, time them side by side, check them again.

A bench says what its blocks are, who takes part, and what a result holds; this is the rest.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from gradientflow.errors import CommunicationError
from gradientflow.load import Load, LoadMeter

from .case import Case
from .data import RandomSource, Source, Values, alphabet, count_wrong, fill
from .hosts import Hosts, find_hosts
from .measure import Course, FreshValues, Steps, Times, refiller, sum_over_ranks, take_series
from .peers import MpiPeer, NotServedError, Peer

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator

Observer = Callable[[int, str], None]


class Checked(Protocol):
    """A result that says how much of it was wrong."""

    @property
    def wrong(self) -> int:
        """Wrong elements, summed over ranks and checks."""
        ...


class Timed(Protocol):
    """A contestant: one way to do what a bench measures."""

    @property
    def name(self) -> str:
        """The contestant in words."""
        ...

    @property
    def inputs(self) -> Sequence[Values]:
        """Flat arrays to write values into."""
        ...

    @property
    def results(self) -> Sequence[Values]:
        """Flat arrays that hold what came out, after `pull`; one for each input, possibly the same."""
        ...

    @property
    def call(self) -> Callable[[], object]:
        """What it does with values that are written already."""
        ...

    def push(self) -> None:
        """Bring what was written to the inputs where it is worked on."""
        ...

    def pull(self) -> None:
        """Bring the results back from there."""
        ...

    @property
    def close(self) -> Callable[[], object]:
        """What gives back all that it holds; all ranks together."""
        ...


R = TypeVar("R", bound=Checked)
C = TypeVar("C", bound=Timed)
Block = TypeVar("Block")


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
    facts : mapping
        What else is to be said in the environment of a result file.
    others : mapping
        Further results, by the names that they have in the file.
    """

    hosts: Hosts
    results: list[R] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    load: Load | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    others: dict[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def wrong(self) -> int:
        """Wrong elements of all results."""
        further = (result for results in self.others.values() for result in results)
        return sum(result.wrong for result in self.results) + sum(getattr(result, "wrong", 0) for result in further)

    def remark(self, sentence: str) -> None:
        """Add a remark, once."""
        if sentence not in self.remarks:
            self.remarks.append(sentence)


class Session(ABC, Generic[Block, C, R]):
    """All ranks measure one plan together.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    plan : object
        What to measure: its `blocks` one after the other, beside its `peers`.
    observe : callable, optional
        Told how many stages are done, and what comes now.
    extra : callable, optional
        Further contestants, beside those of the plan; told the block and its case.
    """

    warm_up = 3  # rounds
    preposition = "on"  # before the name of a block
    rounded_nevertheless = ""  # what rounds to a wire inside a node as well

    def __init__(
        self,
        comm: Communicator,
        plan: Any,
        observe: Observer | None = None,
        extra: Callable[[Block, Case], list[C]] | None = None,
    ) -> None:
        self.comm = comm
        self.plan = plan
        self.outcome: Outcome[R] = Outcome(find_hosts(comm))
        self.done = 0
        self._observe = observe or (lambda done, text: None)
        self._extra = extra or (lambda block, case: [])
        self._seed: int = comm.mpi.bcast(secrets.randbits(48), 0)
        self._refusals: dict[str, list[str]] = {}  # the blocks in which every reason was heard

    # ---- what a bench says of itself ---------------------------------------------------------------------------------

    @property
    def wires(self) -> Sequence[str]:
        """What ours rounds values to where they travel between nodes."""
        found: Sequence[str] = getattr(self.plan, "wires", ())
        return found

    @abstractmethod
    def place(self, block: Block) -> str:
        """Name a block in remarks."""

    def title(self, block: Block) -> str:
        """Name a block where progress is shown."""
        return self.place(block)

    def case(self, block: Block) -> Case:
        """Give the collective that a block is about."""
        raise NotImplementedError

    def contestants(self, block: Block, case: Case, peers: Sequence[Peer]) -> Iterable[C]:
        """Make the contestants of a block; all ranks together."""
        raise NotImplementedError

    def result(self, block: Block, case: Case, contestant: C, wrong: int, times: Times | None) -> R:
        """Turn what was found out about a contestant into its result; wrong ones have no times."""
        raise NotImplementedError

    def parts(self, case: Case, contestant: C) -> list[Case]:
        """Give the collective that each input of a contestant goes through."""
        return [case]

    def steps(self, case: Case, contestant: C, block_length: int) -> Steps:
        """Say how a contestant is timed, with blocks of so many values."""
        refill = refiller(case, contestant.inputs[0], block_length)
        return Steps(refill, contestant.call, refill, contestant.call)

    def end(self) -> None:
        """Do what is to be done after the last block."""

    def open_peer(self, name: str) -> Any:
        """Make a peer ready; all ranks together."""
        if name == "nccl":
            from .nccl import NcclPeer

            return NcclPeer(self.comm.mpi)
        if name == "gloo":
            os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # it warns of addresses that have no name
            from .gloo import GlooPeer  # imports PyTorch, which takes a second or two

            return GlooPeer(self.comm.mpi)
        return MpiPeer(self.comm.mpi)

    # ---- what all have in common -------------------------------------------------------------------------------------

    def run(self) -> Outcome[R]:
        """Measure every block of the plan; after an exception the ranks are no longer in step."""
        with self._measuring() as peers:
            if self.comm.nodes == 1 and any(wire != getattr(self.plan, "dtype", "float32") for wire in self.wires):
                self.outcome.remark(f"All ranks are on one node: nothing is rounded there{self.rounded_nevertheless}.")
            for block in self.plan.blocks:
                self.observe(self.title(block))
                self.measure(block, peers)
            self.end()
            for reason, places in self._refusals.items():
                self.outcome.remark(f"{', '.join(places)}: {reason}")
        return self.outcome

    def observe(self, text: str) -> None:
        """Tell what comes now."""
        self._observe(self.done, text)

    def refuse(self, block: Block, reason: str) -> None:
        """Remark why a contestant does not take part."""
        self._refusals.setdefault(reason, []).append(self.place(block))

    @contextlib.contextmanager
    def serving(self, block: Block) -> Iterator[None]:
        """Leave out a peer that does not serve a case, with its reason."""
        try:
            yield
        except NotServedError as reason:
            self.refuse(block, f"{reason}.")

    def measure(self, block: Block, peers: Sequence[Peer]) -> None:
        """Measure a block."""
        case = self.case(block)
        contestants = [*self.contestants(block, case, peers), *self._extra(block, case)]
        served, wrong = self.check(block, case, contestants)
        right = [number for number, count in enumerate(wrong) if not count]
        times: dict[int, Times] = {}
        if right:
            self.observe(f"{self.title(block)}: timing")
            times = self._time(case, [served[number] for number in right], right, wrong)
        for number, (contestant, count) in enumerate(zip(served, wrong, strict=True)):
            if count:
                where = f"{self.preposition} {self.place(block)}"
                self.outcome.remark(f"WRONG: {contestant.name} {where}: {count} wrong elements.")
            taken = None if count else times.get(number)
            self.outcome.results.append(self.result(block, case, contestant, count, taken))
        for contestant in contestants:
            contestant.close()
        self.done += 1

    def check(self, block: Block, case: Case, contestants: list[C]) -> tuple[list[C], list[int]]:
        """Call all once on fresh values; leave out those that cannot serve the call, and count what is wrong."""
        if not contestants:
            return [], []
        first = contestants[0].inputs
        sources: list[Source] = [RandomSource(alphabet(case), self.next_seed()) for _ in first]
        for values, source in zip(first, sources, strict=True):
            fill(values, source, case.rank)
        served = []
        for contestant in contestants:
            for values, filled in zip(contestant.inputs, first, strict=True):
                if contestant is not contestants[0]:
                    np.copyto(values, filled)
        for contestant in contestants:
            contestant.push()
            self.comm.barrier()
            if refusal := self._refusal(contestant):
                self.refuse(block, f"{contestant.name} was not measured: {refusal}")
            else:
                served.append(contestant)
        return served, self.count_wrong(case, sources, served)

    def check_again(self, case: Case, source: Source, contestants: list[C]) -> list[int]:
        """Count what is wrong after a series, which ended with the same values in all inputs."""
        parts = len(contestants[0].results) if contestants else 0
        return self.count_wrong(case, [source] * parts, contestants)

    def count_wrong(self, case: Case, sources: Sequence[Source], contestants: list[C]) -> list[int]:
        """Count wrong elements over all results and ranks."""
        own = np.zeros(len(contestants), np.int64)
        for contestant in contestants:
            contestant.pull()
        parts = self.parts(case, contestants[0]) if contestants else []
        for index, (part, source) in enumerate(zip(parts, sources, strict=False)):
            own += count_wrong(part, source, [contestant.results[index] for contestant in contestants])
        return sum_over_ranks(self.comm, own.tolist())

    def courses(self, case: Case, contestants: list[C]) -> tuple[Course, Course | None]:
        """Make what the series need; on a device also those whose calls nobody waits for."""
        fresh = FreshValues(case, alphabet(case), self.next_seed())
        steps = [self.steps(case, contestant, fresh.block_length) for contestant in contestants]
        return Course(steps, fresh, self.comm.barrier), None

    def next_seed(self) -> int:
        """Give a seed, the same on all ranks."""
        self._seed += 1
        return self._seed

    def _refusal(self, contestant: C) -> str | None:
        """Call a contestant; give why the first rank says that it cannot serve the call."""
        refusal = None
        try:
            contestant.call()
        except (ValueError, TypeError, RuntimeError) as error:
            if isinstance(error, CommunicationError):
                raise
            refusal = f"{type(error).__name__}: {error}"
        return next((text for text in self.comm.mpi.allgather(refusal) if text is not None), None)

    def _time(self, case: Case, contestants: list[C], places: list[int], wrong: list[int]) -> dict[int, Times]:
        """Take all series, adding what the checks after them find to `wrong`; return rank 0's view of the times."""
        course, launches = self.courses(case, contestants)

        def check(iteration: int) -> None:
            counts = self.check_again(case, course.fresh.source(iteration), contestants)
            for place, count in zip(places, counts, strict=True):
                wrong[place] += count

        plan = self.plan
        times = take_series(self.comm, course, plan.iterations, plan.seconds, check, self.warm_up, launches)
        return dict(zip(places, times, strict=True))

    @contextlib.contextmanager
    def _measuring(self) -> Iterator[list[Peer]]:
        """Have peers ready, and the load watched, which is then part of the outcome."""
        hosts = self.outcome.hosts
        peers = [self.open_peer(name) for name in self.plan.peers]
        meter = LoadMeter(self.comm)
        yield peers
        # Not after an exception: the other ranks would not come, and the job ends anyway.
        self.outcome.load = meter.stop()
        if remark := self.outcome.load.remark(hosts.ranks_on_this_machine):
            self.outcome.remark(remark)
        for peer in peers:
            peer.close()
