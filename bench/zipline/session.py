"""Measurement of the searches: on the same random instances, each compared with an independent search."""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..core.native import load_barriers
from ..core.peers import Peer
from ..core.session import Observer, Session, Timed
from .columns import Trial, ZiplineResult, summarize_search
from .decisions import measure_decisions
from .plan import EXACT, ZiplinePlan

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator

Block = tuple[int, int]
Times = NDArray[np.float64]  # milliseconds, [worker, push], ascending

_INTERVALS = 1000.0, 1500.0  # least and most milliseconds between the pushes of a worker
_SHORTEST = 1e-3  # least seconds of a timed section, which contains several searches if they are shorter


class ZiplineSession(Session[Block, Timed, ZiplineResult]):
    """One process measures all searches; a block is a size."""

    def __init__(self, comm: Communicator, plan: ZiplinePlan, observe: Observer | None = None) -> None:
        super().__init__(comm, plan, observe)
        self._find = load_barriers().find_barrier

    def place(self, block: Block) -> str:
        """Name a size."""
        return "{} workers, {} pushes each".format(*block)

    def measure(self, block: Block, peers: Sequence[Peer]) -> None:
        """Run every algorithm on the same instances, as many as fit its time."""
        trials: dict[str, list[Trial]] = {algorithm: [] for algorithm in self.plan.algorithms}
        for _ in range(self.plan.draws):
            times = draw_times(*block, np.random.default_rng(self.next_seed()))
            best = smallest_spread(times)
            for algorithm, made in trials.items():
                if sum(trial.nanoseconds for trial in made) < self.plan.seconds * 1e9:
                    made.append(self._try(algorithm, times, best))
        for algorithm, made in trials.items():
            result = summarize_search(algorithm, *block, made)
            if result.wrong:
                self.outcome.remark(f"WRONG: {algorithm}, {self.place(block)}: {result.wrong} instances.")
            self.outcome.results.append(result)
        self.done += 1

    def end(self) -> None:
        """Time the decisions of the policies."""
        plan = self.plan
        if plan.policies:
            self.outcome.others["decisions"] = [
                measure_decisions(policy, plan.deciding, self.next_seed()) for policy in plan.policies
            ]

    def _try(self, algorithm: str, times: Times, best: tuple[float, float]) -> Trial:
        """Check a search, then time it. An exact search must equal the reference; any other must find a solution."""
        start = time.perf_counter()
        spread, barrier, pushes = self._find(times, algorithm)
        seconds = time.perf_counter() - start
        chosen = times[np.arange(len(times)), np.array(pushes) - 1]
        right = spread == chosen.max() - chosen.min() and barrier == chosen.max()
        if algorithm in EXACT:
            right = right and (spread, barrier) == best
        repeats = max(int(_SHORTEST / max(seconds, 1e-9)), 1)
        begin = time.perf_counter_ns()
        for _ in range(repeats):
            self._find(times, algorithm)
        return Trial((time.perf_counter_ns() - begin) // repeats, spread, spread == best[0], right)


def draw_times(workers: int, lookahead: int, random: np.random.Generator) -> Times:
    """Draw the predicted pushes of an instance, as in the thesis (section 6.6.1).

    The result is in milliseconds, [worker, push]. Each worker has a different interval, and begins at a random time in
    it.
    """
    intervals = random.uniform(*_INTERVALS, workers)
    last = -random.uniform(size=workers) * intervals
    times: Times = last[:, None] + intervals[:, None] * np.arange(1, lookahead + 1)
    return times


def smallest_spread(times: Times) -> tuple[float, float]:
    """Find the smallest spread and its earliest barrier, with a heap: the reference."""
    rows = times.tolist()
    heap = [(row[0], worker, 0) for worker, row in enumerate(rows)]
    heapq.heapify(heap)
    latest = max(row[0] for row in rows)
    best = (latest - heap[0][0], latest)
    while True:
        _, worker, push = heap[0]
        if push + 1 == times.shape[1]:
            return best
        following = rows[worker][push + 1]
        heapq.heapreplace(heap, (following, worker, push + 1))
        latest = max(latest, following)
        best = min(best, (latest - heap[0][0], latest))
