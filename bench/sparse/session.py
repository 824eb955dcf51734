"""Measurement of sparse communication."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.case import Case
from ..core.data import RandomSource, Source, Values, alphabet, count_beyond_rounding
from ..core.measure import Steps, Times, sum_over_ranks
from ..core.objects import from_all
from ..core.peers import Peer
from ..core.session import Observer, Session
from ..core.shapes import Model
from ..core.traffic import Traffic
from ..kernels.columns import KernelResult
from ..kernels.contestants import KERNELS, active_level
from ..kernels.plan import KernelsPlan
from ..kernels.session import KernelBench
from .columns import SparseResult, summarize_sparse
from .contestants import SparseContestant, sparse_contestants
from .plan import DTYPE, SparsePlan
from .reference import Flags, Layout, PaddedSource, Reference, choose

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator
    from gradientflow.pools.sparse import SparseGradientPool

Block = tuple[Model, int]

_COUNTED_STEPS = 3  # number of steps in which bytes are counted
_CHECKED_STEPS = 3  # a dense step, the first sparse one, then a step that sends earlier residuals
_KERNELS = ("update_residual", "gather", "scatter")
_KERNEL_SECONDS = 0.5  # seconds for each kernel
_LARGEST = 15  # largest value of a check over the number of ranks: small enough for exact norms


class SparseSession(Session[Block, SparseContestant, SparseResult]):
    """All ranks exchange the gradients of models; a block is a model and a chunk size."""

    warm_up = 2  # the first iteration of a sparse pool is dense

    def __init__(self, comm: Communicator, plan: SparsePlan, observe: Observer | None = None) -> None:
        super().__init__(comm, plan, observe)
        self._traffic = Traffic(comm)

    def place(self, block: Block) -> str:
        """Name a model."""
        return block[0].title

    def title(self, block: Block) -> str:
        """Name a model and a chunk size."""
        return f"sparse {block[0].title}, chunks of {block[1]}"

    def case(self, block: Block) -> Case:
        """Give the allreduce of all gradients."""
        size, comm = 4 * block[0].parameters, self.comm
        return Case("allreduce", size, DTYPE, "mean", comm.size, comm.rank, self.plan.wires)

    def contestants(self, block: Block, case: Case, peers: Sequence[Peer]) -> Iterator[SparseContestant]:
        """Make all contestants."""
        return sparse_contestants(self.comm, case, *block, self.plan, peers)

    def parts(self, case: Case, contestant: SparseContestant) -> list[Case]:
        """Give the allreduce of each tensor."""
        return [replace(case, size=tensor.nbytes) for tensor in contestant.inputs]

    def steps(self, case: Case, contestant: SparseContestant, block_length: int) -> Steps:
        """Give the steps, which write tensors in turn."""
        return contestant.steps(block_length)

    def end(self) -> None:
        """Measure the kernels for chunks, on the sizes of the models, on rank 0 while other ranks wait."""
        self.observe("chunk kernels")
        found: list[KernelResult] = []
        if self.comm.rank == 0:
            for size in dict.fromkeys(4 * model.parameters for model in self.plan.models):
                bench = KernelBench(KernelsPlan((size,), _KERNELS), size, active_level())
                kernels = [kernel for kernel in KERNELS if kernel.name in _KERNELS and kernel.dtype == DTYPE]
                found += [bench.measure(kernel, _KERNEL_SECONDS) for kernel in kernels]
            wrong = [result.kernel for result in found if result.wrong]
            if wrong:
                self.outcome.remark(f"WRONG: {', '.join(wrong)}.")
        self.outcome.others["kernels"] = found
        self.comm.barrier()

    # ---- right or wrong ----------------------------------------------------------------------------------------------

    def check(
        self, block: Block, case: Case, contestants: list[SparseContestant]
    ) -> tuple[list[SparseContestant], list[int]]:
        """Compare dense contestants with the mean, and some steps of sparse contestants with the reference."""
        served, wrong = super().check(block, case, [one for one in contestants if one.density is None])
        sparse = [one for one in contestants if one.density is not None]
        return [*served, *sparse], [*wrong, *(self._check_sparse(case, one) for one in sparse)]

    def check_again(self, case: Case, source: Source, contestants: list[SparseContestant]) -> list[int]:
        """Compare dense results with the mean; sparse results must be equal on all ranks, and zero where not sent."""
        dense = iter(super().check_again(case, source, [one for one in contestants if one.density is None]))
        return [
            next(dense) if one.density is None else self._count_strays(one) + self._count_left(one)
            for one in contestants
        ]

    def _check_sparse(self, case: Case, contestant: SparseContestant) -> int:
        """Compare with the reference: the ranks divide the chunks of the means; each rank checks its own residuals."""
        comm, pool, plan = self.comm, contestant.pool, self.plan
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
            contestant.call()
            expected = shared.iterate(source, important)
            own.iterate(source, important)
            wrong += _count_wrong_residuals(pool, layout, own.residuals[comm.rank])
            wrong += not np.array_equal(pool.sent, np.flatnonzero(important))
            # With earlier residuals, values need not be integers.
            if step < _CHECKED_STEPS - 1:
                wrong += int(np.count_nonzero(gradients[begin:end] != expected.mean))
                norms = np.concatenate(from_all(comm, expected.norms))
                wrong += int(np.count_nonzero(pool.norms != norms))
                important = choose(norms, contestant.density or 1.0)
            else:
                means = gradients[begin:end]
                wire = contestant.wire
                wrong += count_beyond_rounding(means, expected.mean, expected.magnitude, comm.size, wire)
        return sum_over_ranks(comm, [wrong])[0] + self._count_strays(contestant)

    def _count_strays(self, contestant: SparseContestant) -> int:
        """Count the ranks whose final gradients differ from rank 0's."""
        digests = from_all(self.comm, hashlib.sha256(contestant.pool.memory).hexdigest())
        return sum(digest != digests[0] for digest in digests)

    # ---- figures -----------------------------------------------------------------------------------------------------

    def result(
        self, block: Block, case: Case, contestant: SparseContestant, wrong: int, times: Times | None
    ) -> SparseResult:
        """Make the result of a contestant, with its bookkeeping and bytes sent."""
        sent = replace(case, size=round(case.size * contestant.share))
        link_seconds = self.outcome.hosts.link_seconds(sent, contestant.wire)
        bytes_sent = bookkeeping = None
        if times is not None:
            bytes_sent = self._bytes_sent(contestant)
            bookkeeping = self._slowest_median(contestant.bookkeeping[-len(times.refill) :])  # times of the last series
        nodes = self.comm.nodes
        return summarize_sparse(case, *block, contestant, bytes_sent, bookkeeping, nodes, wrong, times, link_seconds)

    def _count_left(self, contestant: SparseContestant) -> int:
        """Count nonzero elements in chunks that were not sent, over all ranks."""
        gradients = contestant.pool.memory.view(np.float32)
        count = int(np.count_nonzero(gradients))
        count -= sum(int(np.count_nonzero(gradients[begin:end])) for begin, end in contestant.pool.spans)
        return sum_over_ranks(self.comm, [count])[0]

    def _bytes_sent(self, contestant: SparseContestant) -> int | None:
        """Count the bytes that a rank sends in a step, by the interface that leads to other hosts."""
        comm = self.comm
        if not self._traffic.is_known:
            return None
        comm.barrier()
        before = self._traffic.sent()
        for _ in range(_COUNTED_STEPS):
            contestant.call()
        comm.barrier()
        sent = sum_over_ranks(comm, [self._traffic.sent() - before])[0]
        return round(sent / _COUNTED_STEPS / comm.size)

    def _slowest_median(self, seconds: Sequence[float]) -> float | None:
        medians: list[float | None] = from_all(self.comm, float(np.median(seconds)) if seconds else None)
        known = [median for median in medians if median is not None]
        return max(known) if known else None

    def _next_source(self, case: Case) -> RandomSource:
        values = alphabet(case)
        return RandomSource(values[np.abs(values) <= _LARGEST * case.ranks], self.next_seed())


def _layout(pool: Any) -> Layout:
    """Give the layout of the gradients in a sparse pool."""
    begins = [offset // np.dtype(DTYPE).itemsize for offset in pool.offsets]
    places = [(begin, begin + view.size) for begin, view in zip(begins, pool.views, strict=True)]
    return Layout(places, len(pool.memory.view(DTYPE)), pool.chunk_size)


def _count_wrong_residuals(pool: SparseGradientPool, layout: Layout, expected: Values) -> int:
    """Count the wrong numbers among a rank's residuals."""
    return sum(
        int(np.count_nonzero(residual.reshape(-1) != expected[begin:end]))
        for residual, (begin, end) in zip(pool.residuals, layout.places, strict=True)
    )
