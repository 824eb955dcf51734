"""The conclusion from the last calls of all ranks: the rank that did something else, first, and the line where.

Pure functions over reports, as `gradientflow.recorder.dumps` writes them. Ranks are ranks of the job.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from gradientflow.annotations import JsonObject

_LEFT = re.compile(r"rank (\d+) has (?:closed|left)")
_DIED = re.compile(r"rank (\d+) (?:\(process \d+\) )?has died")
_SILENT = re.compile(r"no sign of ranks? (\d+(?:, \d+)*)")
_LATE_SECONDS = 0.5

_ADVICE = {
    "raised": "Mend the error on that rank; let all ranks leave the loop together.",
    "skipped": "Look for a condition on the rank, or on data that differ: all ranks make this call, or none.",
    "extra": "Look for a condition on the rank, or on data that differ: all ranks make this call, or none.",
    "swapped": "Let all ranks make these calls in one order.",
    "shape": "Give tensors of equal size: fill up the last batch, or drop it.",
    "dtype": "Convert the tensor to one dtype on all ranks.",
    "different": "Let all ranks make the same calls in the same order.",
    "late": "Divide the work evenly, or raise GRADIENTFLOW_TIMEOUT.",
    "busy": "See why the program does not come back from this line.",
    "elsewhere": "Let all ranks make the calls of their communicators in one order.",
    "died": "See the output of that rank, and the system's log: a process without output often lacked memory.",
    "stopped": "Continue the process (SIGCONT), or see which debugger or scheduler stopped it.",
    "left": "Give all ranks the same number of steps, or use join().",
    "silent": "See the output of that rank; it has written no report.",
    "no_call": "See why the program does not come to its first call.",
    "unknown": "Run again with GRADIENTFLOW_DEBUG=on.",
}


@dataclass(frozen=True)
class Report:
    """The report of one rank: its head, calls, the stack of its main thread, and an exception that ended it."""

    head: JsonObject
    calls: list[JsonObject] = field(default_factory=list)
    stack: list[JsonObject] = field(default_factory=list)
    exception: JsonObject | None = None

    @property
    def rank(self) -> int:
        """The rank in the job."""
        return int(self.head["rank"])

    @classmethod
    def of(cls, lines: Iterable[JsonObject]) -> Report:
        """Return the report with these lines."""
        head, *rest = lines
        stack: list[JsonObject] = next((line["stack"] for line in rest if "stack" in line), [])
        exception = next((line for line in rest if "exception" in line), None)
        calls = [line for line in rest if "call" in line]
        for call in calls[-1:]:
            if call["file"] is None and call["state"] != "ended" and stack:  # made inside a compiled program
                call.update(stack[-1])
        return cls(head, calls, stack, exception)


@dataclass(frozen=True)
class Diagnosis:
    """The conclusion: kind of difference, ranks that caused it, place in their program, and sentences for people.

    ``communicator`` identifies the communicator of the call in which the ranks differ, and ``sequence`` the call.
    """

    kind: str
    ranks: tuple[int, ...]
    place: JsonObject | None
    sentence: str
    communicator: str | None = None
    sequence: int = 0

    @property
    def advice(self) -> str:
        """The next step for the user."""
        return _ADVICE[self.kind]


def latest_job(reports: Sequence[Report]) -> list[Report]:
    """Return the reports of the job with the latest report, by rank."""
    if not reports:
        return []
    job = max(reports, key=lambda report: float(report.head["time"])).head["job"]
    return sorted((report for report in reports if report.head["job"] == job), key=lambda report: report.rank)


def diagnose(reports: Sequence[Report]) -> Diagnosis:
    """Conclude from the reports of a job which rank did something else than all others, first."""
    job = _Job(reports)
    raised = job.first_exception()
    if raised is not None:
        return raised
    found = [verdict for identity in job.unfinished() if (verdict := job.compare(identity)) is not None]
    if found:
        return min(found, key=lambda verdict: list(_ADVICE).index(verdict.kind))
    for rank, peer in job.waiting_for_message():
        verdict = job.explain_missing([peer], None, 0, f"rank {rank} waits for a message of it")
        return verdict
    missing = [rank for rank in job.lost() if rank not in job.reports]
    if missing:
        return job.explain_missing(missing, None, 0, "")
    if reports and not any(report.calls for report in reports):
        return job.without_calls()
    return Diagnosis("unknown", (), None, "The reports show no difference between the ranks.")


def calls_of(reports: Sequence[Report], communicator: str) -> dict[int, dict[int, JsonObject]]:
    """Return the collective calls of a communicator: for each sequence number, the call of each rank."""
    found: dict[int, dict[int, JsonObject]] = defaultdict(dict)
    for report in reports:
        for call in report.calls:
            if call["communicator"] == communicator and call["sequence"] > 0:
                found[call["sequence"]][report.rank] = call
    return dict(found)


def place_text(place: JsonObject | None, *, of_call: bool = False) -> str:
    """Return a place as ``train.py:18``."""
    if place is None or place["file"] is None:
        return "a line outside of Python" if of_call else ""
    return f"{os.path.basename(place['file'])}:{place['line']}"


def ranks_text(ranks: Iterable[int]) -> str:
    """Return "rank 1" or "ranks 0, 2"."""
    numbers = sorted(ranks)
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _site(call: JsonObject) -> tuple[str | None, int | None]:
    return call["file"], call["line"]


def _differ(one: tuple[str | None, int | None], other: tuple[str | None, int | None]) -> bool:
    """Tell whether two places are known and not the same."""
    return one != other and None not in (one[0], other[0])


class _Job:
    """The reports of a job, by rank."""

    def __init__(self, reports: Sequence[Report]) -> None:
        self.reports = {report.rank: report for report in reports}
        self.size = max((int(report.head["size"]) for report in reports), default=0)
        self._texts = [(report, str(report.head["text"])) for report in reports]

    # ---- an exception ------------------------------------------------------------------------------------------------

    def first_exception(self) -> Diagnosis | None:
        """Return the verdict about the first exception that is no consequence of another rank's."""
        raised = [report for report in self.reports.values() if report.exception and not _is_interrupt(report)]
        if not raised:
            return None
        first = min(raised, key=lambda report: float(report.head["time"]))
        of_others = [float(each.head["time"]) for each in self.reports.values() if each.head["reason"] != "exception"]
        if of_others and first.head["time"] > min(of_others) + _LATE_SECONDS:
            return None
        assert first.exception is not None
        where = place_text(first.exception) or "a line outside of the program"
        name, function = first.exception["exception"], first.exception["function"]
        alike = [report.rank for report in raised if _site(report.exception or {}) == _site(first.exception)]
        others = [rank for rank in range(self.size) if rank not in alike]
        sentence = f"{ranks_text(alike).capitalize()} raised {name} at {where}{_inside(function)}"
        sentence += f"; {ranks_text(others)} did not." if others else "."
        return Diagnosis("raised", tuple(alike), first.exception, sentence, next(iter(self.unfinished()), None))

    # ---- calls that differ -------------------------------------------------------------------------------------------

    def unfinished(self) -> list[str]:
        """Return the communicators in which a collective call has not ended."""
        found = {
            call["communicator"]: None
            for report in self.reports.values()
            for call in report.calls
            if call["state"] != "ended" and call["sequence"] > 0
        }
        return list(found)

    def compare(self, identity: str) -> Diagnosis | None:
        """Return the verdict about the calls of a communicator; None if they do not differ."""
        calls = calls_of(list(self.reports.values()), identity)
        for sequence in sorted(calls):
            if _any_unfinished(calls[sequence]) and len({call["text"] for call in calls[sequence].values()}) > 1:
                return self._differing(identity, calls, sequence)
        unfinished = [sequence for sequence, of_ranks in calls.items() if _any_unfinished(of_ranks)]
        if not unfinished:  # a wait that was given up, and made again
            return None
        waiting = max(unfinished)
        while waiting - 1 in calls and _any_unfinished(calls[waiting - 1]):
            waiting -= 1
        members = self.members(identity)
        missing = [rank for rank in members if not any(rank in calls[s] for s in calls if s >= waiting)]
        if not missing:
            return self._late(identity, calls[waiting], waiting)
        shifted = self._shifted(identity, calls, waiting, missing)
        if shifted is not None:
            return shifted
        here = next(call for call in calls[waiting].values() if call["state"] != "ended")
        waits = f"{ranks_text(set(members) - set(missing))} wait{'s' if len(members) - len(missing) == 1 else ''} in "
        return self.explain_missing(missing, identity, waiting, f"{waits}{_call_text(here)}", here)

    def members(self, identity: str) -> list[int]:
        """Return the job's ranks of a communicator."""
        known = (each for report in self.reports.values() for each in report.head["communicators"])
        return next((list(each["members"]) for each in known if each["communicator"] == identity), [])

    def _differing(self, identity: str, calls: dict[int, dict[int, JsonObject]], sequence: int) -> Diagnosis:
        """Return the verdict about a call that ranks made differently."""
        groups: dict[str, list[int]] = defaultdict(list)
        for rank, call in calls[sequence].items():
            groups[call["text"]].append(rank)
        history = _History(calls, sequence)
        ordered = sorted(
            groups.values(),
            key=lambda ranks: (len(ranks), -sum(history.novelty(rank) for rank in ranks) / len(ranks), -min(ranks)),
        )
        odd, rest = ordered[0], ordered[-1]
        call, usual = calls[sequence][odd[0]], calls[sequence][rest[0]]
        kind, place, did = "different", call, ""
        if _site(call) == _site(usual):
            if call["kind"] == usual["kind"] and call["dtype"] != usual["dtype"]:
                kind = "dtype"
            elif call["kind"] == usual["kind"] and call["count"] != usual["count"]:
                kind = "shape"
        elif history.follows(usual, call):
            kind, place = "skipped", usual
            did = f": it left out the call of {place_text(usual, of_call=True)}"
        elif history.follows(call, usual):
            kind, did = "swapped", f": it made this call before that of {place_text(usual, of_call=True)}"
        sentence = (
            f"{ranks_text(odd).capitalize()} called {_call_text(call)}, "
            f"where {ranks_text(set(calls[sequence]) - set(odd))} called {_call_text(usual)}{did}."
        )
        return Diagnosis(kind, tuple(odd), place, sentence, identity, sequence)

    def _shifted(
        self, identity: str, calls: dict[int, dict[int, JsonObject]], waiting: int, missing: Sequence[int]
    ) -> Diagnosis | None:
        """Return the verdict about a missing rank whose earlier calls show that it left one out; else None."""
        present = [rank for rank in calls[waiting] if rank not in missing]
        if not present:
            return None
        model = present[0]
        for rank in missing:
            steps = [s for s in sorted(calls) if s <= waiting and model in calls[s]]
            ours = [_site(calls[s][model]) for s in steps]
            its = [_site(calls[s][rank]) for s in steps if rank in calls[s]]
            pairs = enumerate(zip(ours, its, strict=False))
            first = next((i for i, (one, other) in pairs if _differ(one, other)), None)
            if first is None:
                continue
            usual, call = calls[steps[first]][model], calls[steps[first]][rank]
            if its[first:] == ours[first + 1 : first + 1 + len(its) - first]:
                sentence = (
                    f"Rank {rank} left out the call of {_call_text(usual)}, and called {_call_text(call)} in its place."
                )
                return Diagnosis("skipped", (rank,), usual, sentence, identity, steps[first])
        return None

    def _late(self, identity: str, of_ranks: dict[int, JsonObject], sequence: int) -> Diagnosis | None:
        """Return the verdict about a rank that came late to a call that all ranks have made; None if none did."""
        began = {rank: float(self.reports[rank].head["time"]) - call["seconds"] for rank, call in of_ranks.items()}
        last = max(began, key=lambda rank: began[rank])
        others = [time for rank, time in began.items() if rank != last]
        if not others or began[last] - max(others) < _LATE_SECONDS:
            return None
        late = began[last] - min(others)
        before = [c for c in self.reports[last].calls if c["call"] < of_ranks[last]["call"] and c["file"]]
        since = f" (its last call before that was at {place_text(before[-1])})" if before else ""
        sentence = f"Rank {last} came {late:.1f} s late to {_call_text(of_ranks[last])}{since}."
        return Diagnosis("late", (last,), of_ranks[last], sentence, identity, sequence)

    # ---- ranks that are missing --------------------------------------------------------------------------------------

    def waiting_for_message(self) -> list[tuple[int, int]]:
        """Return (rank, peer) of each message that has not ended."""
        return [
            (report.rank, self._in_job(call))
            for report in self.reports.values()
            for call in report.calls
            if call["state"] != "ended" and call["kind"] in ("send", "receive")
        ]

    def _in_job(self, message: JsonObject) -> int:
        """Return the job's rank of the peer of a message."""
        members, peer = self.members(message["communicator"]), int(message["peer"])
        return members[peer] if 0 <= peer < len(members) else peer

    def lost(self) -> dict[int, str]:
        """Return the ranks that errors name as missing, each with its fate: died, left or silent."""
        found: dict[int, str] = {}
        for report, text in self._texts:
            members = self._members_of_failure(report)
            for fate, pattern in (("silent", _SILENT), ("left", _LEFT), ("died", _DIED)):
                for match in pattern.finditer(text):
                    for number in map(int, match[1].split(", ")):
                        found[members[number] if number < len(members) else number] = fate
        return found

    def _members_of_failure(self, report: Report) -> list[int]:
        failed = [call for call in report.calls if call["state"] == "failed" and call["communicator"]]
        return self.members(failed[-1]["communicator"]) if failed else list(range(self.size))

    def explain_missing(
        self,
        missing: Sequence[int],
        identity: str | None,
        sequence: int,
        waits: str,
        here: JsonObject | None = None,
    ) -> Diagnosis:
        """Return the verdict about ranks that did not come to a call."""
        lost = self.lost()
        states: JsonObject = {}
        for each in reversed(self._by_time()):
            states.update(each.head["states"])  # each host knows its own ranks; the earliest report counts
        # The end of the job lets a stopped rank write a report.
        stopped = [rank for rank in missing if states.get(str(rank)) in ("T", "t") and lost.get(rank) != "died"]
        ranks = stopped or [rank for rank in missing if rank not in self.reports] or list(missing)
        rank = ranks[0]
        place, kind = here, "stopped" if stopped else lost.get(rank, "silent")
        end = f"; {waits}." if waits else "."
        if rank not in self.reports or kind == "stopped":
            text = {
                "died": "has died",
                "stopped": "is stopped",
                "left": "has left the job",
                "silent": "did not come, and has written no report",
            }[kind]
            if len(ranks) > 1:
                text = text.replace("has ", "have ").replace("is ", "are ")
            return Diagnosis(
                kind, tuple(ranks), place, f"{ranks_text(ranks).capitalize()} {text}{end}", identity, sequence
            )
        report = self.reports[rank]
        elsewhere = self._unfinished_beside(report, identity)
        if elsewhere is not None:
            if here is not None and (verdict := self._crossed(report, elsewhere, here, missing)) is not None:
                return verdict
            kind, place = "elsewhere", elsewhere
            text = f"Rank {rank} is in {_call_text(elsewhere)}"
        elif report.stack:
            kind, place = "busy", report.stack[-1]
            text = f"Rank {rank} is at {place_text(place)}{_inside(place['function'])}"
        else:
            text = f"Rank {rank} made no further call"
        return Diagnosis(kind, tuple(ranks), place, f"{text}{end}", identity, sequence)

    def _unfinished_beside(self, report: Report, identity: str | None) -> JsonObject | None:
        """Return the last call of a rank on another communicator, unless it has ended."""
        found = [c for c in report.calls if c["state"] != "ended" and c["communicator"] != identity and c["file"]]
        return found[-1] if found else None

    def _crossed(self, report: Report, call: JsonObject, here: JsonObject, missing: Sequence[int]) -> Diagnosis | None:
        """Return the verdict about ranks that wait in calls of different communicators; None if both are usual."""
        waiting = next(
            each for each in self.reports.values() if each.rank not in missing and any(c is here for c in each.calls)
        )
        is_new, is_new_there = self._is_new(report, call), self._is_new(waiting, here)
        if is_new == is_new_there:  # then the usual order of the two counts
            is_new = (_kind_and_site(here), _kind_and_site(call)) in self._transitions
            if is_new == ((_kind_and_site(call), _kind_and_site(here)) in self._transitions):
                return None
        rank, its, other = (report.rank, call, here) if is_new else (waiting.rank, here, call)
        waits = f"{ranks_text(set(range(self.size)) - {rank})} called {_call_text(other)}"
        if (_kind_and_site(other), _kind_and_site(its)) in self._transitions:
            sentence = (
                f"Rank {rank} left out the call of {place_text(other)}: it called {_call_text(its)}, where {waits}."
            )
            return Diagnosis("skipped", (rank,), other, sentence, other["communicator"], other["sequence"])
        sentence = f"Rank {rank} called {_call_text(its)}, where {waits}."
        return Diagnosis("swapped", (rank,), its, sentence, its["communicator"], its["sequence"])

    def _is_new(self, report: Report, call: JsonObject) -> bool:
        """Tell whether no rank has made a call of this place after one of the place before."""
        before = [
            each for each in report.calls if each["call"] < call["call"] and each["file"] and each["sequence"] > 0
        ]
        return bool(before) and (_kind_and_site(before[-1]), _kind_and_site(call)) not in self._transitions

    @cached_property
    def _transitions(self) -> set[tuple[object, object]]:
        """Kinds and places of collective calls that followed each other on a rank, before those that have not ended."""
        found: set[tuple[object, object]] = set()
        for report in self.reports.values():
            made = [call for call in report.calls if call["sequence"] > 0 and call["file"]]
            ended = [_kind_and_site(call) for call in made if call["state"] == "ended"]
            found.update(pairwise(ended))
        return found

    def without_calls(self) -> Diagnosis:
        """Return the verdict about ranks none of which has made a call: the places where they are."""
        groups: dict[str, list[int]] = defaultdict(list)
        for rank, report in self.reports.items():
            place = report.stack[-1] if report.stack else None
            where = f"at {place_text(place)}{_inside(place['function'])}" if place else "at an unknown line"
            groups[where].append(rank)
        told = [f"{ranks_text(ranks)} {'are' if len(ranks) > 1 else 'is'} {where}" for where, ranks in groups.items()]
        who = "rank" if len(self.reports) == self.size else "rank with a report"
        return Diagnosis("no_call", (), None, f"No {who} has made a call: {', '.join(told)}.")

    def _by_time(self) -> list[Report]:
        return sorted(self.reports.values(), key=lambda report: float(report.head["time"]))


class _History:
    """The calls of a communicator before one call."""

    def __init__(self, calls: dict[int, dict[int, JsonObject]], sequence: int) -> None:
        self._calls, self._sequence = calls, sequence
        self._pairs: Counter[tuple[object, object]] = Counter()
        self._texts: set[tuple[object, str]] = set()
        for number in calls:
            for rank, call in calls[number].items():
                after = calls.get(number + 1, {}).get(rank)
                if number + 1 < sequence and after is not None:
                    self._pairs[_kind_and_site(call), _kind_and_site(after)] += 1
                if number < sequence:
                    self._texts.add((_site(call), call["text"]))

    def follows(self, first: JsonObject, second: JsonObject) -> bool:
        """Tell whether a call of the second's kind and place came next after one of the first's."""
        return (_kind_and_site(first), _kind_and_site(second)) in self._pairs

    def novelty(self, rank: int) -> int:
        """Return how new a rank's call is: 1 for its form at this place, 1 for its place after the one before."""
        call = self._calls[self._sequence][rank]
        before = self._calls.get(self._sequence - 1, {}).get(rank)
        is_new = (_site(call), call["text"]) not in self._texts
        return is_new + (before is not None and not self.follows(before, call))


def _kind_and_site(call: JsonObject) -> object:
    return call["kind"], _site(call)


def _any_unfinished(of_ranks: dict[int, JsonObject]) -> bool:
    return any(call["state"] != "ended" for call in of_ranks.values())


def _is_interrupt(report: Report) -> bool:
    return report.exception is not None and report.exception["exception"] == "KeyboardInterrupt"


def _inside(function: str | None) -> str:
    return "" if function in (None, "<module>") else f", in {function}()"


def _call_text(call: JsonObject) -> str:
    where = place_text(call)
    return f"{call['text']}{f' at {where}' if where else ''}"
