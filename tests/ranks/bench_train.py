"""Training sessions of ``gradientflow.bench.train``, each on all ranks; rank 0 says what came out."""

from __future__ import annotations

from typing import Any

import gradientflow as gf
from gradientflow.bench.train import session
from gradientflow.bench.train.contestants import Contestant
from gradientflow.bench.train.plan import NONE, Entry, TrainPlan
from gradientflow.bench.train.session import TrainOutcome, TrainSession

PEERS = ("ddp-gloo", "ddp-gloo-fp16", "ddp-gloo-powersgd")


class Faulty(Contestant):
    """Training that goes wrong with two of the contestants, in different ways."""

    def __init__(self, entry: Entry, task: Any, seed: int, learning_rate: float, comm: gf.Communicator) -> None:
        alone = Entry(NONE) if entry.contestant == "ddp-gloo" else entry  # never tells the others anything
        super().__init__(alone, task, seed, learning_rate, comm)
        self.entry, self.steps, self.lazy = entry, 0, entry.approximation_rank is not None and comm.rank == 1
        if self.lazy:  # makes one update too few, after the first ones were checked
            update = self.optimizer.step

            def step() -> None:
                self.steps += 1
                if self.steps != 6:
                    update()

            self.optimizer.step = step


def check_timing(comm: gf.Communicator) -> None:
    """Every contestant is right and timed, from each of two seeds."""
    contestants = ("gradientflow", *PEERS)
    plan = TrainPlan(("cnn",), contestants, thresholds=(0, 1 << 16), steps=3, turn=2, batch=8, seeds=(0, 1))
    heard: list[int] = []
    outcome = TrainSession(comm, plan, lambda done, text: heard.append(done)).run()
    assert outcome.wrong == 0, outcome.remarks
    assert heard == [0, *range(plan.all_turns)]
    if comm.rank != 0:
        return
    assert [result.entry for result in outcome.results] == plan.entries
    for result in outcome.results:
        figures = result.figures
        assert figures is not None
        assert figures.steps == 6  # three from each seed
        assert figures.backward_median_ms < figures.step_median_ms <= figures.step_p95_ms
        assert figures.bytes_sent is None  # one host
        assert [[point.step for point in run.curve] for run in result.runs] == [[0, 5, 7], [0, 5, 7]]
        assert all(0 <= point.accuracy <= 1 < point.loss for run in result.runs for point in run.curve)
    reported = {result.entry.name: result.figures.bytes_reported for result in outcome.results if result.figures}
    dense = 4 * result.parameters  # with two ranks each sends all of it once
    assert dense <= (reported["gradientflow (float32, 64K)"] or 0) < 1.02 * dense
    assert dense / 2 <= (reported["gradientflow (float16, 64K)"] or 0) < 1.02 * dense / 2
    assert reported["ddp-gloo"] is None


def check_convergence(comm: gf.Communicator) -> None:
    """Two ranks add as one process does that takes their batches one after the other."""
    plan = TrainPlan(("cnn",), ("gradientflow", "ddp-gloo"), thresholds=(1 << 16,), batch=64, epochs=1)
    outcome = TrainSession(comm, plan).run()
    assert outcome.wrong == 0, outcome.remarks
    if comm.rank != 0:
        return
    single, accumulated, float32, float16, gloo = (result.runs[0] for result in outcome.results)
    assert single.distance == 0
    assert accumulated.distance is not None
    assert accumulated.distance < 0.1
    last = accumulated.curve[-1]
    for run in (float32, gloo):
        assert run.distance == accumulated.distance
        assert (run.curve[-1].loss, run.curve[-1].accuracy) == (last.loss, last.accuracy)
    assert abs(float16.curve[-1].loss - last.loss) < 0.05


def check_faults(comm: gf.Communicator) -> None:
    """A wrong gradient is found before the timing, and a rank that goes astray during it is found afterwards."""
    vars(session)["Contestant"] = Faulty
    contestants = ("gradientflow", "ddp-gloo", "ddp-gloo-powersgd")
    plan = TrainPlan(("cnn",), contestants, wires=("float32",), steps=3, turn=3, batch=8)
    outcome: TrainOutcome = TrainSession(comm, plan).run()
    wrong = {result.entry.contestant: result.wrong for result in outcome.results}
    assert wrong["ddp-gloo"] > 100_000  # nearly every element, on both ranks, and then one rank
    assert (wrong["ddp-gloo-powersgd"], wrong["gradientflow"], wrong[NONE]) == (1, 0, 0)
    if comm.rank == 0:
        shown = {result.entry.contestant: result.figures is not None for result in outcome.results}
        assert shown == {name: name in (NONE, "gradientflow") for name in (NONE, *contestants)}
        assert sum(remark.startswith("WRONG") for remark in outcome.remarks) == 2


with gf.init() as world:
    for check in (check_timing, check_convergence, check_faults):
        check(world)
