"""Metrics of trainings: names, values that are known by other means, the rank that comes last, and where they go."""

from __future__ import annotations

import json
import socket
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import SkipTest
from urllib.request import urlopen

import numpy as np
from loops import array_loop, make_ready, make_step
from marks import on_ranks
from support import LAYOUTS, RANK, SIZE, WORLD, flat, raises, run_checks

import gradientflow as gf
from gradientflow.errors import NonFiniteError
from gradientflow.metrics import names
from gradientflow.metrics.across import across_ranks
from gradientflow.strategies import Settings

FOLDER = Path(sys.argv[1])
SHAPES = ((70,), (40, 30))
ALWAYS = {"steps_total", "dropped_steps_total", "step_seconds", "mean_step_seconds", "exposed_seconds", "participants"}

# Metrics that a strategy has, and metrics that it has not.
OF_STRATEGY = {
    "dense": ({"gradient_norm", "compression_ratio", "last_rank", "slowest_rank"}, {"residual_norm", "period_steps"}),
    "csc(density=0.5, momentum=0.5)": (
        {"gradient_norm", "residual_norm", "compression_ratio", "last_rank_lag_seconds"},
        set(),
    ),
    "lags(ratio=10)": ({"residual_norm", "last_rank"}, {"delay_steps"}),
    "powersgd(rank=1)": ({"residual_norm", "last_rank"}, {"hidden_ratio"}),
    "local_sgd(period=4, delay=1)": ({"period_steps", "delay_steps"}, {"gradient_norm", "last_rank"}),
    "ssp(3)": ({"staleness_limit_steps"}, {"gradient_norm", "last_rank", "sent_bytes_total"}),
}


@on_ranks(2, 3)
def check_names_of_strategies(comm: gf.Communicator) -> None:
    for strategy, (there, missing) in OF_STRATEGY.items():
        with array_loop(comm, strategy, shapes=SHAPES) as (training, optimizer):
            for step in range(3):
                make_step(training, optimizer, float(RANK + step + 1))
            found = training.metrics()
            training.finish()
        assert {*found} <= {*names.BY_NAME}, (strategy, found)
        known = {name.removeprefix(names.PREFIX) for name in found}
        assert ALWAYS | there <= known, (strategy, (ALWAYS | there) - known)
        assert not missing & known, (strategy, missing & known)
        assert all(isinstance(value, float) and np.isfinite(value) for value in found.values()), found


@on_ranks(1, 3)
def check_values(comm: gf.Communicator) -> None:
    with array_loop(comm, "dense(nonfinite='raise')", shapes=SHAPES) as (training, optimizer):
        assert "gradientflow_step_seconds" not in training.metrics()
        for step in range(3):
            make_step(training, optimizer, float(RANK + step))
        found = training.metrics()
        norm = np.linalg.norm(flat(training.gradients))
        assert np.isclose(found["gradientflow_gradient_norm"], norm)
        assert found["gradientflow_steps_total"] == 3
        if comm.nodes > 1:
            assert found["gradientflow_step_sent_bytes"] == training.bytes_sent
            assert found["gradientflow_sent_bytes_total"] == comm.bytes_sent
        everyone = training.metrics(across_ranks=True)
        assert everyone["gradientflow_steps_total_min"] == everyone["gradientflow_steps_total_max"] == 3
        with raises(NonFiniteError):
            make_step(training, optimizer, np.inf)
        assert training.metrics()["gradientflow_dropped_steps_total"] == 1
        make_ready(training, 1.0, [0])
        assert "gradientflow_gradient_norm" not in training.metrics()
        training.wait()


def check_the_rank_that_comes_last(comm: gf.Communicator) -> None:
    """The straggler takes one and a half times as long; the times of this very run tell what the lag is."""
    straggler, steps, times = SIZE - 1, 8, []
    with array_loop(comm, "dense", shapes=SHAPES) as (training, optimizer):
        make_step(training, optimizer)
        for _ in range(steps):
            began = time.monotonic()
            time.sleep(0.06 if straggler == RANK else 0.04)
            make_ready(training)
            times.append(time.monotonic() - began)
            training.wait()
            optimizer.step()
        found = training.metrics()
    means = np.array(WORLD.allgather(times)).mean(axis=1)
    lag = means[straggler] - np.median(np.delete(means, straggler))
    assert found["gradientflow_slowest_rank"] == straggler
    assert abs(found["gradientflow_slowest_rank_lag_seconds"] - lag) < lag / 5, (found, lag)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def check_lines_of_json(_: gf.Communicator) -> None:
    config = gf.Config(metrics=f"{FOLDER}/run.jsonl,{FOLDER}/of{{rank}}.jsonl")
    with (
        gf.init(config=config) as comm,
        array_loop(comm, "lags(ratio=10)", shapes=SHAPES) as (training, optimizer),
    ):
        assert [(each.kind, each.rank) for each in gf.metrics.sources()] == [("training", RANK)]
        for _ in range(3):
            make_step(training, optimizer)
    assert not gf.metrics.sources()
    lines = lines_of(FOLDER / f"run.rank{RANK}.jsonl")
    last = lines[-1]
    same = lines_of(FOLDER / f"of{RANK}.jsonl")[-1]
    assert {**same, "time": 0} == {**last, "time": 0}
    assert (last["rank"], last["kind"], last["source"]) == (RANK, "training", "ArrayLoop with lags")
    assert last["gradientflow_steps_total"] == 3
    assert last["gradientflow_residual_norm"] > 0
    assert abs(last["time"] - time.time()) < 3600


def check_files_of_parts(_: gf.Communicator) -> None:
    """Every part has a rank 0, and every rank of the job a file of its own."""
    with gf.init(config=gf.Config(metrics=f"{FOLDER}/part.jsonl")) as comm:
        part = comm.split(RANK % 2)
        assert part is not None
        with array_loop(part, "dense", shapes=SHAPES) as (training, optimizer):
            make_step(training, optimizer)
    last = lines_of(FOLDER / f"part.rank{RANK}.jsonl")[-1]
    assert (last["rank"], last["gradientflow_participants"]) == (RANK, part.size)


@on_ranks(3)
def check_values_that_are_no_numbers(comm: gf.Communicator) -> None:
    name = "gradientflow_gradient_norm"
    everyone = across_ranks(comm, {name: np.nan if RANK == 1 else 2.0} if RANK else {})
    assert np.isnan([everyone[f"{name}_{part}"] for part in ("min", "mean", "max")]).all()
    assert everyone[f"{name}_max_rank"] == 1


def check_metrics_of_a_server(comm: gf.Communicator) -> None:
    weights = [np.zeros(SHAPES[1], np.float32)]
    with gf.ParameterServer(comm, weights) as server:
        for _ in range(2):
            server.push_pull(Settings(0.1), gradients=weights)[1].take_all(weights)
        found = server.metrics()
        assert {each.kind for each in gf.metrics.sources()} == {"server"}
        everyone = server.metrics(across_ranks=True)
        server.finish(weights)
    assert found["gradientflow_pushes_total"] == everyone["gradientflow_pushes_total_min"] == 2
    assert found["gradientflow_waited_seconds_total"] > 0


def check_a_port(_: gf.Communicator) -> None:
    """The first rank of a host serves what all ranks of it write."""
    if not find_spec("prometheus_client"):
        raise SkipTest("needs prometheus_client")
    with socket.socket() as trying:
        trying.bind(("127.0.0.1", 0))
        port = WORLD.bcast(trying.getsockname()[1])
    with gf.init(config=gf.Config(metrics=f"prometheus:{port}")) as comm:
        with array_loop(comm, "dense", shapes=SHAPES) as (training, optimizer):
            for _ in range(2):
                make_step(training, optimizer)
        comm.barrier()
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as page:
            text = page.read().decode()
        comm.barrier()
    labels = 'kind="training",rank="{}",source="ArrayLoop with dense"'
    assert "# TYPE gradientflow_steps_total counter\n" in text
    for rank in range(SIZE):
        assert f"gradientflow_steps_total{{{labels.format(rank)}}} 2.0\n" in text, text


def check_files_of_tensorboard(_: gf.Communicator) -> None:
    if not find_spec("tensorboard") or not find_spec("torch"):
        raise SkipTest("needs tensorboard and PyTorch")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = gf.Config(metrics=f"tensorboard:{FOLDER}/runs")
    with gf.init(config=config) as comm, array_loop(comm, "dense", shapes=SHAPES) as (training, optimizer):
        for _ in range(2):
            make_step(training, optimizer)
    found = EventAccumulator(str(FOLDER / "runs" / f"rank{RANK}"))
    found.Reload()
    points = found.Scalars("ArrayLoop with dense/gradientflow_participants")
    assert [(point.step, point.value) for point in points][-1] == (2, SIZE)


if __name__ == "__main__":
    run_checks(LAYOUTS, once=[check_lines_of_json, check_files_of_parts, check_a_port, check_files_of_tensorboard])
