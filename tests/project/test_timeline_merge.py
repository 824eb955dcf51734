"""``gradientflow timeline``: joining what ranks recorded on one clock, adding up times, and drawing them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gradientflow.cli.timeline import timeline
from gradientflow.cli.timeline_file import covered, read_timelines, summarize
from gradientflow.errors import ArgumentError

Event = dict[str, Any]
REDUCE = "allreduce of 4 float32, op mean, range 0 of a gradient pool"


def metadata(rank: int, name: str, args: Event) -> Event:
    return {"ph": "M", "name": name, "pid": rank, "args": args}


def clock(rank: int, offset: float, run: str = "7") -> Event:
    return metadata(rank, "clock", {"rank": rank, "offset_us": offset, "host": f"host{rank}", "run": run})


def span(rank: int, name: str, begin: float, length: float, **args: Any) -> Event:
    return {"ph": "X", "name": name, "pid": rank, "tid": 1, "ts": begin, "dur": length, "args": args}


def half(rank: int, phase: str, time: float) -> Event:
    return {"ph": phase, "cat": "queued", "id": 5, "name": REDUCE, "pid": rank, "tid": 1, "ts": time}


def written(folder: Path, name: str, events: list[Event], cut: str = "\n]\n") -> str:
    """Write a file as the core does; with another `cut` as that of a process that was killed."""
    path = folder / name
    path.write_text("[\n" + ",\n".join(json.dumps(event) for event in events) + cut, encoding="utf-8")
    return str(path)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(timeline, arguments)


def refusal(*arguments: str) -> str:
    """Give the sentence with which a command refuses."""
    ended = call(*arguments)
    assert isinstance(ended.exception, ArgumentError), ended
    return str(ended.exception)


RANK_0 = [
    clock(0, 0.0),
    {**metadata(0, "thread_name", {"name": "main thread"}), "tid": 1},
    half(0, "b", 1000.0),
    half(0, "e", 1001.5),
    span(0, "backward", 900.0, 110.0),
    span(0, REDUCE, 1001.5, 100.0, bytes=16, bytes_sent=24, path="ring"),
]
RANK_1 = [
    clock(1, -500.25),
    {"ph": "i", "s": "t", "name": "tensor 0 ready", "pid": 1, "tid": 1, "ts": 1490.5},
    half(1, "b", 1491.0),
    span(1, REDUCE, 1500.125, 110.0, bytes=16, bytes_sent=24, path="ring"),
]


# ---- merging ---------------------------------------------------------------------------------------------------------


def test_ranks_are_joined_on_the_clock_of_rank_0(tmp_path: Path) -> None:
    # Rank 1's process was killed in the middle of a line.
    first, second = (
        written(tmp_path, "t.rank0.json", RANK_0),
        written(tmp_path, "t.rank1.json", RANK_1, ',\n{"ph": "X", "na'),
    )
    output = tmp_path / "merged.json"
    assert call("merge", second, first, "-o", str(output)).exit_code == 0
    merged = json.loads(output.read_text())
    assert merged == {
        "displayTimeUnit": "ms",
        "traceEvents": [
            clock(0, 0.0),
            RANK_0[1],
            clock(1, 0.0),
            RANK_0[4],
            {**RANK_1[1], "ts": 990.25},
            {**half(1, "b", 990.75), "id": "1.5"},
            {**RANK_1[3], "ts": 999.875},
            {**half(0, "b", 1000.0), "id": "0.5"},
            {**half(0, "e", 1001.5), "id": "0.5"},
            RANK_0[5],
        ],
    }
    again = tmp_path / "again.json"
    assert call("merge", str(output), "-o", str(again)).exit_code == 0
    times = [event.get("ts") for event in merged["traceEvents"]]
    assert [event.get("ts") for event in json.loads(again.read_text())["traceEvents"]] == times


@pytest.mark.parametrize("cut", ["", ",", ",\n", ',\n{"ph": "X", "name": "x", "pid": 0,', "\n]"])
def test_a_file_without_its_end_is_read_as_far_as_it_goes(tmp_path: Path, cut: str) -> None:
    (found,) = read_timelines([written(tmp_path, "t.rank0.json", RANK_0, cut)])
    assert found.events == RANK_0
    assert (found.rank, found.host, found.run, found.offset_us) == (0, "host0", "7", 0.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is not JSON"),
        ("hello", "it is not JSON"),
        ("7", "it holds no events"),
        pytest.param("[" * 100_000, "it is nested too deep", id="nested"),
        ('{"results": []}', "it holds no events"),
        ("[", "does not say how the rank's clock stands"),
        ('[{"ph": "X", "name": "x", "pid": 0, "tid": 1, "ts": 1, "dur": 1, "args": {}}]', "clock stands"),
        ("[7]", "entry 1 is not an event"),
        ('[{"ph": "X", "name": "x", "pid": 0, "tid": 1, "ts": "1", "dur": 1, "args": {}}]', "entry 1 is not an event"),
        ('[{"ph": "X", "name": "x", "pid": 0, "tid": 1, "ts": 1, "args": {}}]', "entry 1 is not an event"),
        ('[\n{"ph": "M",\n{"ph": "M",\n{"ph":', "more than its last line is incomplete"),
    ],
)
def test_what_is_no_timeline_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    said = refusal("merge", str(path), "-o", str(tmp_path / "merged.json"))
    assert words in said
    assert str(path) in said
    assert not (tmp_path / "merged.json").exists()


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    first = written(tmp_path, "a.rank0.json", RANK_0)
    same, other = written(tmp_path, "b.rank0.json", RANK_0), written(tmp_path, "b.rank1.json", [clock(1, 0.0, run="8")])
    output = ("-o", str(tmp_path / "merged.json"))
    assert refusal("merge", first, same, *output) == f"{first} and {same} are both of rank 0"
    assert refusal("merge", first, first, *output) == f"{first} and {first} are both of rank 0"
    assert refusal("merge", first, other, *output) == f"{first} and {other} are of different runs"
    assert "name another one" in refusal("merge", first, "-o", first)
    assert "cannot be read: No such file" in refusal("merge", str(tmp_path / "none"), *output)
    assert "cannot be written: No such file" in refusal("merge", first, "-o", str(tmp_path / "none" / "m.json"))
    assert call("merge", *output).exit_code == 2
    assert call("merge", first).exit_code == 2


# ---- summary ---------------------------------------------------------------------------------------------------------


def test_what_intervals_cover_counts_once() -> None:
    assert covered([]) == 0
    assert covered([(5, 7), (0, 2), (1, 3), (1.5, 1.75), (7, 8)]) == 6


def test_times_of_gradients_and_of_waiting_are_added_up(tmp_path: Path) -> None:
    events = [
        clock(0, 0.0),
        span(0, "allgather of 256 uint8", 0.0, 50.0, bytes=256, path="announcement", bytes_sent=3),
        span(0, "backward", 100.0, 400.0),
        span(0, REDUCE, 200.0, 100.0, bytes=1 << 20, bytes_sent=1 << 21),
        span(0, REDUCE, 250.0, 150.0, bytes=1 << 20),  # of a second pool; the MPI library sent it
        span(0, "wait for gradients", 350.0, 50.0),
        {"ph": "i", "s": "t", "name": "tensor 0 ready", "pid": 0, "tid": 1, "ts": 20_000.0},
    ]
    path = written(tmp_path, "t.rank0.json", events)
    found = summarize(read_timelines([path])[0])
    assert (found.recorded, found.communication, found.waiting, found.other) == (20_000.0, 200.0, 50.0, 50.0)
    assert (found.calls, found.nbytes, found.bytes_sent, found.hidden) == (2, 2 << 20, 2 << 20, 0.75)
    ended = call("summary", path)
    assert ended.exit_code == 0
    assert ended.stdout.splitlines()[-1].split() == [
        "0",
        "host0",
        "20.0",
        "2",
        "2.0",
        "2.0",
        "0.20",
        "0.05",
        "75",
        "0.05",
    ]
    quiet = written(tmp_path, "t.rank1.json", [clock(1, 0.0)])
    assert call("summary", path, quiet).stdout.splitlines()[-1].split()[-2:] == ["-", "0.00"]


# ---- pictures --------------------------------------------------------------------------------------------------------


def test_a_stretch_of_time_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = [written(tmp_path, "t.rank0.json", RANK_0), written(tmp_path, "t.rank1.json", RANK_1)]
    path = tmp_path / "t.svg"
    assert call("plot", *files, "-o", str(path), "--to", "0.2").exit_code == 0
    assert path.read_text().startswith("<?xml")
    assert "nothing happened" in refusal("plot", *files, "-o", str(path), "--from", "5")
    assert "cannot be drawn" in refusal("plot", *files, "-o", str(tmp_path / "t.doc"))


# ---- real ones -------------------------------------------------------------------------------------------------------


def test_recorded_timelines_are_joined(mpirun: Callable[..., Any], tmp_path: Path) -> None:
    ranks = 2
    mpirun(ranks, "timeline", tmp_path)
    timelines = read_timelines([str(tmp_path / f"step.rank{rank}.json") for rank in range(ranks)])
    assert [found.rank for found in timelines] == list(range(ranks))
    for found in timelines:
        summary = summarize(found)
        assert (summary.calls, summary.nbytes) == (3, 24064)
        assert summary.communication > 0
        assert summary.waiting > 0
        assert summary.other > 0
        assert 0 <= summary.hidden <= 1
    # No rank has the result before the last has begun; a busy machine makes the comparison of clocks less exact.
    output = tmp_path / "merged.json"
    assert call("merge", *(found.path for found in timelines), "-o", str(output)).exit_code == 0
    (first, second) = (
        [event for event in found.spans() if "gradient pool" in event["name"]]
        for found in read_timelines([str(output)])
    )
    assert [event["name"] for event in first] == [event["name"] for event in second]
    for one, other in zip(first, second, strict=True):
        assert one["ts"] < other["ts"] + other["dur"] + 50_000
        assert other["ts"] < one["ts"] + one["dur"] + 50_000
