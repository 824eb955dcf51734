"""Training sessions of ``gradientflow.bench.train``, each on all ranks; rank 0 says what came out."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from marks import slow, thorough
from support import run_checks

import gradientflow as gf
from gradientflow.bench.core.session import RunOutcome
from gradientflow.bench.train import session, tasks
from gradientflow.bench.train.contestants import Contestant
from gradientflow.bench.train.entry import NONE, Entry
from gradientflow.bench.train.ladder import ladder_results
from gradientflow.bench.train.plan import TrainPlan
from gradientflow.bench.train.session import TrainSession
from gradientflow.bench.train.tasks import Task
from gradientflow.policies import Answer, Policy, Stragglers, Trace
from gradientflow.strategies import (
    ArraySynchronizer,
    Layout,
    ServedStrategy,
    Strategy,
    Synchronizer,
    parse_strategies,
    parse_strategy,
)

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"

PEERS = ("ddp-gloo", "ddp-gloo-fp16", "ddp-gloo-powersgd", "mpi")


def load_task(name: str) -> Task:
    """Hold few samples out: evaluation takes most of the time of a short training."""
    task = tasks.load_task(name)
    held_out = {name: getattr(task.data, name)[:60] for name in ("held_out_inputs", "held_out_targets")}
    return replace(task, data=replace(task.data, **held_out))


class Faulty(Contestant):
    """Training that goes wrong with three of the contestants, in different ways."""

    def __init__(self, entry: Entry, task: Any, seed: int, learning_rate: float, comm: gf.Communicator) -> None:
        alone = Entry(NONE) if entry.contestant == "ddp-gloo" else entry  # never tells the others anything
        super().__init__(alone, task, seed, learning_rate, comm)
        self.entry, self.steps, self.lazy = entry, 0, entry.approximation_rank is not None and comm.rank == 1
        self.forgets = entry.settings.get("density") == 0.2 and comm.rank == 1
        if self.lazy:  # makes one update too few, after the first ones were checked
            update = self.optimizer.step

            def step() -> None:
                self.steps += 1
                if self.steps != 6:
                    update()

            self.optimizer.step = step

    def residuals(self) -> Any:
        """Pretend that one number less is kept, once there are some."""
        residuals = super().residuals()
        if self.forgets:
            residuals[np.abs(residuals).argmax()] = 0
        return residuals


class Lonely(Strategy):
    """Never tells the others anything."""

    gradients = "local"

    def bind(self, comm: gf.Communicator, layout: Layout) -> Synchronizer:
        """Do nothing in all moments."""
        return ArraySynchronizer(comm, layout, self)


TopK: Any = parse_strategy(f"{EXAMPLES / 'top_k.py'}:TopK")


class Lossy(type(TopK)):  # type: ignore[misc]
    """Forgets what it has kept, on all ranks alike, though it says that it averages."""

    def bind(self, comm: gf.Communicator, layout: Layout) -> Synchronizer:
        """Drop the residuals before each iteration."""
        synchronizer: Any = super().bind(comm, layout)

        def prepare() -> None:
            for residual in synchronizer.residuals:
                residual[...] = 0

        synchronizer.prepare = prepare
        return synchronizer  # type: ignore[no-any-return]


@thorough
def check_timing(comm: gf.Communicator) -> None:
    """Every contestant is right and timed, from each of two seeds."""
    contestants = ("gradientflow", *PEERS)
    plan = TrainPlan(
        ("cnn",),
        contestants,
        tuple(
            parse_strategies(
                "dense; dense(wire='float16'); csc(density=0.15, chunk_size=1000, wire='float16', momentum=0.5);"
                "csc(density=0.15, chunk_size=1000, correction=False)"
            )
        ),
        thresholds=(1 << 16,),
        precisions=("float32", "bfloat16"),
        fused=True,
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
    assert dense <= (reported["gradientflow (dense(fusion_threshold=65536))"] or 0) < 1.02 * dense
    assert (
        dense / 2 <= (reported["gradientflow (dense(fusion_threshold=65536, wire='float16'))"] or 0) < 1.02 * dense / 2
    )
    assert reported["ddp-gloo"] is None
    words = "csc(density=0.15, chunk_size=1000, momentum=0.5, fusion_threshold=65536, wire='float16')"
    sparse = reported[f"gradientflow ({words})"] or 0
    assert 0.15 * dense / 2 <= sparse < 0.2 * dense / 2  # with norms
    for result in outcome.results:
        bookkeeping = result.figures and result.figures.bookkeeping_ms
        assert (bookkeeping is not None) == ("density" in result.entry.settings)


@thorough
def check_own_strategies(comm: gf.Communicator) -> None:
    """Strategies of users train beside ours, and one that leaves ranks with weights of their own is found out."""
    examples = {
        **{"sign_sgd": "SignSGD(scale=0.01)", "top_k": "TopK(density=0.05)", "local_sgd": "LocalSGD(period=3)"},
    }
    words = [f"{EXAMPLES / name}.py:{call}" for name, call in examples.items()]
    strategies = [*parse_strategies("; ".join(words)), Lonely(), Lossy(0.05)]
    plan = TrainPlan(("cnn",), ("gradientflow",), tuple(strategies), steps=4, turn=2, batch=8)
    outcome = TrainSession(comm, plan).run()
    wrong = [result.wrong for result in outcome.results]
    assert wrong[:5] == [0, 0, 0, 0, comm.size - 1], outcome.remarks
    assert wrong[5] > 1000
    if comm.rank != 0:
        return
    parameters = outcome.results[0].parameters
    some = 0.05 * parameters  # entries of TopK, 12 bytes each
    sent = [(parameters, 1.02 * parameters), (11.9 * some, 12.5 * some), (4 * parameters / 5, parameters)]
    for result, (least, most) in zip(outcome.results[1:4], sent, strict=True):
        assert result.figures is not None
        assert least <= (result.figures.bytes_reported or 0) <= most, result.entry
        assert result.runs[0].curve[-1].sent
        assert result.figures.steps == (5 if result.entry.profile.period > 1 else 4)  # a period is timed without gaps
        assert result.record()["settings"] == result.entry.settings
    assert [remark for remark in outcome.remarks if remark.startswith("WRONG: cnn, gradientflow (Lonely)")]


@slow
def check_layers_that_are_sparse(comm: gf.Communicator) -> None:
    """Also of the one that has a momentum in what it sends, beside which the optimizer has none."""
    strategies = tuple(parse_strategies("lags(max_ratio=9, warmup=1); slgs(ratio=9); dgc(ratio=9)"))
    outcome = TrainSession(comm, TrainPlan(("cnn",), ("gradientflow",), strategies, steps=2, turn=1, batch=8)).run()
    assert outcome.wrong == 0, outcome.remarks
    for result in outcome.results[1:]:
        assert comm.rank != 0 or (result.figures is not None and result.figures.bookkeeping_ms is not None)


@thorough
def check_stragglers(comm: gf.Communicator) -> None:
    """Ranks that are not equally fast, together and each at its own pace."""
    folder = comm.mpi.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    plan = TrainPlan(
        models=("cnn",),
        contestants=("gradientflow", "mpi"),
        strategies=tuple(parse_strategies("dense; ssp(2)")),
        steps=8,
        turn=4,
        stragglers=Stragglers((1, 4), jitter=0.1),
        step_ms=20.0,
        traces=folder,
    )
    outcome = TrainSession(comm, plan).run()
    assert outcome.wrong == 0, outcome.remarks
    assert any("a step of the fastest rank computes for 20.0 ms" in remark for remark in outcome.remarks)
    if comm.rank == 0:
        steps = {}
        for result in outcome.results:
            assert result.figures is not None
            assert result.figures.waiting_percent is not None
            steps[result.entry.name] = result.figures.steps, result.runs[0].curve[-1].step
        assert steps["gradientflow (dense)"] == steps["mpi"] == (8, 8 + 3 + 1)
        name = "gradientflow (ssp(staleness=2))"
        assert steps[name][0] >= 1
        (run,) = next(result.runs for result in outcome.results if result.entry.name == name)
        assert run.staleness is not None
        assert 1 <= len(run.staleness) <= 3
        trace = Trace.load(Path(folder) / "cnn-ssp_staleness=2-seed0.json")
        assert trace.difference() is None
        assert trace.happened().staleness == run.staleness
        shutil.rmtree(folder)


class Ahead(Policy):
    """Worker 0 goes on once worker 1 is further than itself, or has left."""

    def __init__(self) -> None:
        self.pushes, self.waits, self.left = [0, 0], False, False

    def start(self, workers: int) -> Ahead:
        """Begin anew."""
        return Ahead()

    def pushed(self, worker: int, seconds: float) -> Answer:
        """Apply it at once."""
        self.pushes[worker] += 1
        self.waits |= worker == 0
        return Answer([[worker]], [worker] * worker + self._release())

    def departed(self, worker: int, seconds: float) -> Answer:
        """Wait for it no more."""
        self.left |= worker == 1
        return Answer([], self._release())

    def _release(self) -> list[int]:
        free = self.waits and (self.left or self.pushes[1] > self.pushes[0])
        self.waits &= not free
        return [0] * free


class Mine(ServedStrategy):
    """A strategy of this policy."""

    @property
    def policy(self) -> Policy:
        """Give it."""
        return Ahead()


@thorough
def check_ranks_that_wait_for_later_steps_of_others(comm: gf.Communicator) -> None:
    """They are not held back."""
    outcome = TrainSession(comm, TrainPlan(("cnn",), ("gradientflow",), (Mine(),), steps=2, turn=1, batch=4)).run()
    assert outcome.wrong == 0, outcome.remarks


@thorough
def check_ladder(comm: gf.Communicator) -> None:
    """What each part adds is right, whether gradients travel during the backward pass or after it."""
    plan = TrainPlan(("cnn",), ladder=True, steps=1, turn=1, batch=8)
    outcome = TrainSession(comm, plan).run()
    assert outcome.wrong == 0, outcome.remarks
    if comm.rank == 0:
        assert all(rung.samples_per_second for rung in ladder_results(plan, outcome.results))


@thorough
def check_convergence(comm: gf.Communicator) -> None:
    """Two ranks add as one process does that takes their batches one after the other."""
    plan = TrainPlan(("cnn",), ("gradientflow", "ddp-gloo"), batch=64, epochs=1)
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
    strategies = tuple(parse_strategies("dense; csc(density=0.2, chunk_size=1000)"))
    plan = TrainPlan(("cnn",), contestants, strategies, steps=3, turn=3, batch=8)
    outcome: RunOutcome[Any] = TrainSession(comm, plan).run()
    sparse = next(result for result in outcome.results if "density" in result.entry.settings)
    wrong = {result.entry.contestant: result.wrong for result in outcome.results if result is not sparse}
    assert wrong["ddp-gloo"] > 100_000  # nearly every element, on both ranks, and then one rank
    assert (wrong["ddp-gloo-powersgd"], wrong["gradientflow"], wrong[NONE]) == (1, 0, 0)
    assert 1 <= sparse.wrong <= 4  # what was kept before, or what is kept after, on both ranks
    if comm.rank == 0:
        shown = {result.entry.name: result.figures is not None for result in outcome.results}
        right = (NONE, "gradientflow (dense)")
        assert shown == {entry.name: entry.name in right for entry in plan.entries}
        assert sum(remark.startswith("WRONG") for remark in outcome.remarks) == 3


vars(session)["load_task"] = load_task
run_checks()
