"""What ``gradientflow bench fusion`` measures, on which shapes, and that it notices wrong averages."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from figures import check_picture, rendered

from gradientflow.bench.core.case import Case
from gradientflow.bench.core.measure import Times
from gradientflow.bench.core.peers import then_divide
from gradientflow.bench.core.plan import PlanError, format_threshold, parse_thresholds
from gradientflow.bench.core.shapes import MODELS
from gradientflow.bench.fusion.columns import LAYOUT, FusionResult, summarize_step
from gradientflow.bench.fusion.contestants import CopyFusion, FusionContestant, Reducer, fused_groups
from gradientflow.bench.fusion.plan import FusionPlan, parse_buffer

RESULT_FIELDS = {
    *("backend", "method", "model", "tensors", "parameters", "bytes", "memory", "threshold_bytes", "calls", "dtype"),
    *(
        "wire",
        "device",
        "transport",
        "ranks",
        "nodes",
        "iterations",
        "median_us",
        "min_us",
        "p95_us",
        "refill_median_us",
    ),
    *("algbw_GBps", "busbw_GBps", "cpu_us", "link_share", "bytes_copied", "wrong"),
}


# ---- shapes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tensors", "parameters"),
    [
        ("resnet50", 161, 25_557_032),
        ("alexnet", 26, 60_967_976),  # the GradientFlow paper: 26 tensors, 60.9 M
        ("vgg16", 32, 138_357_544),
        ("gpt2", 148, 124_439_808),
    ],
)
def test_models_have_the_known_number_of_parameters(name: str, tensors: int, parameters: int) -> None:
    model = MODELS[name]
    assert (len(model.shapes), model.parameters) == (tensors, parameters)
    assert model.gradients == tuple(reversed(model.shapes))
    assert len({model.title for model in MODELS.values()}) == len(MODELS)


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("resnet50", [(64, 3, 7, 7), (64,), (64,), (64, 64, 1, 1)], [(2048,), (1000, 2048), (1000,)]),
        ("alexnet", [(96, 3, 11, 11), (96,), (96,), (96,), (256, 48, 5, 5)], [(4096,), (1000, 4096), (1000,)]),
        ("vgg16", [(64, 3, 3, 3), (64,), (64, 64, 3, 3)], [(4096, 4096), (4096,), (1000, 4096), (1000,)]),
        ("gpt2", [(50257, 768), (1024, 768), (768,), (768,), (2304, 768)], [(768, 3072), (768,), (768,), (768,)]),
    ],
)
def test_shapes_come_in_the_order_of_the_layers(name: str, first: list[Any], last: list[Any]) -> None:
    shapes = list(MODELS[name].shapes)
    assert shapes[: len(first)] == first
    assert shapes[-len(last) :] == last


# ---- options ---------------------------------------------------------------------------------------------------------


def test_thresholds_are_read_and_written() -> None:
    thresholds = parse_thresholds("0, 1M,inf,1024K,INF,auto")
    assert thresholds == (0.0, float(1 << 20), math.inf, "auto")
    assert [format_threshold(threshold) for threshold in thresholds] == ["0", "1M", "inf", "auto"]
    assert parse_buffer("64MiB") == 64 << 20
    for refused in (lambda: parse_thresholds("-1"), lambda: parse_buffer("1M,2M"), lambda: parse_buffer("0")):
        with pytest.raises(PlanError):
            refused()


def make_plan(**changes: Any) -> FusionPlan:
    return FusionPlan(**{"models": ("resnet50",), "thresholds": (0.0,), "buffer_bytes": 1 << 20, **changes})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"models": ("lenet",)}, "--models does not know 'lenet'"),
        ({"models": ()}, "--models names nothing"),
        ({"thresholds": ()}, "--thresholds names nothing"),
        ({"wires": ("int8",)}, "--wire does not know 'int8'"),
        ({"peers": ("nccl",)}, "--compare does not know 'nccl'"),
        ({"iterations": 0}, "--iterations"),
        ({"seconds": 0.0}, "--seconds"),
    ],
)
def test_what_cannot_be_measured_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        make_plan(**change)


def test_jobs_that_could_only_fail_are_refused() -> None:
    plan = make_plan(models=("resnet50", "vgg16"), thresholds=(0.0, math.inf))
    with pytest.raises(PlanError, match="at least 1 rank"):
        plan.check_job(0, on_this_machine=True)
    with pytest.raises(PlanError, match=r"VGG-16 with 7 contestants and 100000 ranks need \d+\.\d GiB"):
        plan.check_job(100_000, on_this_machine=True)
    plan.check_job(100_000, on_this_machine=False)


# ---- copy fusion -----------------------------------------------------------------------------------------------------


def tensors_of(*lengths: int) -> list[np.ndarray[Any, Any]]:
    return [np.arange(length, dtype=np.float32) * 6 + 60 * number for number, length in enumerate(lengths)]


@pytest.mark.parametrize(
    ("lengths", "buffer", "groups"),
    [
        ((1, 2, 3), 24, [[0, 1, 2]]),
        ((1, 2, 3), 20, [[0, 1], [2]]),
        ((9, 2, 3), 20, [[0], [1, 2]]),  # the first is larger than the buffer
        ((2, 9, 3), 20, [[0], [1], [2]]),
        ((5, 5, 5), 20, [[0], [1], [2]]),
        ((3,), 1000, [[0]]),
    ],
)
def test_as_many_tensors_in_a_row_are_fused_as_the_buffer_holds(
    lengths: tuple[int, ...], buffer: int, groups: list[list[int]]
) -> None:
    assert fused_groups(tensors_of(*lengths), buffer) == groups


@pytest.mark.parametrize("divisor", [1, 3])
def test_copy_fusion_copies_what_it_fuses_in_and_out_and_counts_it(divisor: int) -> None:
    reduced: list[int] = []

    def bind(array: np.ndarray[Any, Any]) -> Callable[[], None]:
        def call() -> None:
            reduced.append(len(array))
            array[...] = (array + 3) * divisor

        return call

    tensors, expected = tensors_of(9, 2, 3, 4, 5), [tensor + 3 for tensor in tensors_of(9, 2, 3, 4, 5)]
    fusion = CopyFusion(tensors, 20, Reducer("fake", "float32", bind, divisor))
    for index in range(len(tensors)):
        fusion.ready(index)
        assert reduced == [9, 5, 4, 5][: {0: 1, 1: 1, 2: 2, 3: 3, 4: 4}[index]]
    assert all(np.array_equal(got, want) for got, want in zip(tensors, expected, strict=True))
    assert fusion.calls == 4
    assert fusion.copied_bytes() == 2 * (2 + 3) * 4
    for index in range(len(tensors)):
        fusion.ready(index)
    assert fusion.copied_bytes() == 4 * (2 + 3) * 4


def test_a_contestant_is_told_of_each_tensor_once_it_is_written() -> None:
    tensors = [np.zeros(length, np.float32) for length in (3, 8, 20)]
    told: list[tuple[int, float]] = []
    contestant = FusionContestant(
        *("per-tensor", "fake", "array", None, "float32", tensors, 3),
        ready=lambda index: told.append((index, float(tensors[index].sum()))),
        wait=lambda: told.append((-1, 0.0)),
    )
    steps = contestant.steps(block_length=8)
    steps.begin(np.arange(8, dtype=np.float32))
    assert told == [(0, 3.0), (1, 28.0), (2, 2 * 28.0 + 6.0)]
    steps.end()
    assert told[3:] == [(-1, 0.0)]
    told.clear()
    steps.refill(np.ones(8, np.float32))
    assert told == []
    steps.call()
    assert told == [(0, 3.0), (1, 8.0), (2, 20.0), (-1, 0.0)]


def test_a_sum_becomes_a_mean() -> None:
    array = np.full(4, 6.0, np.float32)
    Reducer("fake", "float32", lambda _: lambda: None, 3).bind_mean(array)()
    assert array.tolist() == [2.0] * 4
    then_divide(lambda: None, array, 2)()
    assert array.tolist() == [1.0] * 4


# ---- figures ---------------------------------------------------------------------------------------------------------


def make_results() -> list[FusionResult]:
    model = MODELS["resnet50"]
    case = Case("allreduce", 4 * model.parameters, "float32", "mean", 2, 0)

    def result(method: str, backend: str, threshold: float | None, copied: int, call: int) -> FusionResult:
        contestant = FusionContestant(
            *(method, backend, "array", threshold, "float32", [], 5), ready=lambda _: None, wait=lambda: None
        )
        times = Times(*(np.array([time, time]) for time in (call * 1000, 2 * call * 1000, call * 1000)))
        return summarize_step(case, model, contestant, copied, 1, 0, times, None)

    return [
        result("per-tensor", "gradientflow", None, 0, 12_000),
        result("copy-fusion", "mpi", 64 << 20, 3 << 20, 24_000),
        result("pool-fusion", "gradientflow", math.inf, 0, 6_000),
    ]


def test_the_table_compares_with_copy_fusion_over_the_peer() -> None:
    results = make_results()
    lines = rendered(LAYOUT, results, force_terminal=False).splitlines()
    per_tensor = next(line.split() for line in lines if "per tensor" in line)
    assert per_tensor[:5] == ["ResNet-50", "per", "tensor,", "array", "ours"]
    assert per_tensor[-2:] == ["2.00x", "2.00x"]
    copy = next(line.split() for line in lines if "copy fusion" in line)
    assert (copy[:3], copy[3], copy[-1]) == (["copy", "fusion", "mpi"], "64M", "3.0")
    pool = next(line.split() for line in lines if "pool fusion" in line)
    assert (pool[3], pool[-3:]) == ("inf", ["0", "4.00x", "4.00x"])
    assert "copy fusion over the peer" in LAYOUT.explain(results)
    wrong = [replace(results[0], wrong=3, median_us=None), *results[1:]]
    wrong = rendered(LAYOUT, wrong, force_terminal=True, width=95).splitlines()
    assert max(map(len, wrong)) <= 95
    assert "WRONG" in next(line for line in wrong if "per tensor" in line)


@pytest.mark.thorough
def test_the_picture_shows_every_model(tmp_path: Path) -> None:
    from gradientflow.bench.fusion.plot import draw

    results = make_results() + [replace(result, model="vgg16") for result in make_results()]
    check_picture(draw, results, tmp_path / "bars.svg")


# ---- jobs ------------------------------------------------------------------------------------------------------------


def test_every_contestant_is_right_across_nodes(mpirun: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    options = ("--thresholds", "0,8K,inf", "--fusion-buffer", "16K", "--wire", "float32,float16,bfloat16")
    ended = mpirun(
        *(3, "bench_fusion", "right", "bench", "fusion", "--models", "small", *options),
        *("--iterations", "2", "--json", path),
        env={"GRADIENTFLOW_NODE_SIZE": "1"},
    )
    assert "Small" in ended.stdout
    results = json.loads(path.read_text())["results"]
    assert all(set(result) == RESULT_FIELDS for result in results)
    assert {(result["wrong"], result["iterations"], result["nodes"]) for result in results} == {(0, 2, 3)}
    ours = [result for result in results if result["backend"] == "gradientflow"]
    assert len(ours) == 3 * (2 + 1 + 3)
    assert len(results) == len(ours) + 2
    calls = {(result["method"], result["threshold_bytes"]): result["calls"] for result in results}
    assert calls == {
        **{("per-tensor", None): 6, ("copy-fusion", 16 << 10): 3},
        **{("pool-fusion", 0): 6, ("pool-fusion", 8 << 10): 2, ("pool-fusion", "inf"): 1},
    }
    copied = {method: {r["bytes_copied"] for r in results if r["method"] == method} for method, _ in calls}
    in_groups = (64 * 27 + 40 + 7) + (1 + 15)  # what lies before and after the largest tensor
    assert copied == {"per-tensor": {0}, "pool-fusion": {0}, "copy-fusion": {2 * 4 * in_groups}}


def test_wrong_averages_are_counted_and_not_timed(mpirun: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    options = ("--models", "small", "--thresholds", "inf", "--iterations", "1", "--json", path)
    ended = mpirun(2, "bench_fusion", "faulty", "bench", "fusion", *options, check=False)
    assert ended.returncode == 1
    assert "WRONG: copy fusion (mpi, 64M) on Small: " in ended.stdout
    for result in json.loads(path.read_text())["results"]:
        assert (result["wrong"] > 0) == (result["method"] == "copy-fusion")
        assert (result["median_us"] is None) == (result["method"] == "copy-fusion")
