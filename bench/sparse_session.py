"""Measuring sparse communication: for each model and chunk size build the contestants, check, time, and check again."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .collectives import Case
from .contestants import Peer
from .data import RandomSource, Source, Values, alphabet, count_wrong
from .hosts import find_hosts
from .kernels import KERNELS, active_level
from .kernels_plan import KernelsPlan
from .kernels_results import KernelResult
from .kernels_session import KernelBench
from .measure import Course, FreshValues
from .results import Times
from .rounding import count_beyond_rounding
from .series import sum_over_ranks, take_series
from .session import Outcome, measuring
from .shapes import Model
from .sparse import SparseContestant, sparse_contestants
from .sparse_plan import DTYPE, SparsePlan
from .sparse_reference import Flags, Layout, PaddedSource, Reference, choose
from .sparse_results import SparseResult, Traced, summarise_sparse
from .traffic import Traffic

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator

    Observer = Callable[[int, str], None]

_WARM_UP_ROUNDS = 2  # the first iteration of a sparse pool is dense
_COUNTED_STEPS = 3  # in which bytes are counted
_CHECKED_STEPS = 3  # dense; the first sparse one; and one that sends what was held back before
_KERNELS = ("hold_back", "gather", "scatter")
_KERNEL_SECONDS = 0.5  # for each
_LARGEST = 15  # of the values of a check, over the number of ranks: norms are exact, too


class SparseSession:
    """All ranks measure one plan together.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    plan : SparsePlan
        What to measure.
    observe : callable, optional
        Told before each model and chunk size: how many are done, and what comes now.

    Attributes
    ----------
    kernels : list of KernelResult
        After `run`, on rank 0: what works on chunks, beside a plain copy.
    """

    def __init__(self, comm: Communicator, plan: SparsePlan, observe: Observer | None = None) -> None:
        self._comm = comm
        self._plan = plan
        self._observe = observe or (lambda done, text: None)
        self._seed: int = comm.mpi.bcast(secrets.randbits(48), 0)
        self._traffic = Traffic(comm)
        self._outcome: Outcome[SparseResult] = Outcome(find_hosts(comm))
        self.kernels: list[KernelResult] = []

    def run(self) -> Outcome[SparseResult]:
        """Measure everything; after an exception the ranks are no longer in step."""
        plan = self._plan
        with measuring(self._comm, plan.peers, self._outcome) as peers:
            if self._comm.nodes == 1 and any(wire != DTYPE for wire in plan.wires):
                self._outcome.remark("All ranks are on one node: nothing is rounded there.")
            for done, (model, chunk_size) in enumerate(plan.blocks):
                self._observe(done, f"sparse {model.title}, chunks of {chunk_size}")
                self._measure(model, chunk_size, peers)
            self._observe(len(plan.blocks), "chunk kernels")
            self._measure_kernels()
        return self._outcome

    def _measure_kernels(self) -> None:
        """Measure on rank 0, while the others wait, what works on chunks, on as many gradients as each model has."""
        if self._comm.rank == 0:
            for size in dict.fromkeys(4 * model.parameters for model in self._plan.models):
                bench = KernelBench(KernelsPlan((size,), _KERNELS), size, active_level())
                kernels = [kernel for kernel in KERNELS if kernel.name in _KERNELS and kernel.dtype == DTYPE]
                self.kernels += [bench.measure(kernel, _KERNEL_SECONDS) for kernel in kernels]
            wrong = [result.kernel for result in self.kernels if result.wrong]
            if wrong:
                self._outcome.remark(f"WRONG: {', '.join(wrong)}.")
        self._comm.barrier()

    def _measure(self, model: Model, chunk_size: int, peers: Sequence[Peer]) -> None:
        comm, plan = self._comm, self._plan
        case = Case("allreduce", 4 * model.parameters, DTYPE, "mean", comm.size, comm.rank, plan.wires)
        contestants = list(sparse_contestants(comm, case, model, chunk_size, plan, peers))
        wrong = [self._check(case, contestant) for contestant in contestants]
        right = [number for number, count in enumerate(wrong) if not count]
        times = self._time(case, contestants, right, wrong) if right else {}
        for number, contestant in enumerate(contestants):
            if wrong[number]:
                self._outcome.remark(f"WRONG: {contestant.name} on {model.title}: {wrong[number]} wrong elements.")
            traced = self._trace(case, contestant, times.get(number))
            self._outcome.results.append(
                summarise_sparse(case, model, chunk_size, contestant, comm.nodes, wrong[number], traced)
            )
        for contestant in contestants:
            contestant.close()

    # ---- right or wrong ------------------------------------------------------------------------------------------

    def _check(self, case: Case, contestant: SparseContestant) -> int:
        """Take some steps with fresh integers, and count what is wrong after each, on all ranks."""
        if contestant.density is None:
            return self._check_dense(case, contestant)
        return self._check_sparse(case, contestant)

    def _check_dense(self, case: Case, contestant: SparseContestant) -> int:
        sources: list[Source] = [self._next_source(case) for _ in contestant.exchange.tensors]
        for tensor, source in zip(contestant.exchange.tensors, sources, strict=True):
            tensor[...] = source.values(case.rank, 0, len(tensor))
        contestant.exchange.step()
        return self._count_wrong(case, sources, contestant)

    def _check_sparse(self, case: Case, contestant: SparseContestant) -> int:
        """Compare with the reference: the ranks share the chunks for the means, and each sees to what it holds back."""
        comm, pool, plan = self._comm, contestant.pool, self._plan
        layout = _layout(pool)
        bounds = np.linspace(0, layout.chunks, comm.size + 1).astype(int)
        part = range(bounds[comm.rank], bounds[comm.rank + 1])
        begin, end = layout.range_of(part)
        shared = Reference(layout, part, range(comm.size), plan.momentum)
        own = Reference(layout, range(layout.chunks), [comm.rank], plan.momentum)
        gradients: Values = pool.memory.view(np.float32)
        important: Flags = np.ones(layout.chunks, bool)
        wrong = 0
        for step in range(_CHECKED_STEPS):
            source = PaddedSource(self._next_source(case), layout)
            gradients[:] = source.values(comm.rank, 0, layout.elements)
            wrong += int(np.count_nonzero(pool.important != important))
            contestant.exchange.step()
            expected = shared.iterate(source, important)
            own.iterate(source, important)
            wrong += _count_held_wrong(pool, layout, own.held[comm.rank])
            wrong += not np.array_equal(pool.sent, np.flatnonzero(important))
            # Where something was held back before, it need not be an integer.
            if step < _CHECKED_STEPS - 1:
                wrong += int(np.count_nonzero(gradients[begin:end] != expected.mean))
                norms = np.concatenate(comm.mpi.allgather(expected.norms))
                wrong += int(np.count_nonzero(pool.norms != norms))
                important = choose(norms, contestant.density or 1.0)
            else:
                means = gradients[begin:end]
                wire = contestant.exchange.wire
                wrong += count_beyond_rounding(means, expected.mean, expected.magnitude, comm.size, wire)
        return sum_over_ranks(comm, [wrong])[0] + self._count_strays(contestant)

    def _count_strays(self, contestant: SparseContestant) -> int:
        """Count the ranks that ended with gradients of their own."""
        digests = self._comm.mpi.allgather(hashlib.sha256(contestant.pool.memory).hexdigest())
        return sum(digest != digests[0] for digest in digests)

    def _count_wrong(self, case: Case, sources: Sequence[Source], contestant: SparseContestant) -> int:
        """Count wrong elements of a dense contestant, over all ranks."""
        own = 0
        for tensor, source in zip(contestant.exchange.tensors, sources, strict=True):
            own += count_wrong(replace(case, size=tensor.nbytes), source, [tensor])[0]
        return sum_over_ranks(self._comm, [own])[0]

    # ---- figures -------------------------------------------------------------------------------------------------

    def _time(
        self, case: Case, contestants: Sequence[SparseContestant], right: list[int], wrong: list[int]
    ) -> dict[int, Times]:
        """Take all series, adding what the checks after them find to `wrong`; return rank 0's view of the times."""
        fresh = FreshValues(case, alphabet(case), self._next_seed())
        timed = [contestants[number] for number in right]

        def check(iteration: int) -> None:
            for number, contestant in zip(right, timed, strict=True):
                if contestant.density is not None:
                    wrong[number] += self._count_strays(contestant) + self._count_left(contestant)
                else:
                    sources = [fresh.source(iteration)] * len(contestant.exchange.tensors)
                    wrong[number] += self._count_wrong(case, sources, contestant)

        course = Course(
            [contestant.exchange.steps(fresh.block_length) for contestant in timed], fresh, self._comm.barrier
        )
        times = take_series(self._comm, course, self._plan.iterations, self._plan.seconds, check, _WARM_UP_ROUNDS)
        return dict(zip(right, times, strict=True))

    def _trace(self, case: Case, contestant: SparseContestant, times: Times | None) -> Traced:
        """Add to a contestant's times what else is known of its steps."""
        sent = replace(case, size=round(case.size * contestant.share))
        link_seconds = self._outcome.hosts.link_seconds(sent, contestant.exchange.wire)
        if times is None:
            return Traced(None, None, None, link_seconds)
        filled = contestant.bookkeeping[-len(times.refill) :]  # the last series
        return Traced(times, self._bytes_sent(contestant), self._slowest_median(filled), link_seconds)

    def _count_left(self, contestant: SparseContestant) -> int:
        """Count the elements that are not zero where nothing was sent, over all ranks."""
        gradients = contestant.pool.memory.view(np.float32)
        count = int(np.count_nonzero(gradients))
        count -= sum(int(np.count_nonzero(gradients[begin:end])) for begin, end in contestant.pool.spans)
        return sum_over_ranks(self._comm, [count])[0]

    def _bytes_sent(self, contestant: SparseContestant) -> int | None:
        """Count what a rank sends in a step, by the interface that leads to the other hosts."""
        comm = self._comm
        if not self._traffic.is_known:
            return None
        comm.barrier()
        before = self._traffic.sent()
        for _ in range(_COUNTED_STEPS):
            contestant.exchange.step()
        comm.barrier()
        sent = sum_over_ranks(comm, [self._traffic.sent() - before])[0]
        return round(sent / _COUNTED_STEPS / comm.size)

    def _slowest_median(self, seconds: Sequence[float]) -> float | None:
        medians: list[float | None] = self._comm.mpi.allgather(float(np.median(seconds)) if seconds else None)
        known = [median for median in medians if median is not None]
        return max(known) if known else None

    def _next_source(self, case: Case) -> RandomSource:
        values = alphabet(case)
        return RandomSource(values[np.abs(values) <= _LARGEST * case.ranks], self._next_seed())

    def _next_seed(self) -> int:
        self._seed += 1
        return self._seed


def _layout(pool: Any) -> Layout:
    """Describe how the gradients lie in a sparse pool."""
    begins = [offset // np.dtype(DTYPE).itemsize for offset in pool.offsets]
    places = [(begin, begin + view.size) for begin, view in zip(begins, pool.views, strict=True)]
    return Layout(places, len(pool.memory.view(DTYPE)), pool.chunk_size)


def _count_held_wrong(pool: Any, layout: Layout, expected: Values) -> int:
    """Count what a rank holds back and should not, or not so."""
    return sum(
        int(np.count_nonzero(held.reshape(-1) != expected[begin:end]))
        for held, (begin, end) in zip(pool.held, layout.places, strict=True)
    )
