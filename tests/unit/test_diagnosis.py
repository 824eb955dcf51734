"""`gradientflow.recorder.diagnosis`: seeded differences between the calls of ranks, and the conclusions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gradientflow.annotations import JsonObject
from gradientflow.recorder import entries
from gradientflow.recorder.diagnosis import Diagnosis, Report, diagnose, latest_job
from gradientflow.recorder.private_file import write_privately

WORLD = "1"


@dataclass(frozen=True)
class Site:
    """A call of a program: its line, and its description."""

    line: int
    text: str


def call(number: int, site: Site, state: str = "ended", seconds: float = 1.0) -> JsonObject:
    kind, count, dtype = site.text.split()
    return {
        "call": number,
        "communicator": WORLD,
        "sequence": number,
        "form": "blocking",
        "kind": kind,
        "text": site.text,
        "dtype": dtype,
        "count": int(count),
        "op": None,
        "peer": None,
        "state": state,
        "seconds": seconds,
        "file": "/home/me/train.py",
        "line": site.line,
        "function": "main",
    }


def report(rank: int, ranks: int, calls: list[JsonObject], *, text: str = "", time: float = 100.0) -> Report:
    communicator = {
        "communicator": WORLD,
        "name": "collectives",
        "rank": rank,
        "size": ranks,
        "members": [*range(ranks)],
    }
    head = {
        "job": "a",
        "rank": rank,
        "size": ranks,
        "time": time,
        "reason": "",
        "text": text,
        "states": {},
        "communicators": [communicator],
    }
    return Report(head, calls)


def run(programs: list[list[Site]]) -> list[Report]:
    """Run the programs of ranks until calls differ, or one rank makes no further call; return their reports."""
    ranks = len(programs)
    for number in range(max(map(len, programs))):
        made = [program[number] if number < len(program) else None for program in programs]
        if len({site.text if site else None for site in made}) > 1:
            found = []
            for rank, program in enumerate(programs):
                calls = [call(i + 1, site) for i, site in enumerate(program[:number])]
                here = made[rank]
                found.append(report(rank, ranks, calls + ([call(number + 1, here, "failed")] if here else [])))
            return found
    raise AssertionError("the programs do not differ")


SITES = st.lists(
    st.builds(
        Site, st.integers(1, 99), st.sampled_from(["allreduce 10 float32", "allgather 4 float64", "barrier 0 uint8"])
    ),
    min_size=2,
    max_size=4,
    unique_by=(lambda site: site.line, lambda site: site.text),
)
PLACES = st.tuples(st.integers(2, 5), st.integers(0, 4), st.integers(2, 5), st.integers(0, 3))


def programs_of(sites: list[Site], places: tuple[int, int, int, int]) -> tuple[list[list[Site]], int, int]:
    """Return a loop's calls for each rank, the rank to change, and the index of the call to change."""
    ranks, rank, step, position = places
    assume(rank < ranks and position < len(sites))
    return [sites * 8 for _ in range(ranks)], rank, step * len(sites) + position


def line_of(found: Diagnosis) -> int:
    assert found.place is not None
    return int(found.place["line"])


@given(SITES, PLACES)
def test_a_left_out_call(sites: list[Site], places: tuple[int, int, int, int]) -> None:
    programs, rank, index = programs_of(sites, places)
    programs[rank] = list(programs[rank])
    left_out = programs[rank].pop(index)
    found = diagnose(run(programs))
    if len(sites) > 2:  # with two calls in a loop, leaving out one and swapping both look alike at first
        assert found.kind == "skipped"
    assert found.ranks == (rank,)
    assert line_of(found) == left_out.line


@pytest.mark.parametrize("odd", [0, 1])
def test_a_call_of_another_kind_at_the_same_line_is_no_model(odd: int) -> None:
    """DistributedDataParallel once broadcasts its new buckets before it averages them, in the same backward pass."""
    measure, broadcast, average = (
        Site(3, "allreduce 9 float32"),
        Site(4, "broadcast 3 int32"),
        Site(4, "allreduce 7 int8"),
    )
    usual = [measure, average, measure, broadcast, average, measure, average]
    programs = [usual + ([average] if rank == odd else [measure, average]) for rank in (0, 1)]
    found = diagnose(run(programs))
    assert (found.ranks, line_of(found)) == ((odd,), 3)


@given(SITES, PLACES, st.sampled_from([("shape", "11 float32"), ("dtype", "10 float64")]))
def test_another_tensor(sites: list[Site], places: tuple[int, int, int, int], change: tuple[str, str]) -> None:
    programs, rank, index = programs_of(sites, places)
    programs[rank] = list(programs[rank])
    assume(programs[rank][index].text == "allreduce 10 float32")
    programs[rank][index] = replace(programs[rank][index], text=f"allreduce {change[1]}")
    found = diagnose(run(programs))
    assert (found.kind, found.ranks, line_of(found)) == (change[0], (rank,), programs[rank][index].line)


@given(SITES, PLACES)
def test_a_rank_that_stops(sites: list[Site], places: tuple[int, int, int, int]) -> None:
    programs, rank, index = programs_of(sites, places)
    programs[rank] = programs[rank][:index]
    reports = run(programs)
    place = {"file": "/home/me/data.py", "line": 7, "function": "load"}
    reports[rank] = replace(reports[rank], stack=[place])
    found = diagnose(reports)
    assert (found.kind, found.ranks, found.place) == ("busy", (rank,), place)
    assert "data.py:7, in load()" in found.sentence
    del reports[rank]
    assert diagnose(reports).ranks == (rank,)


def test_calls_in_compiled_programs_have_the_lines_that_started_these(monkeypatch: pytest.MonkeyPatch) -> None:
    start = {"form": "send", "peer": -1, "code": "program"}
    inside = {"form": "blocking", "peer": None, "kind": "allreduce", "code": None, "line": None}
    made = [(1, False), None, None, (2, True), None, (2, True), None, (3, False), None]
    kept = [{**inside} if each is None else {**start, "line": each[0], "count": each[1]} for each in made]
    for left, lines in ((kept, [1, 1, None, None, 3]), (kept[3:], [None, None, 3])):  # also without the first start
        recorder = SimpleNamespace(entries=lambda left=left: [{**entry} for entry in left])
        monkeypatch.setattr(entries, "core", SimpleNamespace(recorder=recorder))
        assert [entry["line"] for entry in entries.located_entries()] == lines


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("rank 1 (process 7) has died while rank 0 waited for it in allreduce", "died"),
        ("rank 1 has closed its communicator while rank 0 waited for it in allreduce", "left"),
        ("allreduce timed out after 3 s on rank 0: no sign of rank 1", "silent"),
    ],
)
def test_the_fate_of_a_rank_without_report(text: str, kind: str) -> None:
    calls = [call(1, Site(3, "allreduce 10 float32"), "failed")]
    found = diagnose([report(0, 2, calls, text=text)])
    assert (found.kind, found.ranks, line_of(found)) == (kind, (1,), 3)


def test_a_stopped_rank_that_writes_a_report_at_its_end() -> None:
    waits = report(0, 3, [call(1, Site(3, "allreduce 10 float32"), "failed")])
    at_the_end = [
        replace(report(rank, 3, [], time=105.0), stack=[{"file": "/x.py", "line": 9, "function": "load"}])
        for rank in (1, 2)
    ]
    for stopped in (1, 2):
        waits.head["states"] = {"0": "S"}  # of its host
        at_the_end[0].head["states"] = {"1": "S", "2": "S", str(stopped): "T"}
        found = diagnose([waits, *at_the_end])
        assert (found.kind, found.ranks, line_of(found)) == ("stopped", (stopped,), 3)


def test_ranks_without_a_call_and_the_places_where_they_are() -> None:
    places = [{"file": "/home/me/train.py", "line": line, "function": "load"} for line in (9, 9, 7)]
    found = diagnose([replace(report(rank, 3, []), stack=[place]) for rank, place in enumerate(places)])
    assert found.kind == "no_call"
    assert found.sentence.startswith("No rank has made a call: ranks 0, 1 are at train.py:9, in load(), rank 2 is at ")
    assert diagnose([report(0, 3, [])]).sentence.startswith("No rank with a report has made a call: ")


def test_an_exception_of_one_rank() -> None:
    waits = [call(1, Site(3, "allreduce 10 float32"), "failed")]
    raised = {"exception": "ValueError", "file": "/home/me/train.py", "line": 9, "function": "load"}
    found = diagnose([report(0, 2, waits, time=101.0), replace(report(1, 2, []), exception=raised)])
    assert (found.kind, found.ranks, line_of(found)) == ("raised", (1,), 9)


def test_a_late_rank() -> None:
    site = Site(3, "allreduce 10 float32")
    reports = [report(0, 2, [call(1, site, "failed", 6.0)]), report(1, 2, [call(1, site, "failed", 1.0)])]
    found = diagnose(reports)
    assert (found.kind, found.ranks) == ("late", (1,))
    assert "5.0 s late" in found.sentence


def test_only_the_latest_job_counts() -> None:
    old, new = report(0, 2, [], time=1.0), report(1, 2, [call(1, Site(3, "barrier 0 uint8"))], time=2.0)
    new.head["job"] = "b"
    assert latest_job([old, new]) == [new]
    assert diagnose([new]).kind == "unknown"


def test_a_wait_that_was_given_up_and_made_again_is_no_difference() -> None:
    calls = [call(1, Site(3, "wait 5 float32"), "failed"), {**call(1, Site(3, "wait 5 float32")), "call": 2}]
    assert diagnose([report(0, 2, calls), report(1, 2, [calls[1]])]).sentence


def test_the_peer_of_a_message_is_named_by_its_rank_in_the_job() -> None:
    message = {**call(1, Site(7, "receive 5 float32"), "failed"), "communicator": "part", "sequence": 0, "peer": 0}
    waiting = report(0, 3, [message])
    part = {"communicator": "part", "name": "split", "rank": 1, "size": 2, "members": [2, 0]}
    waiting.head["communicators"].append(part)
    assert "2" in diagnose([waiting, report(1, 3, []), report(2, 3, [])]).sentence.split(";")[0]


def test_reports_follow_no_links(tmp_path: Path) -> None:
    """They replace a link that waits for them, and what it points to stays as it was."""
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "rank0.jsonl").symlink_to("victim")
    write_privately(tmp_path / "rank0.jsonl", b"calls")
    assert (tmp_path / "victim").read_text() == "mine"
    assert (tmp_path / "rank0.jsonl").read_bytes() == b"calls"
    assert (tmp_path / "rank0.jsonl").stat().st_mode & 0o777 == 0o600
