"""The cost of a policy's decisions on the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gradientflow._location import core
from gradientflow.policies import Policy, simulate

from ..core.table import Column, Layout, columns_of, name, shown

_PUSHES = 200  # number of pushes of each worker
_ITERATION_US = 10_000.0
_REPEATS = 5


@dataclass(frozen=True, kw_only=True)
class DecisionResult:
    """The decisions of a policy; scripts rely on the names of the fields.

    Attributes
    ----------
    policy : str
        The policy in words.
    workers, pushes : int
        The number of workers, and of all their pushes.
    mean_us, p99_us, max_us : float
        Time of a decision, including the checks of its answer.
    share_percent : float
        Time of the decisions of an iteration of all workers, in percent of 10 ms.
    wrong : int
        0: invalid answers raise an error while they are timed.
    """

    policy: str
    workers: int
    pushes: int
    mean_us: float = field(metadata=shown("mean", "us", "{:.2f}".format))
    p99_us: float = field(metadata=shown("p99", "us", "{:.2f}".format))
    max_us: float = field(metadata=shown("max", "us", "{:.2f}".format))
    share_percent: float = field(metadata=shown("of 10 ms", "%", "{:.2f}".format))
    wrong: int = 0


def measure_decisions(policy: Policy, workers: int, seed: int) -> DecisionResult:
    """Time decisions about workers whose intervals are as in the thesis, and vary by a tenth."""
    rng = np.random.default_rng(seed)
    durations = rng.uniform(1.0, 1.5, (workers, 1)) * rng.uniform(0.95, 1.05, (workers, _PUSHES))
    events = simulate(policy, list(durations), until=float(_PUSHES), keep_events=True).events
    pushes = [event for event in events if event.kind == "push"]
    who, when = [event.worker for event in pushes], [event.seconds for event in pushes]
    decide = core.time_decisions  # each in nanoseconds
    runs = [decide(core.checked_policy(policy.start(workers), workers), who, when) for _ in range(_REPEATS)]
    taken = np.min(runs, axis=0) / 1e3  # the minimum leaves out disturbances by other programs
    return DecisionResult(
        policy=repr(policy),
        workers=workers,
        pushes=len(pushes),
        mean_us=round(float(taken.mean()), 3),
        p99_us=round(float(np.percentile(taken, 99)), 3),
        max_us=round(float(taken.max()), 3),
        share_percent=round(100 * workers * float(taken.mean()) / _ITERATION_US, 3),
    )


def _columns(results: Sequence[DecisionResult], with_cpu: bool) -> list[Column]:
    return [
        name("policy", "policy"),
        name("workers", "workers", justify="right"),
        *columns_of(DecisionResult, results, "mean_us", "p99_us", "max_us", "share_percent"),
    ]


def _legend(results: Sequence[DecisionResult], with_cpu: bool) -> str:
    return (
        "What a policy takes to decide about a push; of 10 ms is the share of the decisions about all workers in an "
        "iteration of this length."
    )


DECISIONS = Layout(_columns, lambda result: 0, _legend)
