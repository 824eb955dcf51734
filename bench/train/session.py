"""Measurement of a plan: for each model and seed make the contestants, check them, train them in turns, check again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # comes with scikit-learn
from torch import Tensor

from gradientflow.machine import package_version

from ..core.case import Case
from ..core.data import count_beyond_rounding
from ..core.environment import describe_environment, readable
from ..core.objects import from_all, from_root, wait_idly
from ..core.peers import Peer
from ..core.plan import PlanError
from ..core.resume import ResumeFile
from ..core.session import Observer, RunOutcome, Session, Timed
from ..core.traffic import Traffic
from .contestants import Contestant
from .data import SampleOrder
from .entry import NONE, SINGLE, Entry
from .ladder import ladder_results
from .plan import TrainPlan
from .results import Point, Run, Scaled, TrainResult, summarize
from .steps import TurnTaker, own_rows, train_step
from .stragglers import Pace, measure_pace
from .tasks import Task, load_task
from .turns import JointTurn, Turn, join

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator

    Shards = Sequence[tuple[Tensor, Tensor]]

_CHECKED_STEPS = 3  # number of steps on real data, after a step on random samples


class TrainSession(Session[str, Timed, TrainResult]):
    """All ranks train together as planned; a block is a model, and progress is counted in turns."""

    def __init__(
        self, comm: Communicator, plan: TrainPlan, observe: Observer | None = None, resume: ResumeFile | None = None
    ) -> None:
        super().__init__(comm, plan, observe)
        plan.check_scale(comm.size)
        self._traffic = Traffic(comm)
        self.outcome.facts = {"torch": package_version("torch")}
        self._resume = resume or ResumeFile(comm, plan.resume, self._conditions())

    def run(self) -> RunOutcome[TrainResult]:
        """Measure all ranks, and then parts of them if planned."""
        outcome = super().run()
        if self.plan.scales:
            self._measure_scale()
        if (untuned := _untuned(outcome.results)) and not self.plan.ladder:
            outcome.remark(untuned)
        if len(started_at := self._resume.started_at) > 1:
            outcome.remark(
                f"Measured in {len(started_at)} sittings, begun {', '.join(map(readable, started_at))}; what is said "
                "of other work on the machine is of the last one."
            )
        return outcome

    @property
    def wires(self) -> list[str]:
        """The wire dtypes of our strategies."""
        return [entry.settings["wire"] for entry in self.plan.entries if entry.settings.get("wire")]

    def place(self, block: str) -> str:
        """Name a model."""
        return block

    def title(self, block: str) -> str:
        """Name the first stage of a model."""
        return f"{block}: checking"

    def end(self) -> None:
        """Arrange the results of a ladder."""
        if self.plan.ladder:
            self.outcome.others["ladder"] = ladder_results(self.plan, self.outcome.results)

    def _load(self, name: str) -> Task:
        task = load_task(name)
        if len(set(from_all(self.comm, task.data.digest()))) > 1:
            raise PlanError(f"the ranks have different data for --model {name}: install the same packages on all hosts")
        return task

    def measure(self, block: str, peers: Sequence[Peer]) -> None:
        """Train one model with all contestants, from all seeds."""
        torch.set_num_threads(self.plan.threads)
        threadpool_limits(self.plan.threads)  # for NumPy's BLAS, which strategies use
        task = self._load(block)
        entries, ranks = self.plan.entries, self.comm.size
        checked = self._resume.part(f"{block}: check of {ranks} ranks", partial(self._check, task))
        wrong: dict[Entry, int] = {entry: checked[entry.name] for entry in entries}
        turns: dict[Entry, list[JointTurn]] = {entry: [] for entry in entries}
        runs: dict[Entry, list[Run]] = {entry: [] for entry in entries}
        for seed in self.plan.seeds:
            right = [entry for entry in entries if not wrong[entry]]
            done = self.done
            trained = self._resume.part(
                f"{block}: seed {seed} of {ranks} ranks", partial(self._train, task, seed, right)
            )
            self.done = done + self.plan.all_turns // len(self.plan.models) // len(self.plan.seeds)
            for sentence in trained["remarks"]:
                self.outcome.remark(sentence)
            for entry in right:
                found = trained["contestants"][entry.name]
                turns[entry] += map(JointTurn.of, found["turns"])
                runs[entry].append(Run.of(found["run"]))
                wrong[entry] += found["wrong"]
        for entry in entries:
            if wrong[entry]:
                self.outcome.remark(f"WRONG: {task.name}, {entry.name}: {wrong[entry]} errors.")
            self.outcome.results.append(self._result(task, entry, turns, runs[entry], wrong[entry]))

    def _train(self, task: Task, seed: int, entries: Sequence[Entry]) -> dict[str, object]:
        """Train all contestants from one seed; give the measurements as JSON data."""
        contestants = [self._make(entry, task, seed) for entry in entries]
        pace, remarks = self._pace(task, seed)
        taker = TurnTaker(self.comm, self.plan, task, seed, self._traffic, pace)
        turns: dict[Entry, list[JointTurn]] = {entry: [] for entry in entries}
        runs = {contestant.entry: self._begin(task, contestant, seed) for contestant in contestants}
        for number, steps in enumerate(taker.turns):
            for place in np.random.default_rng([seed, number]).permutation(len(contestants)):
                contestant = contestants[place]
                entry = contestant.entry
                self.observe(f"{task.name}, seed {seed}: {entry.name}")
                turn = self._join(taker.turn(contestant, steps))
                turns[entry].append(turn)
                if number == len(taker.turns) - 1 and not taker.is_free(contestant):
                    contestant.finish()
                self._evaluate(task, contestant, turn, runs[entry])
                self.done += 1
        wrong = {contestant.entry: self._count_strays(contestant) for contestant in contestants}
        self._measure_distances(task, seed, contestants, runs)
        for contestant in contestants:
            self._ask_servers(task, seed, contestant, runs[contestant.entry])
            contestant.close()
        found = {
            entry.name: {
                "turns": [turn.plain() for turn in turns[entry]],
                "run": asdict(runs[entry]),
                "wrong": wrong[entry],
            }
            for entry in entries
        }
        return {"remarks": remarks, "contestants": found}

    def _pace(self, task: Task, seed: int) -> tuple[Pace | None, list[str]]:
        """Draw the computing times of this rank's steps; None without stragglers. Collective."""
        plan = self.plan
        if plan.stragglers is None:
            return None, []
        contestant = self._make(Entry(NONE), task, seed)
        samples = task.random_samples(plan.batch, [0, self.comm.rank])
        given = None if plan.step_ms is None else plan.step_ms / 1e3
        step_seconds, backward = measure_pace(self.comm, lambda: train_step(contestant, task, [samples]), given)
        remark = (
            f"{task.name}, seed {seed}: a step of the fastest rank computes for {step_seconds * 1e3:.1f} ms, by "
            f"sleeping; {plan.stragglers}."
        )
        return Pace(plan.stragglers, self.comm.rank, seed, step_seconds, backward), [remark]

    def _make(self, entry: Entry, task: Task, seed: int) -> Contestant:
        comm = self.comm if entry.transport is None else self.comms[entry.transport]
        return Contestant(entry, task, seed, self.plan.optimizer_of(entry, task.learning_rate), comm)

    def _check(self, task: Task) -> dict[str, int]:
        """Count, for every contestant, wrong elements of its first gradients, and ranks whose parameters differ."""
        comm, seed = self.comm, self.plan.seeds[0]
        samples = task.random_samples(self.plan.batch, [self.next_seed(), comm.rank])
        order = SampleOrder(len(task.data.inputs), self.plan.batch * comm.size, seed)
        wrong = dict.fromkeys(self.plan.entries, 0)
        for entry in self.plan.entries:
            if entry.is_reference:
                continue
            contestant = self._make(entry, task, seed)
            # PowerSGD sends the first gradients uncompressed.
            wrong[entry] += self._check_step(task, contestant, samples) if entry.profile.is_lossless else 0
            for step in range(_CHECKED_STEPS):
                train_step(contestant, task, [task.samples(own_rows(order.rows(step), comm))])
            if entry.strategy is not None and entry.profile.is_lossless:
                wrong[entry] += self._check_step(task, contestant, samples)
            contestant.finish()
            wrong[entry] += self._count_strays(contestant)
            contestant.close()
        return {entry.name: count for entry, count in wrong.items()}

    def _check_step(self, task: Task, contestant: Contestant, samples: tuple[Tensor, Tensor]) -> int:
        """Make a step, and count the wrong elements of its gradient, on all ranks.

        Each rank contributes its gradient, computed without communication, and its residual. The mean of these sums
        over the ranks has to equal the applied gradient plus the mean of the new residuals divided by their decay:
        nothing is lost. With a decay of 0 every part that is not applied is lost.
        """
        alone = self._make(Entry(NONE, precision=contestant.entry.precision), task, 0)
        alone.model.load_state_dict(contestant.model.state_dict())
        train_step(alone, task, [samples])
        brought = self._from_all(alone.gradient() + contestant.residuals())
        train_step(contestant, task, [samples])
        gradient, kept = contestant.gradient(), self._from_all(contestant.residuals())
        right = brought.mean(axis=0, dtype=np.float64)
        magnitudes = np.abs(brought).mean(axis=0, dtype=np.float64)
        if decay := contestant.decay:
            right -= kept.mean(axis=0, dtype=np.float64) / decay
            magnitudes += np.abs(kept).mean(axis=0, dtype=np.float64) / decay  # can exceed the inputs
        else:
            right[gradient == 0] = 0
        dtype = contestant.entry.sent_dtype or "float32"
        wrong = count_beyond_rounding(gradient, right, magnitudes, self.comm.size, dtype)
        return sum(from_all(self.comm, wrong))

    def _from_all(self, own: NDArray[np.float32]) -> NDArray[np.float32]:
        """Give the arrays of all ranks, each in a row."""
        gathered: NDArray[np.float32] = self.comm.allgather(own)
        return gathered

    def _count_strays(self, contestant: Contestant) -> int:
        """Count the ranks whose parameters differ from rank 0's."""
        if contestant.entry.is_reference:
            return 0
        digests = from_all(self.comm, contestant.digest())
        return sum(digest != digests[0] for digest in digests)

    def _join(self, turn: Turn) -> JointTurn:
        turns = [Turn(**each) for each in from_all(self.comm, vars(turn))]
        return join(turns if self.comm.rank == 0 else [turn])

    def _begin(self, task: Task, contestant: Contestant, seed: int) -> Run:
        """Begin a run with the loss and accuracy before training, evaluated on rank 0."""
        points = [Point(0, 0.0, *task.evaluate(contestant.model), 0.0)] if self.comm.rank == 0 else []
        return Run(seed, points)

    def _evaluate(self, task: Task, contestant: Contestant, turn: JointTurn, run: Run) -> None:
        if self.comm.rank == 0:
            before, learnt = run.curve[-1], task.evaluate(contestant.model)
            sent = None if before.sent is None or turn.sent_in_all is None else before.sent + turn.sent_in_all
            run.curve.append(Point(before.step + turn.steps, before.seconds + turn.seconds, *learnt, sent))
        self.comm.barrier()

    def _measure_distances(
        self, task: Task, seed: int, contestants: Sequence[Contestant], runs: dict[Entry, Run]
    ) -> None:
        """Compute the distances of the final parameters from one process's."""
        single = next((contestant for contestant in contestants if contestant.entry.contestant == SINGLE), None)
        if single is None or self.comm.rank != 0:
            return
        start = self._make(Entry(NONE), task, seed).parameters().astype(np.float64)
        end = single.parameters()
        for contestant in contestants:
            distance = np.linalg.norm(contestant.parameters() - end.astype(np.float64)) / np.linalg.norm(end - start)
            runs[contestant.entry].distance = float(distance)

    def _ask_servers(self, task: Task, seed: int, contestant: Contestant, run: Run) -> None:
        """Record the staleness of the workers, and save the trace of the policy if requested."""
        server = contestant.server
        if server is not None and self.comm.rank == 0:
            trace = server.trace()
            run.staleness = trace.happened().staleness
            if self.plan.traces is not None:
                words = re.sub(r"[^\w.=-]+", "_", contestant.entry.setting).strip("_")
                folder = Path(self.plan.traces)
                folder.mkdir(parents=True, exist_ok=True)
                trace.save(folder / f"{task.name}-{words}-seed{seed}.json")
        self.comm.barrier()

    def _measure_scale(self) -> None:
        """Train on parts of the ranks, and add the scale efficiency to the results. Collective."""
        plan, outcome = self.plan, self.outcome
        rates: dict[int, dict[tuple[str, Entry], float]] = {}
        wrong: dict[tuple[str, Entry], int] = {}
        for ranks in plan.scales:
            found = outcome.results if ranks == self.comm.size else self._on_a_part(ranks)
            self.done += plan.on_a_part.all_turns
            rates[ranks] = {
                (each.model, each.entry): each.figures.samples_per_second for each in found if each.figures is not None
            }
            for each in found if ranks < self.comm.size else ():
                wrong[each.model, each.entry] = wrong.get((each.model, each.entry), 0) + each.wrong
        own = [wrong.get((each.model, each.entry), 0) for each in outcome.results]
        for place, (result, more) in enumerate(zip(outcome.results, from_root(self.comm, own), strict=True)):
            key, alone = (result.model, result.entry), rates[1].get((result.model, Entry(NONE)))
            points = [(ranks, found[key]) for ranks, found in rates.items() if key in found]
            scaled = tuple(Scaled(n, rate, round(rate / (n * alone), 4)) for n, rate in points if alone)
            outcome.results[place] = replace(result, scale=scaled, wrong=result.wrong + more)

    def _on_a_part(self, ranks: int) -> list[TrainResult]:
        """Measure the first `ranks` ranks alone; the remaining ranks sleep, and have no results. Collective."""
        part = self.comm.split(0 if self.comm.rank < ranks else None)
        results: list[TrainResult] = []
        if part is not None:
            before, who = self.done, f"{ranks} of {self.comm.size} ranks"
            with part:
                session = TrainSession(
                    part,
                    self.plan.on_a_part,
                    lambda done, text: self._observe(before + done, f"{who}: {text}"),
                    self._resume,
                )
                outcome = session.run()
            results = outcome.results
            for sentence in outcome.remarks:
                if sentence.startswith("WRONG"):
                    self.outcome.remark(f"{who}: {sentence}")
        wait_idly(self.comm)
        return results

    def _conditions(self) -> dict[str, str]:
        """Give the conditions that all results must share."""
        environment = describe_environment(self.comm, [], self.outcome.hosts)
        parts = {name: str(value) for name, value in environment.items() if name not in ("command", "date")}
        return {**self.plan.conditions, **parts, "torch": str(self.outcome.facts["torch"])}

    def _result(
        self, task: Task, entry: Entry, turns: dict[Entry, list[JointTurn]], runs: list[Run], wrong: int
    ) -> TrainResult:
        comm, plan = self.comm, self.plan
        parameters = sum(parameter.numel() for parameter in task.build().parameters())
        figures = None
        if comm.rank == 0 and not wrong:
            known = self._traffic.is_known
            figures = summarize(
                turns[entry],
                turns.get(Entry(NONE)),
                comm.size,
                plan.batch,
                period=entry.profile.period,
                traffic_known=known,
            )
        hosts, link_seconds = self.outcome.hosts, None
        if entry.strategy is not None:
            if figures is not None and figures.bytes_reported is not None:
                link_seconds = hosts.sending_seconds(figures.bytes_reported)
        elif entry.sent_dtype is not None:
            case = Case("allreduce", 4 * parameters, "float32", "mean", comm.size, comm.rank)
            link_seconds = hosts.link_seconds(case, entry.sent_dtype)
        link_ms = None if link_seconds is None else round(link_seconds * 1e3, 4)
        return TrainResult(
            *(task.name, parameters, entry, comm.size, comm.nodes, plan.batch, link_ms, figures, runs, wrong),
            plan.optimizer_of(entry, task.learning_rate),
            plan.own_rate_of(entry) is not None,
        )


def _untuned(results: Sequence[TrainResult]) -> str | None:
    """Name the contestants whose learning rate was not tuned."""
    names = dict.fromkeys(each.entry.strategy or each.entry.name for each in results if not each.is_tuned)
    if not names:
        return None
    return (
        f"Learning rate not tuned: {', '.join(map(str, names))}. It is one that suits plain SGD; what they learn says "
        "little until each has its own, by --lr 'NAME=RATE'."
    )
