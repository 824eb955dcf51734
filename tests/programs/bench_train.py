"""Training sessions of ``gradientflow.bench.train``, each on all ranks; rank 0 says what came out."""

from __future__ import annotations

from typing import Any

import numpy as np

import gradientflow as gf
from gradientflow.bench.core.session import Outcome
from gradientflow.bench.train import session
from gradientflow.bench.train.contestants import Contestant
from gradientflow.bench.train.ladder import climb
from gradientflow.bench.train.plan import NONE, Entry, TrainPlan
from gradientflow.bench.train.session import TrainSession

PEERS = ("ddp-gloo", "ddp-gloo-fp16", "ddp-gloo-powersgd", "mpi")


class Faulty(Contestant):
    """Training that goes wrong with three of the contestants, in different ways."""

    def __init__(self, entry: Entry, task: Any, seed: int, learning_rate: float, comm: gf.Communicator) -> None:
        alone = Entry(NONE) if entry.contestant == "ddp-gloo" else entry  # never tells the others anything
        super().__init__(alone, task, seed, learning_rate, comm)
        self.entry, self.steps, self.lazy = entry, 0, entry.approximation_rank is not None and comm.rank == 1
        self.lossy = entry.sparse is not None and comm.rank == 1
        if self.lazy:  # makes one update too few, after the first ones were checked
            update = self.optimizer.step

            def step() -> None:
                self.steps += 1
                if self.steps != 6:
                    update()

            self.optimizer.step = step

    def held(self) -> Any:
        """Pretend that sparse communication holds back one number too few, once there are some."""
        held = super().held()
        if self.lossy:
            held[np.flatnonzero(held)[-1:]] = 0
        return held


def check_timing(comm: gf.Communicator) -> None:
    """Every contestant is right and timed, from each of two seeds."""
    contestants = ("gradientflow", *PEERS)
    plan = TrainPlan(
        ("cnn",),
        contestants,
        thresholds=(1 << 16,),
        strategies=("dense", "csc"),
        densities=(0.15,),
        chunk_sizes=(1000,),
        corrections=(True, False),
        precisions=("float32", "bfloat16"),
        steps=3,
        turn=2,
        batch=8,
        seeds=(0, 1),
    )
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
    sparse = reported["gradientflow (csc 0.15, chunks of 1000, float16, 64K)"] or 0
    assert 0.15 * dense / 2 <= sparse < 0.2 * dense / 2  # with norms
    for result in outcome.results:
        bookkeeping = result.figures and result.figures.bookkeeping_ms
        assert (bookkeeping is not None) == (result.entry.sparse is not None)


def check_ladder(comm: gf.Communicator) -> None:
    """What each part adds is right, whether gradients travel during the backward pass or after it."""
    plan = TrainPlan(("cnn",), ladder=True, steps=1, turn=1, batch=8)
    outcome = TrainSession(comm, plan).run()
    assert outcome.wrong == 0, outcome.remarks
    if comm.rank == 0:
        assert all(rung.samples_per_second for rung in climb(plan, outcome.results))


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
    strategies = ("dense", "csc")
    plan = TrainPlan(("cnn",), contestants, wires=("float32",), strategies=strategies, steps=3, turn=3, batch=8)
    outcome: Outcome[Any] = TrainSession(comm, plan).run()
    wrong = {result.entry.contestant: result.wrong for result in outcome.results if result.entry.sparse is None}
    assert wrong["ddp-gloo"] > 100_000  # nearly every element, on both ranks, and then one rank
    assert (wrong["ddp-gloo-powersgd"], wrong["gradientflow"], wrong[NONE]) == (1, 0, 0)
    sparse = next(result for result in outcome.results if result.entry.sparse is not None)
    assert 1 <= sparse.wrong <= 4  # what was held back before, or what is held back after; and what is sent of it
    if comm.rank == 0:
        shown = {result.entry.name: result.figures is not None for result in outcome.results}
        right = (NONE, "gradientflow (float32, auto)")
        assert shown == {entry.name: entry.name in right for entry in plan.entries}
        assert sum(remark.startswith("WRONG") for remark in outcome.remarks) == 3


with gf.init() as world:
    for check in (check_timing, check_ladder, check_convergence, check_faults):
        check(world)
