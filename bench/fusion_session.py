"""Measuring ways to average all gradients: for each model build the contestants, check, time, and check them again."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from .collectives import Case
from .contestants import Peer
from .data import RandomSource, Source, alphabet, count_wrong, fill
from .fusion import FusionContestant, Key, fusion_contestants
from .fusion_plan import DTYPE, FusionPlan
from .fusion_results import FusionResult, summarise_step
from .hosts import find_hosts
from .measure import Course, FreshValues
from .results import Times
from .series import sum_over_ranks, take_series
from .session import Outcome, measuring
from .shapes import MODELS, Model

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator

    Observer = Callable[[int, str], None]
    Builder = Callable[[Case, Model], list[FusionContestant]]

_WARM_UP_ROUNDS = 1  # a round takes seconds; it touches all of the memory


class FusionSession:
    """All ranks measure one plan together.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    plan : FusionPlan
        What to measure.
    observe : callable, optional
        Told before each model: how many are done, and what comes now.
    extra : callable, optional
        Further contestants, beside those of the plan.
    """

    def __init__(
        self, comm: Communicator, plan: FusionPlan, observe: Observer | None = None, extra: Builder | None = None
    ) -> None:
        self._comm = comm
        self._plan = plan
        self._observe = observe or (lambda done, text: None)
        self._extra = extra or (lambda case, model: [])
        self._seed: int = comm.mpi.bcast(secrets.randbits(48), 0)
        self._outcome: Outcome[FusionResult] = Outcome(find_hosts(comm))

    def run(self) -> Outcome[FusionResult]:
        """Measure every model of the plan; after an exception the ranks are no longer in step."""
        plan = self._plan
        with measuring(self._comm, plan.peers, self._outcome) as peers:
            if self._comm.nodes == 1 and any(wire != DTYPE for wire in plan.wires):
                self._outcome.remark("All ranks are on one node: nothing is rounded there.")
            for done, name in enumerate(plan.models):
                self._observe(done, f"fusion {MODELS[name].title}")
                self._measure(MODELS[name], peers)
            self._observe(len(plan.models), "done")
        return self._outcome

    def _measure(self, model: Model, peers: Sequence[Peer]) -> None:
        comm, plan = self._comm, self._plan
        size = model.parameters * np.dtype(DTYPE).itemsize
        case = Case("allreduce", size, DTYPE, "mean", comm.size, comm.rank, plan.wires)
        with _closing(fusion_contestants(comm, case, model, plan, peers), self._extra(case, model)) as contestants:
            copied, wrong = self._check_first(case, contestants)
            right = [contestant for contestant in contestants if not wrong[contestant.key]]
            times = self._time(case, right, wrong) if right else {}
            for contestant in contestants:
                key = contestant.key
                if wrong[key]:
                    self._outcome.remark(f"WRONG: {contestant.name} on {model.title}: {wrong[key]} wrong elements.")
                link_seconds = self._outcome.hosts.link_seconds(case, contestant.wire)
                figures = copied[key], wrong[key], times.get(key), link_seconds
                self._outcome.results.append(summarise_step(case, model, contestant, comm.nodes, *figures))

    def _check_first(self, case: Case, contestants: list[FusionContestant]) -> tuple[dict[Key, int], dict[Key, int]]:
        """Take a step with fresh random values; return what each has copied, and how many elements were wrong."""
        sources = [RandomSource(alphabet(case), self._next_seed()) for _ in contestants[0].tensors]
        first = contestants[0].tensors
        for index, source in enumerate(sources):
            fill(first[index], source, case.rank)
            for contestant in contestants[1:]:
                np.copyto(contestant.tensors[index], first[index])
        copied = {}
        for contestant in contestants:
            self._comm.barrier()
            before = contestant.copied()
            contestant.step()
            copied[contestant.key] = contestant.copied() - before
        return copied, self._count_wrong(case, sources, contestants)

    def _time(self, case: Case, contestants: list[FusionContestant], wrong: dict[Key, int]) -> dict[Key, Times]:
        """Take all series, adding what the checks after them find to `wrong`; return rank 0's view of the times."""
        fresh = FreshValues(case, alphabet(case), self._next_seed())
        steps = [contestant.steps(fresh.block_length) for contestant in contestants]

        def check(iteration: int) -> None:
            sources = [fresh.source(iteration)] * len(contestants[0].tensors)
            for key, count in self._count_wrong(case, sources, contestants).items():
                wrong[key] += count

        course = Course(steps, fresh, self._comm.barrier)
        times = take_series(self._comm, course, self._plan.iterations, self._plan.seconds, check, _WARM_UP_ROUNDS)
        return {contestant.key: taken for contestant, taken in zip(contestants, times, strict=True)}

    def _count_wrong(
        self, case: Case, sources: Sequence[Source], contestants: list[FusionContestant]
    ) -> dict[Key, int]:
        """Count wrong elements over all tensors and ranks."""
        own = np.zeros(len(contestants), np.int64)
        for index, source in enumerate(sources):
            tensors = [contestant.tensors[index] for contestant in contestants]
            own += count_wrong(replace(case, size=tensors[0].nbytes), source, tensors)
        counts = sum_over_ranks(self._comm, own.tolist())
        return {contestant.key: count for contestant, count in zip(contestants, counts, strict=True)}

    def _next_seed(self) -> int:
        self._seed += 1
        return self._seed


@contextlib.contextmanager
def _closing(
    contestants: Iterator[FusionContestant], extra: list[FusionContestant]
) -> Iterator[list[FusionContestant]]:
    """Close all contestants at the end; not after an exception, when the ranks are no longer in step."""
    opened = [*contestants, *extra]
    yield opened
    for contestant in opened:
        contestant.close()
