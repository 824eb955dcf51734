"""A running job as seen from outside: rates between two looks at its ranks, and ranks for which other ranks wait."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gradientflow.annotations import JsonObject

from .client import Rank

_LOOKS = 8  # looks that decide which ranks are slow
_RATE_LOOKS = 5  # earlier looks since which rates are computed
_LITTLE = 0.1  # share of a step by which a rank may come later than others
_HISTORY = 16  # step times that are kept
LONG_SECONDS = 10.0  # a call that takes longer seems to hang


@dataclass
class RankState:
    """State of a rank; text is empty and figures are None where they are unknown.

    `silence` is the reason why it gives no answer. Its call under way has a place such as ``train.py:12``, the seconds
    since its begin, and the ranks that have not come to it. A rank is slow if other ranks wait for it in most looks.
    Rates are those since the last look; `exposed` is the share of a step that waits for communication, `residual` the
    norm of the residuals, `memory` in bytes, `history` earlier step times in seconds.
    """

    rank: int
    pid: int
    host: str = ""
    program: str = ""
    silence: str = ""
    call: str = ""
    seconds: float = 0.0
    line: str = ""
    waits_for: list[int] = field(default_factory=list)
    is_slow: bool = False
    steps_per_second: float | None = None
    step_seconds: float | None = None
    exposed: float | None = None
    bytes_per_second: float | None = None
    residual: float | None = None
    memory: int = 0
    history: list[float] = field(default_factory=list)


@dataclass
class JobState:
    """State of a job: the ranks that were found, in order, of `size`; `age` is that of the first, in seconds."""

    name: str
    program: str
    size: int
    ranks: list[RankState]
    age: float

    @property
    def late(self) -> dict[int, list[RankState]]:
        """Ranks that hold up a call for long, with the ranks that wait for each."""
        found: dict[int, list[RankState]] = {}
        blamed = _blamed(self.ranks)
        for each in self.ranks:
            for rank in each.waits_for if each.seconds >= LONG_SECONDS else ():
                if rank in blamed:
                    found.setdefault(rank, []).append(each)
        return dict(sorted(found.items()))


class JobWatch:
    """Watcher of a job, which remembers earlier looks."""

    def __init__(self) -> None:
        self._answers: dict[int, deque[JsonObject]] = {}
        self._history: dict[int, deque[float]] = {}
        self._blamed: deque[set[int]] = deque(maxlen=_LOOKS)

    def look(self, found: Sequence[Rank]) -> JobState:
        """Return the state of the job whose ranks have answered now."""
        ranks = [self._state(each) for each in found]
        said = {each.name.rank: each.said for each in found if each.said and "error" not in each.said}
        _add_waits(ranks, said)
        if blamed := _blamed(ranks) | _slowest(said.values()):
            self._blamed.append(blamed)
        votes = Counter(rank for each in self._blamed for rank in each)
        for each in ranks:
            each.is_slow = 2 * votes[each.rank] > max(2, len(self._blamed))
        return JobState(
            found[0].name.job,
            next((each.program for each in ranks if each.program), ""),
            found[0].name.size,
            ranks,
            max((float(each["age"]) for each in said.values()), default=0.0),
        )

    def _state(self, found: Rank) -> RankState:
        name, said = found.name, found.said
        if said is None or "error" in said:
            return RankState(name.rank, name.pid, silence=said["error"] if said else found.silence)
        state = RankState(name.rank, name.pid, said["host"], said["program"], memory=said["memory"])
        figures: Mapping[str, float] = said["figures"]
        state.residual, state.step_seconds = figures.get("residual"), figures.get("mean_step_seconds")
        if state.step_seconds and "mean_exposed_seconds" in figures:
            state.exposed = min(1.0, figures["mean_exposed_seconds"] / state.step_seconds)
        answers = self._answers.setdefault(name.pid, deque(maxlen=_RATE_LOOKS))
        history = self._history.setdefault(name.pid, deque(maxlen=_HISTORY))
        if answers and any(value > figures.get(name, value) for name, value in _counters(answers[-1])):
            answers.clear()  # the training has begun again
        if answers:
            seconds = max(1e-9, said["at"] - answers[0]["at"])
            state.steps_per_second = _rate(answers[0]["figures"], figures, "steps", seconds)
            state.bytes_per_second = _rate(answers[0]["figures"], figures, "bytes", seconds)
        if "step_seconds" in figures and (not answers or answers[-1]["figures"].get("steps") != figures.get("steps")):
            history.append(figures["step_seconds"])
        answers.append(said)
        state.history = list(history)
        return state


def _counters(said: JsonObject) -> list[tuple[str, float]]:
    return [(name, said["figures"][name]) for name in ("steps", "bytes") if name in said["figures"]]


def _rate(before: Mapping[str, float], now: Mapping[str, float], name: str, seconds: float) -> float | None:
    """Return the growth of a counter per second; None if it is unknown."""
    return (now[name] - before[name]) / seconds if name in now and name in before else None


def _add_waits(ranks: Sequence[RankState], said: Mapping[int, JsonObject]) -> None:
    """Add the longest call of each rank, and the ranks that have not come to its calls."""
    reached = {rank: {each["on"]: each["sequence"] for each in answer["calls"]} for rank, answer in said.items()}
    everyone = [each.rank for each in ranks]
    for state in ranks:
        calls = [each for each in said.get(state.rank, {"calls": []})["calls"] if each["seconds"] is not None]
        if not calls:
            continue
        longest = max(calls, key=lambda each: float(each["seconds"]))
        state.call, state.seconds, state.line = longest["text"], longest["seconds"], longest["line"]
        for each in calls:
            if each["peer"] is not None:
                missing = [each["peer"]]
            else:
                missing = [
                    rank
                    for rank in each["members"] or everyone
                    if reached.get(rank, {}).get(each["on"], 0) < each["sequence"]
                ]
            state.waits_for = sorted({*state.waits_for, *missing} - {state.rank})


def _slowest(answers: Iterable[JsonObject]) -> set[int]:
    """Return the ranks that trainings have found to come last, if they are late by more than a little."""
    figures = [each["figures"] for each in answers if "slowest_rank" in each["figures"]]
    return {
        int(each["slowest_rank"])
        for each in figures
        if each["slowest_lag_seconds"] > _LITTLE * each.get("mean_step_seconds", 0.0)
    }


def _blamed(ranks: Iterable[RankState]) -> set[int]:
    """Return the ranks for which other ranks wait, without ranks that wait themselves, unless all do."""
    waiting = {each.rank for each in ranks if each.waits_for}
    named = {rank for each in ranks for rank in each.waits_for}
    return named - waiting or named


__all__ = ["LONG_SECONDS", "JobState", "JobWatch", "RankState"]
