"""Traces of a policy's events and answers, for checks and for replay with other policies."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gradientflow._location import core
from gradientflow.arguments import checked_float, checked_int, checked_list
from gradientflow.description import words_of
from gradientflow.errors import ArgumentError, GradientFlowError

from .parsing import as_policy
from .policy import Answer
from .simulation import Event, Simulation, checked

_KINDS = ("push", "departure")


class Difference(NamedTuple):
    """An event to which a policy's answer differs from the recorded answer."""

    number: int
    event: Event
    answer: Answer

    def __str__(self) -> str:
        """Return a sentence with the event and both answers."""
        what = f"event {self.number}, a {self.event.kind} of worker {self.event.worker} at {self.event.seconds:.6g} s"
        return f"{what}: recorded was {self.event.answer}, the policy answers {self.answer}"


@dataclass(frozen=True)
class Trace:
    """The events of a parameter server, in order.

    Once all workers have departed, the policy starts again with all of them.

    Attributes
    ----------
    workers : int
        Number of workers.
    policy : str
        Recorded policy, in words, which include the path of the file of a user's own policy.
    events : list of Event
        All events, with the answers.
    began : float or None
        Time at which the workers began, on the clock of the events; None if unknown.
    """

    workers: int
    policy: str
    events: list[Event]
    began: float | None = None

    def __post_init__(self) -> None:
        """Check the attributes, and that no departed worker has a later event."""
        checked_int("workers", self.workers, 1)
        events = enumerate(checked_list("events", self.events, "events"))
        object.__setattr__(self, "events", [_event(position, event, self.workers) for position, event in events])
        if self.began is not None:
            checked_float("began", self.began)
        self._runs()

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read a file written by `save`.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If the file cannot be read, or is no trace.
        """
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls(**{key: found.get(key) for key in ("workers", "policy", "events", "began")})
        except (OSError, ValueError, RecursionError, AttributeError, GradientFlowError) as error:
            raise ArgumentError(f"{path} cannot be read as a trace: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write JSON: ``{"workers": ..., "policy": ..., "events": [[worker, seconds, kind, answer], ...]}``."""
        events = [[*event[:3], {"apply": event.answer.apply, "release": event.answer.release}] for event in self.events]
        lines = ",\n".join(json.dumps(event) for event in events)
        head = json.dumps({"workers": self.workers, "policy": self.policy, "began": self.began})
        Path(path).write_text(f'{head[:-1]}, "events": [\n{lines}\n]}}\n', encoding="utf-8")

    def difference(self, policy: object = None) -> Difference | None:
        """Replay the events with a policy, and return the first event that it answers differently.

        Parameters
        ----------
        policy : Policy or str, optional
            The policy; by default the recorded policy, made from its words. A file that the words name is run.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If the words name no policy, or an event or an answer is invalid.
        """
        description = as_policy(self.policy if policy is None else policy)
        position = itertools.count()
        for run in self._runs():
            running = checked(description.start(self.workers), self.workers)
            for event in run:
                ask = running.pushed if event.kind == "push" else running.departed
                answer, number = ask(event.worker, event.seconds), next(position)
                if answer != event.answer:
                    return Difference(number, event, answer)
        return None

    def durations(self) -> list[list[float]]:
        """Return the seconds of computation of each iteration of each worker.

        An iteration ends with a push of its worker. It begins with the worker's last push, or with the answer that let
        the worker proceed if this came later. If `began` is None, the first iteration counts as long as the second.
        """
        began = self._start
        found: list[list[float]] = [[] for _ in range(self.workers)]
        for run in self._runs():
            free = [began] * self.workers
            for event in run:
                if event.kind == "push":
                    found[event.worker].append(event.seconds - free[event.worker])
                    free[event.worker] = event.seconds
                for worker in event.answer.release:
                    free[worker] = event.seconds
            began = run[-1].seconds
        if self.began is None:
            for row in found:
                row[:1] = row[1:2] or row[:1]
        return found

    def happened(self) -> Simulation:
        """Return the recorded run in the form of a simulation's result."""
        found = core.account_of(self.workers, self.events, self._start)
        events = [Event(*event) for event in found.pop("events")]
        return Simulation(computed=[sum(row) for row in self.durations()], events=events, **found)

    def _runs(self) -> list[list[Event]]:
        """Return the events in runs, each of which ends when all workers have departed."""
        runs: list[list[Event]] = []
        present: set[int] = set()
        for position, event in enumerate(self.events):
            if not present:
                present = set(range(self.workers))
                runs.append([])
            if event.worker not in present:
                raise ArgumentError(f"event {position} is of worker {event.worker}, which has departed")
            runs[-1].append(event)
            if event.kind == "departure":
                present.discard(event.worker)
        return runs

    @property
    def _start(self) -> float:
        if self.began is not None:
            return self.began
        return self.events[0].seconds if self.events else 0.0


def trace_of(simulation: Simulation, policy: object) -> Trace:
    """Return the trace of a simulation that was made with `keep_events`."""
    return Trace(len(simulation.pushes), words_of(as_policy(policy)), simulation.events, began=0.0)


def _event(position: int, parts: Iterable[Any], workers: int) -> Event:
    try:
        worker, seconds, kind, answer = parts
        event = Event(
            checked_int("its worker", worker),
            checked_float("its time", seconds),
            kind,
            answer if isinstance(answer, Answer) else _answer(**answer),
        )
    except (GradientFlowError, TypeError, ValueError) as error:
        raise ArgumentError(f"event {position} is no [worker, seconds, kind, answer]: {error}") from error
    named = {event.worker, *event.answer.release, *(worker for each in event.answer.apply for worker in each)}
    if max(named) >= workers:
        raise ArgumentError(f"event {position} names worker {max(named)}, but there are {workers}")
    if kind not in _KINDS:
        raise ArgumentError(f"event {position} is a {kind!r}, but a 'push' or a 'departure' was expected")
    return event


def _answer(go_on: Sequence[int] = (), **parts: Any) -> Answer:
    return Answer(**{"release": go_on, **parts})  # traces of former versions have go_on


__all__ = ["Difference", "Trace", "trace_of"]
