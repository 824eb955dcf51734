"""Policies written straight from their description, slowly: for comparison with those of the core."""

from __future__ import annotations

import itertools
from typing import Any

from gradientflow.policies import Answer, Policy


class DSSPReference(Policy):
    """Also SSP, where both bounds are the same."""

    def __init__(self, low: int, high: int, judged: str = "fastest") -> None:
        self.low, self.high, self.judged = low, high, judged

    def start(self, workers: int) -> Any:
        return _DSSP(self, workers)


class _DSSP:
    def __init__(self, policy: DSSPReference, workers: int) -> None:
        self.policy = policy
        self.times: dict[int, list[float]] = {worker: [] for worker in range(workers)}  # of those here
        self.granted = [0] * workers
        self.waiting: set[int] = set()

    def lead(self, worker: int) -> int:
        return len(self.times[worker]) - min(map(len, self.times.values()))

    def pushed(self, worker: int, now: float) -> Answer:
        before = min(map(len, self.times.values()))
        self.times[worker].append(now)
        release = []
        if self.granted[worker] > 0:
            self.granted[worker] -= 1
            release.append(worker)
        elif self.lead(worker) <= self.policy.low or self.grants(worker, now):
            release.append(worker)
        else:
            self.waiting.add(worker)
        if min(map(len, self.times.values())) != before:
            release += self.released(now)
        return Answer([[worker]], release)

    def departed(self, worker: int, now: float) -> Answer:
        before = min(map(len, self.times.values()))
        del self.times[worker]
        self.waiting.discard(worker)
        changed = self.times and min(map(len, self.times.values())) != before
        return Answer([], self.released(now) if changed else [])

    def released(self, now: float) -> list[int]:
        judges = self.policy.judged == "all"
        found = [
            worker
            for worker in sorted(self.waiting)
            if self.lead(worker) <= self.policy.low or (judges and self.grants(worker, now))
        ]
        self.waiting -= set(found)
        return found

    def grants(self, worker: int, now: float) -> bool:
        most = max(map(len, self.times.values()))
        slowest = min(self.times, key=lambda each: (len(self.times[each]), each))
        own, other = self.times[worker], self.times[slowest]
        if (self.policy.judged == "fastest" and len(own) < most) or len(own) < 2 or len(other) < 2:
            return False
        longest = self.policy.high - self.policy.low
        theirs = [other[-1] + (push + 1) * (other[-1] - other[-2]) for push in range(longest + 1)]

        def distance(iterations: int) -> float:
            return min(abs(each - (now + iterations * (own[-1] - own[-2]))) for each in theirs)

        allowed = range(min(longest, self.policy.high - self.lead(worker) + 1) + 1)
        best = min(allowed, key=lambda iterations: (distance(iterations), iterations), default=0)
        self.granted[worker] = max(best - 1, 0)
        return best > 0


class ElasticReference(Policy):
    def __init__(self, lookahead: int) -> None:
        self.lookahead = lookahead

    def start(self, workers: int) -> Any:
        return _Elastic(self.lookahead, workers)


class _Elastic:
    def __init__(self, lookahead: int, workers: int) -> None:
        self.lookahead = lookahead
        self.times: dict[int, list[float]] = {worker: [] for worker in range(workers)}  # of those here, since a barrier
        self.left: dict[int, int] | None = None  # iterations, once they are known

    def pushed(self, worker: int, now: float) -> Answer:
        self.times[worker].append(now)
        release = [worker]
        if self.left is not None:
            self.left[worker] -= 1
            if self.left[worker] == 0:
                release = []
                if not any(self.left.values()):
                    release = self.barrier()
        elif all(len(each) >= 2 for each in self.times.values()):
            self.search(now, set())
        return Answer([[worker]], release)

    def departed(self, worker: int, now: float) -> Answer:
        del self.times[worker]
        release: list[int] = []
        if self.times and self.left is not None:
            del self.left[worker]
            waiting = {each for each, left in self.left.items() if left == 0}
            if waiting == set(self.left):
                return Answer([], self.barrier())
            self.search(now, waiting)
            release = [each for each in waiting if self.left[each] > 0]
            if not any(self.left.values()):
                release = self.barrier()
        elif self.times and all(len(each) >= 2 for each in self.times.values()):
            self.search(now, set())
        return Answer([], release)

    def barrier(self) -> list[int]:
        self.left = None
        for each in self.times.values():
            each.clear()
        return list(self.times)

    def search(self, now: float, waiting: set[int]) -> None:
        rows = {}
        for worker, times in self.times.items():
            interval = times[-1] - times[-2]
            if worker in waiting:
                rows[worker] = [times[-1], *(now + push * interval for push in range(1, self.lookahead))]
            else:
                rows[worker] = [times[-1] + push * interval for push in range(1, self.lookahead + 1)]
        _, end = min((max(chosen) - min(chosen), max(chosen)) for chosen in itertools.product(*rows.values()))
        self.left = {worker: sum(time <= end for time in row) - (worker in waiting) for worker, row in rows.items()}


__all__ = ["DSSPReference", "ElasticReference"]
