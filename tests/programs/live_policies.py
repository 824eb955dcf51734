"""Policies of a parameter server whose workers are not equally fast, and the traces of what happened."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from marks import on_ranks
from support import RANK, SIZE, WORLD, run_checks

import gradientflow as gf
from gradientflow.errors import GradientFlowError
from gradientflow.policies import Event, Policy, Stragglers, Trace, as_policy
from gradientflow.strategies import Settings

PUSHES = 12
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
MODEL = Stragglers((1, 1.3, 1.7, 2.2), jitter=0.1, slows=0, at=6)


class Recording(Policy):
    """A user's policy, which asks another one, and writes everything down where the server asks it."""

    def __init__(self, words: str) -> None:
        self.words = words

    def start(self, workers: int) -> Any:
        return _Recording(as_policy(self.words).start(workers))


class _Recording:
    events: ClassVar[list[Event]] = []  # of the process

    def __init__(self, running: Any) -> None:
        self.running = running

    def pushed(self, worker: int, seconds: float) -> Any:
        return self.note("push", worker, seconds, self.running.pushed(worker, seconds))

    def departed(self, worker: int, seconds: float) -> Any:
        return self.note("departure", worker, seconds, self.running.departed(worker, seconds))

    def note(self, kind: Any, worker: int, seconds: float, answer: Any) -> Any:
        self.events.append(Event(worker, seconds, kind, answer))
        return answer


def train(comm: gf.Communicator, policy: Any) -> float:
    """Push ones, twice with an end between, and return by how much the weights have changed."""
    durations = MODEL.durations(RANK, PUSHES) * 0.003
    weights = [np.zeros(1000, np.float32)]
    with gf.ParameterServer(comm, weights, policy) as server:
        for _ in range(2):
            for duration in durations:
                time.sleep(duration)
                push = server.push(Settings(0.25, 0.0, 0.0, 0.0), gradients=[np.ones(1000, np.float32)])
                assert push.wait(60) == "applied"
                server.pull_into(weights)
            server.finish(weights, 60)
    all_weights = WORLD.allgather(weights[0].tobytes())
    assert len(set(all_weights)) == 1
    assert len(set(weights[0].tolist())) == 1
    return float(weights[0][0])


@on_ranks(1, 3)
def check_live_policies(comm: gf.Communicator) -> None:
    own = f"{EXAMPLES / 'k_sync.py'}:KSync(2)"
    for words in ("bsp", "asp", "ssp(1)", "dssp(1, 4)", "dssp(1, 4, 'all')", "elastic_bsp(6)", own):
        _Recording.events = []
        changed = train(comm, Recording(words))
        if RANK == 0:  # where the first server is
            trace = Trace(SIZE, words, _Recording.events, 0.0)
            assert sum(event.kind == "push" for event in trace.events) == 2 * SIZE * PUSHES
            assert trace.difference() is None, trace.difference()
            rounds = sum(len(event.answer.apply) for event in trace.events)
            assert changed == -0.25 * rounds, (words, changed, rounds)
            happened = trace.happened()
            bound = {"bsp": 0, "ssp(1)": 1, "dssp(1, 4)": 4, "dssp(1, 4, 'all')": 4}.get(words, PUSHES)
            assert len(happened.staleness) - 1 <= bound, (words, happened.staleness)
            assert happened.pushes == [2 * PUSHES] * SIZE
        assert changed == train(comm, words) or words == own  # by the core alone; rounds of 2 depend on the timing


def check_all_have_the_same_weights_at_a_barrier(comm: gf.Communicator) -> None:
    """Who goes on first cannot change what the others pull along with their pushes."""
    durations = MODEL.durations(RANK, PUSHES) * 0.002
    weights = [np.zeros(1000, np.float32), np.zeros((SIZE, 40), np.float32)]
    pulled = []
    with gf.ParameterServer(comm, weights, "elastic_bsp(4)") as server:
        for duration in durations:
            time.sleep(duration)
            gradients = [np.full_like(each, RANK + 1) for each in weights]
            push, pull = server.push_pull(Settings(1.0, 0.0, 0.0, 0.0), gradients=gradients)
            assert push.wait(60) == "applied"
            pull.wait(60)
            pull.take_all(weights)
            pulled.append(float(weights[0][0]))
            assert all((each == pulled[-1]).all() for each in weights), "parts of several versions"
        server.finish(weights, 60)
        trace = server.trace(60) if RANK == 0 else None
    everything = WORLD.allgather(pulled)
    if trace is None or everything is None:
        return
    pushes, barriers = [0] * SIZE, 0
    for event in trace.events:
        pushes[event.worker] += event.kind == "push"
        if len(event.answer.release) >= SIZE and set(event.answer.release) == set(range(SIZE)):
            barriers += 1
            values = {everything[worker][pushes[worker] - 1] for worker in range(SIZE)}
            assert len(values) == 1, (barriers, values)
    assert barriers > 0


@on_ranks(1, 3)
def check_pulls_of_workers_that_never_wait(comm: gf.Communicator) -> None:
    """A server may hear that a worker goes on before it has its push, and the pull along with it."""

    class Hasty(Recording):
        def start(self, workers: int) -> Any:
            running = super().start(workers)
            running.note = lambda kind, worker, seconds, answer: gf.policies.Answer(
                answer.apply, [worker] if kind == "push" else []
            )
            return running

    weights = [np.zeros(1, np.float32)] * 2000  # so many settings take a while from one server to the next
    gradients = [np.ones(1, np.float32)] * 2000
    with gf.ParameterServer(comm, weights, Hasty("bsp")) as server:
        for number in range(150):
            rate = 1.0 if number % 2 else 2.0  # they are sent where they are not the last ones
            _, pull = server.push_pull(Settings(rate, 0.0, 0.0, 0.0), gradients=gradients)
            pull.wait(20)
        server.finish(weights, 60)
    assert weights[0][0] == -225


def check_an_answer_that_cannot_be(comm: gf.Communicator) -> None:
    class Wrong(Recording):
        def start(self, workers: int) -> Any:
            running = super().start(workers)
            running.note = lambda kind, worker, seconds, answer: gf.policies.Answer([[worker], [worker]], [worker])
            return running

    caught = None
    try:
        train(comm, Wrong("asp"))
    except GradientFlowError as error:
        caught = error
    assert "the policy _Recording applies a push of worker" in str(caught), caught


run_checks()
