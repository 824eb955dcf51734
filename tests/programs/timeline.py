"""What a timeline holds: the calls, the pool's tensors and ranges, the user's own spans, and nothing once stopped."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from marks import on_ranks
from support import RANK, SIZE, WORLD, raises, run_checks

import gradientflow as gf
from gradientflow.errors import SystemCallError
from gradientflow.model import Cluster, Computation, Costs, Link
from gradientflow.strategies import Dense

FOLDER = Path(sys.argv[1])


def events_of(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.rank{RANK}.json").read_text(encoding="utf-8"))
    return found


@on_ranks(1, 3)
def check_a_training_step(comm: gf.Communicator) -> None:
    begin = time.monotonic() * 1e6
    comm.start_timeline(FOLDER / "step.json")
    pool = gf.GradientPool(comm, [1000, 2000, 3000], fusion_threshold=4000)
    with comm.span('back"ward'):
        for index in range(3):
            pool.ready(index)
    pool.wait()
    comm.allreduce(np.ones(5), "max")
    comm.allreduce_async(np.ones(7)).wait()
    comm.stop_timeline()
    comm.allreduce(np.ones(9))
    with comm.span("not recorded"):
        pass
    end = time.monotonic() * 1e6

    events = events_of("step")
    clocks = [event["args"] for event in events if event["name"] == "clock"]
    assert len(clocks) == 1
    assert clocks[0]["rank"] == RANK
    assert len(set(WORLD.allgather(clocks[0]["run"]))) == 1
    assert abs(clocks[0]["offset_us"]) < 1e5  # one machine, one clock
    if RANK == 0:
        assert clocks[0]["offset_us"] == 0
    assert {event["pid"] for event in events} == {RANK}
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"collectives", "gradient pool of 24064 bytes", "main thread"} <= set(rows.values()), rows

    spans = [event for event in events if event["ph"] == "X"]
    assert all(begin <= event["ts"] and event["ts"] + event["dur"] <= end and event["dur"] >= 0 for event in spans)
    in_row = {row: [event for event in spans if rows[event["tid"]] == row] for row in rows.values()}
    assert [event["name"] for event in in_row["collectives"]] == [
        "allreduce of 5 float64, op max",
        "allreduce of 7 float64, op sum",
    ]
    assert in_row["collectives"][0]["args"]["bytes"] == 40
    assert [event["name"] for event in in_row["main thread"]] == ['back"ward', "wait for gradients"]
    ranges = [event for event in in_row["gradient pool of 24064 bytes"] if "range" in event["name"]]
    assert [event["name"].partition(", range ")[2] for event in ranges] == [
        f"{number} of a gradient pool" for number in range(3)
    ]
    for event, report in zip(ranges, pool.reports, strict=True):
        assert event["args"]["path"] == report.path
        assert event["args"]["bytes"] == report.nbytes
        assert event["args"]["bytes_sent"] == report.bytes_sent
    instants = [event["name"] for event in events if event["ph"] == "i"]
    assert instants == [f"tensor {index} ready" for index in range(3)]
    places = [event["args"]["bytes"] for event in events if event["ph"] == "i"]
    assert sum(places) == pool.nbytes
    waits = [event for event in events if event["ph"] in "be"]
    assert [event["ph"] for event in waits] == ["b", "e"] * (len(waits) // 2)
    assert len({event["id"] for event in waits}) == len(waits) // 2


@on_ranks(1, 3)
def check_the_model_has_the_same_events(comm: gf.Communicator) -> None:
    """The ranges of a step, in their order, with their bytes and paths; none before its last gradient is ready."""
    counts = [512, 1536, 1024, 3008, 1040]  # without gaps between them
    comm.start_timeline(FOLDER / "model.json")
    with gf.GradientPool(comm, counts, fusion_threshold=8000) as pool:
        for index in range(len(counts)):
            pool.ready(index)
        pool.wait()
    comm.stop_timeline()
    events = events_of("model")
    moments = {event["name"]: event["ts"] for event in events if event["ph"] == "i"}
    recorded = [event for event in events if event["ph"] == "X" and ", range " in event["name"]]

    ready = tuple(moments[f"tensor {index} ready"] * 1e-6 for index in range(len(counts)))
    computation = Computation(tuple((count,) for count in counts), ready, ready[-1], 0.0)
    costs = Costs(Cluster.of(comm), Link(latency=0.0))  # as early as may be
    traffic: Any = Dense(fusion_threshold=8000).traffic(computation, costs)
    predicted = traffic.events(computation, costs)
    assert [exchange.calls[0].count * 4 for exchange in traffic.exchanges] == [
        each["args"]["bytes"] for each in recorded
    ]
    assert sum(each["args"]["bytes"] for each in recorded) == 4 * sum(counts)
    for exchange, event, (_, begin, _) in zip(traffic.exchanges, recorded, predicted, strict=True):
        schedule = costs.schedule(exchange.calls[0])
        assert event["args"]["path"] == schedule.path
        assert event["ts"] >= begin * 1e6 - 1  # microseconds, rounded
        assert event["args"]["bytes_sent"] == (schedule.sent[RANK] if SIZE > 1 else 0)
    ends = [event["ts"] + event["dur"] for event in recorded]
    assert all(event["ts"] >= end - 1 for event, end in zip(recorded[1:], ends, strict=False))


def check_a_top_k_pool(comm: gf.Communicator) -> None:
    comm.start_timeline(FOLDER / "top_k.json")
    pool = gf.TopKGradientPool(comm, [1000, 2000], ratios=10, selection="exact", merge_bytes=0)
    for view in pool.views:
        view[...] = 1
    for index in range(2):
        pool.ready(index)
    pool.wait()
    comm.stop_timeline()
    events = events_of("top_k")
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    spans = [event for event in events if event["ph"] == "X"]
    selected = [event for event in spans if event["name"] == "select"]
    assert [event["args"] for event in selected] == [{"layer": 0, "sent": 100}, {"layer": 1, "sent": 200}]
    assert {rows[event["tid"]] for event in selected} == {"main thread"}
    calls = [event for event in spans if rows[event["tid"]].startswith("top-k pool of 12032 bytes")]
    if comm.size > 1:
        assert [event["name"] for event in calls if "averaging" in event["name"] or "entries" in event["name"]] == (
            ["averaging a gradient pool"] * 2
            if len(comm.describe()["nodes"]) == 1
            else [f"allgather of {report.nbytes} uint8, entries of a top-k gradient pool" for report in pool.reports]
        )


def check_one_file_for_several_communicators(comm: gf.Communicator) -> None:
    comm.start_timeline(FOLDER / "shared.json")
    with gf.init() as other:
        other.start_timeline(FOLDER / "shared.json")
        other.barrier()
        comm.barrier()
        comm.stop_timeline()
        other.allreduce(np.ones(3))
    events = events_of("shared")
    assert [event["name"] for event in events if event["ph"] == "X"] == [
        "barrier",
        "barrier",
        "allreduce of 3 float64, op sum",
    ]
    assert sum(event["name"] == "clock" for event in events) == 1


def check_failures(comm: gf.Communicator) -> None:
    with raises(SystemCallError, "cannot write the timeline /no/such/folder/x.rank", "No such file"):
        comm.start_timeline("/no/such/folder/x.json")
    comm.stop_timeline()
    assert comm.allreduce(np.array(1)) == SIZE


def check_the_setting(_: gf.Communicator) -> None:
    with gf.init(config=gf.Config(timeline=str(FOLDER / "setting"))) as whole:
        whole.barrier()
        pool = gf.GradientPool(whole, [10])
        pool.ready()
        pool.wait()
        pool.close()
    names = [event["name"] for event in json.loads((FOLDER / f"setting.rank{RANK}").read_text(encoding="utf-8"))]
    assert "barrier" in names
    assert any("range 0 of a gradient pool" in name for name in names)


run_checks([{}, {"node_size": 1}], once=[check_the_setting])
