"""Measurement of a plan: for each block make the contestants, check them, time them interleaved, and check them again.

A bench defines its blocks, its contestants, and its results; this file has everything else.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

import gradientflow as gf
from gradientflow.errors import CommunicationError
from gradientflow.machine_load import Load, LoadMeter

from .case import Case
from .data import RandomSource, Source, Values, alphabet, count_wrong, fill
from .hosts import Hosts, find_hosts
from .measure import FreshValues, Series, Steps, Times, refiller, sum_over_ranks, take_series
from .objects import from_all, from_root
from .peers import OURS, MpiPeer, NotServedError, Peer
from .plan import AUTO
from .table import AnyResult

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator

Observer = Callable[[int, str], None]


class Checked(Protocol):
    """A result with its number of wrong elements."""

    @property
    def wrong(self) -> int:
        """Wrong elements, summed over ranks and checks."""
        ...


class Timed(Protocol):
    """A contestant of a bench."""

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
        """Flat arrays with the results, after `pull`: one for each input, possibly the input itself."""
        ...

    @property
    def call(self) -> Callable[[], object]:
        """The function that works on the written inputs."""
        ...

    def push(self) -> None:
        """Copy the inputs to the device, or wherever the call reads them."""
        ...

    def pull(self) -> None:
        """Copy the results back."""
        ...

    @property
    def close(self) -> Callable[[], object]:
        """The function that releases its resources. Collective."""
        ...


R = TypeVar("R", bound=Checked)
C = TypeVar("C", bound=Timed)
Block = TypeVar("Block")


@dataclass
class RunOutcome(Generic[R]):
    """The outcome of a run.

    Attributes
    ----------
    hosts : Hosts
        The hosts of the ranks.
    results : list
        The results; only rank 0's have times.
    remarks : list of str
        Remarks for the reader, one sentence each.
    load : Load or None
        The load of other programs on the machine; known after the run.
    facts : mapping
        Further entries of the environment in a result file.
    others : mapping
        Further results, by their names in the file.
    """

    hosts: Hosts
    results: list[R] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    load: Load | None = None
    facts: Mapping[str, object] = field(default_factory=dict)
    others: dict[str, Sequence[AnyResult]] = field(default_factory=dict)

    @property
    def wrong(self) -> int:
        """Wrong elements of all results."""
        further = (result for results in self.others.values() for result in results)
        return sum(result.wrong for result in self.results) + sum(getattr(result, "wrong", 0) for result in further)

    def remark(self, sentence: str) -> None:
        """Add a remark, once."""
        if sentence not in self.remarks:
            self.remarks.append(sentence)


def open_transports(comm: Communicator, plan: object) -> dict[str, Communicator]:
    """Give the communicators of the transports that a plan compares, all of the same ranks, including `comm`."""
    own = str(comm.describe()["transport"])
    wanted = [own if name == AUTO else name for name in getattr(plan, "transports", (AUTO,))]
    return {name: comm if name == own else gf.init(comm.mpi, transport=name) for name in dict.fromkeys(wanted)}


class Session(ABC, Generic[Block, C, R]):
    """All ranks measure one plan together.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    plan : object
        The plan: its `blocks` are measured in order, compared with its `peers`.
    observe : callable, optional
        Takes the number of finished stages and the title of the next stage.
    extra : callable, optional
        Takes a block and its case; gives contestants in addition to the plan's.
    """

    warm_up = 3  # number of rounds
    preposition = "on"  # put before the name of a block
    rounded_nevertheless = ""  # for a remark on contestants that round to the wire dtype inside a node as well

    def __init__(
        self,
        comm: Communicator,
        plan: Any,
        observe: Observer | None = None,
        extra: Callable[[Block, Case], list[C]] | None = None,
    ) -> None:
        self.comm = comm
        self.comms = open_transports(comm, plan)
        self.plan = plan
        self.outcome: RunOutcome[R] = RunOutcome(find_hosts(comm))
        self.done = 0
        self._observe = observe or (lambda done, text: None)
        self._extra = extra or (lambda block, case: [])
        self._seed: int = from_root(comm, secrets.randbits(48))
        self._refusals: dict[str, list[str]] = {}  # blocks by reason

    # ---- defined by each bench ---------------------------------------------------------------------------------------

    @property
    def wires(self) -> Sequence[str]:
        """The dtypes of our messages between nodes."""
        found: Sequence[str] = getattr(self.plan, "wires", ())
        return found

    @abstractmethod
    def place(self, block: Block) -> str:
        """Name a block in remarks."""

    def title(self, block: Block) -> str:
        """Name a block where progress is shown."""
        return self.place(block)

    def case(self, block: Block) -> Case:
        """Give the collective that a block measures."""
        raise NotImplementedError

    def contestants(self, block: Block, case: Case, peers: Sequence[Peer]) -> Iterable[C]:
        """Make the contestants of a block. Collective."""
        raise NotImplementedError

    def result(self, block: Block, case: Case, contestant: C, wrong: int, times: Times | None) -> R:
        """Make the result of a contestant; a wrong contestant has no times."""
        raise NotImplementedError

    def parts(self, case: Case, contestant: C) -> list[Case]:
        """Give the collective of each input of a contestant."""
        return [case]

    def steps(self, case: Case, contestant: C, block_length: int) -> Steps:
        """Give the functions that time a contestant, with blocks of `block_length` values."""
        refill = refiller(case, contestant.inputs[0], block_length)
        return Steps(refill, contestant.call, refill, contestant.call)

    def end(self) -> None:
        """Finish, after the last block."""

    def open_peer(self, name: str) -> Any:
        """Open a peer. Collective."""
        if name == "nccl":
            from .nccl import NcclPeer

            return NcclPeer(self.comm)
        if name == "gloo":
            os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # Gloo warns of addresses without a name
            from .gloo import GlooPeer  # imports PyTorch, which takes a second or two

            return GlooPeer(self.comm)
        return MpiPeer(self.comm.mpi)

    # ---- common to all benches ---------------------------------------------------------------------------------------

    def run(self) -> RunOutcome[R]:
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
        """Report the next stage."""
        self._observe(self.done, text)

    def refuse(self, block: Block, reason: str) -> None:
        """Add a remark with the reason why a contestant does not take part."""
        self._refusals.setdefault(reason, []).append(self.place(block))

    @contextlib.contextmanager
    def serving(self, block: Block) -> Iterator[None]:
        """Leave out a peer that does not support a case, with a remark."""
        try:
            yield
        except NotServedError as reason:
            self.refuse(block, f"{reason}.")

    def measure(self, block: Block, peers: Sequence[Peer]) -> None:
        """Measure a block."""
        case = self.case(block)
        transports, contestants = self._contestants_over_all(block, case, peers)
        contestants += self._extra(block, case)
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
            result: Any = self.result(block, case, contestant, count, taken)
            transport = transports.get(id(contestant))
            self.outcome.results.append(result if transport is None else replace(result, transport=transport))
        for contestant in contestants:
            contestant.close()
        self.done += 1

    def _contestants_over_all(self, block: Block, case: Case, peers: Sequence[Peer]) -> tuple[dict[int, str], list[C]]:
        """Make our contestants over each transport, and peers once; also give the transports of ours, by their ids."""
        found: list[C] = []
        transports: dict[int, str] = {}
        first, (*_, last) = self.comm, self.comms
        for transport, comm in self.comms.items():
            self.comm = comm
            made = list(self.contestants(block, case, peers if transport == last else ()))
            transports |= {id(each): transport for each in made if getattr(each, "backend", OURS) == OURS}
            found += made
        self.comm = first
        return transports, found

    def check(self, block: Block, case: Case, contestants: list[C]) -> tuple[list[C], list[int]]:
        """Call each contestant once on fresh values; leave out contestants that refuse, and count wrong elements."""
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
        """Count wrong elements after a series, which leaves the same values in all inputs."""
        parts = len(contestants[0].results) if contestants else 0
        return self.count_wrong(case, [source] * parts, contestants)

    def count_wrong(self, case: Case, sources: Sequence[Source], contestants: list[C]) -> list[int]:
        """Count wrong elements over all results and ranks."""
        own = np.zeros(len(contestants), np.int64)
        for contestant in contestants:
            contestant.pull()
        parts = self.parts(case, contestants[0]) if contestants else []
        for index, (part, source) in enumerate(zip(parts, sources, strict=False)):
            results = [contestant.results[index] for contestant in contestants]
            own += count_wrong(part, source, results, [getattr(each, "wire", "") for each in contestants])
        return sum_over_ranks(self.comm, own.tolist())

    def series(self, case: Case, contestants: list[C]) -> tuple[Series, Series | None]:
        """Make the series; on a device also a series of calls without a wait for the device."""
        fresh = FreshValues(case, alphabet(case), self.next_seed())
        steps = [self.steps(case, contestant, fresh.block_length) for contestant in contestants]
        return Series(steps, fresh, self.comm.barrier), None

    def next_seed(self) -> int:
        """Give a seed, equal on all ranks."""
        self._seed += 1
        return self._seed

    def _refusal(self, contestant: C) -> str | None:
        """Call a contestant; if it does not support the call, give the first rank's reason."""
        refusal = None
        try:
            contestant.call()
        except (ValueError, TypeError, RuntimeError) as error:
            if isinstance(error, CommunicationError):
                raise
            refusal = f"{type(error).__name__}: {error}"
        return next((text for text in from_all(self.comm, refusal) if text is not None), None)

    def _time(self, case: Case, contestants: list[C], places: list[int], wrong: list[int]) -> dict[int, Times]:
        """Take all series, and add wrong elements to `wrong`; return the times, on rank 0 over all ranks."""
        series, launches = self.series(case, contestants)

        def check(iteration: int) -> None:
            counts = self.check_again(case, series.fresh.source(iteration), contestants)
            for place, count in zip(places, counts, strict=True):
                wrong[place] += count

        plan = self.plan
        times = take_series(self.comm, series, plan.iterations, plan.seconds, check, self.warm_up, launches)
        return dict(zip(places, times, strict=True))

    @contextlib.contextmanager
    def _measuring(self) -> Iterator[list[Peer]]:
        """Open the peers, and measure the load, which becomes part of the outcome."""
        hosts = self.outcome.hosts
        peers = [self.open_peer(name) for name in self.plan.peers]
        meter = LoadMeter(self.comm)
        yield peers
        # Not after an exception: other ranks would not take part, and the job ends anyway.
        self.outcome.load = meter.stop()
        if remark := self.outcome.load.remark(hosts.ranks_on_this_machine):
            self.outcome.remark(remark)
        for comm in self.comms.values():
            if comm is not self.comm:
                comm.close()
        for peer in peers:
            peer.close()
