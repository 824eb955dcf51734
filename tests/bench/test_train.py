"""What ``gradientflow bench train`` works out, and that it notices training that goes wrong."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from figures import rendered
from jobs import Finished

from gradientflow.bench.core.plan import PlanError
from gradientflow.bench.core.results import figures_of, write_csv
from gradientflow.bench.core.resume import ResumeFile
from gradientflow.bench.train.columns import LAYOUT
from gradientflow.bench.train.data import CHARACTERS, WINDOW, SampleOrder, digits, encode, library_text
from gradientflow.bench.train.entry import DDP_ALONE, NONE, SINGLE, SINGLE_ACCUMULATED, Entry, Optimizer
from gradientflow.bench.train.ladder import LADDER, ladder_results
from gradientflow.bench.train.plan import CONTESTANTS, TrainPlan, parse_numbers
from gradientflow.bench.train.rates import parse_rates
from gradientflow.bench.train.results import Figures, Point, Run, Scaled, TrainResult, summarize
from gradientflow.bench.train.stragglers import Pace
from gradientflow.bench.train.turns import JointTurn, Turn, join
from gradientflow.errors import GradientFlowError
from gradientflow.json_option import JsonOutput
from gradientflow.launch import module_command
from gradientflow.policies import Stragglers
from gradientflow.strategies import CSC, Dense, DiLoCo, parse_strategies
from gradientflow.strategies.parsing import BY_NAME

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SIGN = f"{EXAMPLES / 'sign_sgd.py'}:SignSGD(scale=0.01)"
SGD = Optimizer(0.01, 0.9)
RESULT_FIELDS = [
    *("model", "parameters", "contestant", "precision", "strategy", "settings", "approximation_rank", "optimizer"),
    *("learning_rate", "learning_rate_tuned", "overlaps", "fused", "survives", "transport", "views"),
    *("ranks", "nodes", "batch", "steps"),
    *("step_median_ms", "step_p95_ms", "forward_median_ms", "backward_median_ms", "samples_per_second"),
    *("speedup", "exposed_ms", "bookkeeping_ms", "bytes_sent", "bytes_reported", "waiting_percent"),
    *("iterations_per_second", "link_ms", "scale", "runs", "wrong"),
]


# ---- options ---------------------------------------------------------------------------------------------------------


def test_every_setting_is_a_contestant() -> None:
    plan = TrainPlan(
        wires=("float32", "float16"), thresholds=(0, math.inf), approximation_ranks=(1, 4), strategies=(Dense(),)
    )
    assert [entry.name for entry in plan.entries] == [
        "none",
        "gradientflow (dense(fusion_threshold=0, wire='float32'))",
        "gradientflow (dense(fusion_threshold=inf, wire='float32'))",
        "gradientflow (dense(fusion_threshold=0, wire='float16'))",
        "gradientflow (dense(fusion_threshold=inf, wire='float16'))",
        "ddp-gloo",
        "ddp-gloo-fp16",
        "ddp-gloo-powersgd (rank 1)",
        "ddp-gloo-powersgd (rank 4)",
        "ddp-gradientflow",
        "mpi",
    ]
    assert [entry.sent_dtype for entry in plan.entries if entry.strategy is None] == [
        *(None, "float32", "float16", None, None, "float32", "float32")
    ]


def test_ddp_with_views_of_its_buckets_beside_ddp_alone() -> None:
    plan = TrainPlan(contestants=("ddp-gloo", "ddp-gloo-powersgd", "mpi"), views=True)
    assert [entry.name for entry in plan.entries] == [
        *("none", "ddp-alone", "ddp-gloo", "ddp-gloo-powersgd (rank 1)", "mpi"),
        *("ddp-alone (views)", "ddp-gloo (views)", "ddp-gloo-powersgd (rank 1, views)"),
    ]
    assert [entry.name for entry in plan.entries if entry.is_reference] == ["none", "ddp-alone", "ddp-alone (views)"]
    assert "ddp-alone" not in [entry.contestant for entry in replace(plan, epochs=1).entries]
    assert not plan.on_a_part.views


def test_strategies_that_survive_are_beside_the_others() -> None:
    plan = TrainPlan(contestants=("gradientflow",), strategies=(Dense(),), survive=True, transports=("tcp",))
    assert [entry.setting for entry in plan.entries] == ["", "dense, over tcp", "dense, survives, over tcp"]
    with pytest.raises(PlanError, match="--survive goes with --transport tcp"):
        replace(plan, transports=("auto",))


def named(words: str, **options: Any) -> TrainPlan:
    return TrainPlan(contestants=("gradientflow",), strategies=tuple(parse_strategies(words)), **options)


def test_every_strategy_is_a_contestant() -> None:
    own = f"{EXAMPLES / 'local_sgd.py'}:LocalSGD(period=4)"
    plan = named(f"dense; csc(density=0.2, warmup=45); csc(wire='float16'); {own}")
    assert [entry.setting for entry in plan.entries[1:]] == [
        *("dense", "csc(density=0.2, warmup=45)", "csc(wire='float16')", "LocalSGD(period=4)")
    ]
    assert [entry.sent_dtype for entry in plan.entries[1:]] == ["float32", "float32", "float16", "float32"]
    assert [entry.profile.period for entry in plan.entries] == [1, 1, 1, 1, 4]
    assert plan.untimed_steps == 45  # until all send what they go on sending
    assert named("csc").untimed_steps == TrainPlan().untimed_steps == 3
    assert [entry.setting for entry in TrainPlan(contestants=("gradientflow",)).entries[1:]] == [
        *("dense", "dense(wire='float16')")
    ]


@pytest.mark.parametrize("steps", [1, 8, 40, 4000])
def test_all_stands_for_every_strategy_of_the_library_as_it_suits_so_many_steps(steps: int) -> None:
    found = parse_strategies(f"all; {SIGN}; dense", steps)
    assert {each.name for each in found} == {*BY_NAME, "SignSGD"}
    plan = TrainPlan(strategies=tuple(dict.fromkeys(found)), steps=steps)
    assert plan.contestants == CONTESTANTS
    assert len(plan.entries) == 1 + len(BY_NAME) + 1 + len(CONTESTANTS) - 1
    assert all(entry.profile.period <= steps and entry.profile.warmup <= max(10, steps) for entry in plan.entries)
    if steps == 4000:  # the arguments that they have by default
        usual = [each for each in found if each.name not in ("SignSGD", "ssp", "dssp")]
        assert usual == [type(each)() for each in usual]


def test_a_barrier_before_each_step_goes_with_ranks_that_wait_for_no_later_step() -> None:
    found = {str(entry.strategy): entry.keeps_step for entry in named("all", steps=1000).entries}
    assert [name for name, keeps_step in found.items() if not keeps_step] == ["elastic_bsp"]


def test_strategies_go_with_precisions() -> None:
    plan = named("dense; dense(wire='float16')", precisions=("float32", "bfloat16"))
    assert [(entry.setting, entry.sent_dtype) for entry in plan.entries[1:]] == [
        *(("dense", "float32"), ("dense, bfloat16 model", "bfloat16"), ("dense(wire='float16')", "float16"))
    ]


def test_strategies_go_with_the_fused_step() -> None:
    plan = named("dense; csc(density=0.1)", fused=True)
    found = [(entry.setting, entry.fused) for entry in plan.entries[1:]]
    assert found == [("dense", False), ("dense, fused step", True), ("csc", False)]


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        (SIGN, {"wires": ("float16",)}, "--wire does not go with SignSGD(scale=0.01), which has no argument wire"),
        (SIGN, {"thresholds": (0,)}, "which has no argument fusion_threshold: leave --thresholds out"),
        (SIGN, {"ladder": True}, "--ladder does not go with SignSGD(scale=0.01)"),
        ("csc(wire='float32')", {"wires": ("float16",)}, "leave --wire out, or wire in the strategy"),
        (f"{EXAMPLES / 'local_sgd.py'}:LocalSGD(period=50)", {}, "--steps needs at least 50, the period of LocalSGD"),
    ],
)
def test_options_that_do_not_go_with_a_strategy_are_refused(words: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError) as caught:
        named(words, **options)
    assert message in str(caught.value)


def test_strategies_without_ours_are_refused() -> None:
    with pytest.raises(PlanError, match="--strategy is about gradientflow, which is not among --contestants"):
        TrainPlan(contestants=("mpi",), strategies=(Dense(),))


def test_two_strategies_that_look_alike_are_refused(tmp_path: Path) -> None:
    words = []
    for name in ("one", "two"):
        path = tmp_path / f"{name}.py"
        path.write_text("from gradientflow.strategies import Dense\nclass Mine(Dense):\n    pass\n")
        words.append(f"{path}:Mine")
    with pytest.raises(PlanError, match=r"two strategies would both be shown as gradientflow \(Mine\)"):
        named("; ".join(words))


def test_the_ladder_has_the_columns_of_the_paper() -> None:
    plan = TrainPlan(ladder=True, strategies=(CSC(), CSC(0.15)))
    assert plan.entries == [Entry(NONE), *(rung.entry for rung in plan.rungs)]
    assert [rung.title for rung in plan.rungs] == [
        "MPI",
        "ring",
        "ring +fp16",
        "ring +fp16 +overlap",
        "ring +fp16 +lazy +overlap",
        "ring +fp16 +lazy +csc +overlap",
        "ring +fp16 +lazy +csc(density=0.15) +overlap",
    ]
    assert [rung.entry.setting for rung in plan.rungs] == [
        "",
        "dense(fusion_threshold=0, wire='float32', algorithm='ring'), after backward",
        "dense(fusion_threshold=0, wire='float16', algorithm='ring'), after backward",
        "dense(fusion_threshold=0, wire='float16', algorithm='ring')",
        "dense(wire='float16', algorithm='ring')",
        "csc(wire='float16', algorithm='ring')",
        "csc(density=0.15, wire='float16', algorithm='ring')",
    ]
    assert TrainPlan(ladder=True).rungs == plan.rungs[:-1]


def test_convergence_is_compared_with_one_process() -> None:
    plan = TrainPlan(contestants=("ddp-gloo",), epochs=3, seeds=(0, 1), models=("cnn",))
    assert [entry.contestant for entry in plan.entries] == [SINGLE, SINGLE_ACCUMULATED, "ddp-gloo"]
    assert plan.all_turns == 2 * 3 * 3


def test_steps_are_taken_in_turns() -> None:
    assert TrainPlan(steps=12, turn=5).turns == [5, 5, 2]
    assert TrainPlan(steps=3, turn=5).turns == [3]


@pytest.mark.parametrize(
    "options",
    [
        {"models": ("vgg",)},
        {"models": ()},
        {"contestants": ("none",)},
        {"wires": ("int8",)},
        {"precisions": ("float16",)},
        {"approximation_ranks": ()},
        {"ladder": True, "epochs": 1},
        {"approximation_ranks": (0,)},
        {"steps": 0},
        {"turn": 0},
        {"batch": 0},
        {"threads": 0},
        {"epochs": 0},
        {"seeds": (-1,)},
        {"learning_rate": 0.0},
        {"learning_rate": math.nan},
        {"momentum": 1.0},
        {"momentum": math.nan},
        {"scale": (0, 2)},
        {"scale": (1, 2), "ladder": True},
        {"scale": (1, 2), "stragglers": Stragglers((1,))},
    ],
)
def test_what_cannot_be_trained_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(PlanError):
        TrainPlan(**options)


def test_only_strategies_that_take_a_momentum_have_one() -> None:
    plan = TrainPlan(models=("mlp",), strategies=tuple(parse_strategies("ssgd; hpsgd")), momentum=0.5)
    found = {entry.name: str(plan.optimizer_of(entry, 0.1)) for entry in plan.entries}
    assert {found[name] for name in found if "hpsgd" not in name} == {"SGD(lr=0.1, momentum=0.5)"}
    assert [found[name] for name in found if "hpsgd" in name] == ["SGD(lr=0.1)"]
    plain = replace(plan, momentum=0.0, learning_rate=0.2)
    assert {str(plain.optimizer_of(entry, 0.1)) for entry in plain.entries} == {"SGD(lr=0.2)"}


def test_each_strategy_may_have_a_learning_rate_of_its_own() -> None:
    rate, own = parse_rates((f"0.2; {SIGN}=0.01", "csc=0.3", "csc(0.2)=0.4; mpi = 0.5; gradientflow=0.6"))
    assert (rate, dict(own)) == (
        0.2,
        {"SignSGD(scale=0.01)": 0.01, "csc": 0.3, "csc(density=0.2)": 0.4, "mpi": 0.5, "gradientflow": 0.6},
    )
    strategies = tuple(parse_strategies(f"dense; csc; csc(0.2); {SIGN}"))
    plan = TrainPlan(("cnn",), ("gradientflow", "mpi", "ddp-gloo"), strategies, learning_rate=rate, own_rates=own)
    found = [plan.optimizer_of(entry, 0.1).learning_rate for entry in plan.entries]
    assert found == [0.2, 0.6, 0.3, 0.4, 0.01, 0.5, 0.2]
    assert [plan.own_rate_of(entry) is not None for entry in plan.entries] == [False, *[True] * 5, False]
    assert plan.conditions != replace(plan, own_rates=()).conditions
    assert parse_rates(()) == (None, ())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("fast",), "--lr takes RATE for all, or NAME=RATE for one strategy or contestant, not 'fast'"),
        (("csc(density=0.1)",), r"not 'csc\(density=0.1\)'"),
        (("0.1", "0.2"), "--lr has two rates for all"),
        (("dense=0.1;dense=0.1",), "--lr has two rates for dense"),
        (("dense=0",), "--lr needs more than 0, not 0"),
        (("dense=0.1; lags=0.1",), "--lr has a rate for lags, which does not take part: it goes with none, .*dense"),
    ],
)
def test_learning_rates_that_cannot_be_are_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        named("dense", own_rates=parse_rates(words)[1])


def test_it_is_said_whose_learning_rate_is_not_tuned() -> None:
    found = [replace(each, figures=None, runs=[]) for each in results()]
    assert [each.is_tuned for each in found] == [True, True, True, False, False]  # PowerSGD's, and that of csc
    assert replace(found[4], rate_given=True).is_tuned
    plain = {entry.setting for entry in named("all", steps=4000).entries if not entry.needs_own_rate}
    assert plain == {"", "auto", "dense", "psgd", "ssgd"}
    assert "0.01, not tuned" in shown(results(), 300)
    assert "A learning rate is not tuned where" in LAYOUT.explain(results())
    tuned = [replace(each, rate_given=True) for each in results()]
    assert "learning" not in shown(tuned, 300)
    tuned[4] = replace(tuned[4], optimizer=Optimizer(0.5, 0.9))
    assert "0.5" in shown(tuned, 300)
    assert "not tuned" not in shown(tuned, 300)


def test_numbers_are_read() -> None:
    assert parse_numbers("--seeds", "0, 2,0") == (0, 2)
    with pytest.raises(PlanError, match="--seeds takes whole numbers"):
        parse_numbers("--seeds", "0,x")


# ---- data ------------------------------------------------------------------------------------------------------------


def test_an_epoch_shows_every_sample_at_most_once_and_the_next_one_differs() -> None:
    order = SampleOrder(10, 4, seed=3)
    assert order.steps_per_epoch == 2
    first, second = np.concatenate([order.rows(0), order.rows(1)]), np.concatenate([order.rows(2), order.rows(3)])
    assert len(set(first.tolist())) == len(set(second.tolist())) == 8
    assert first.tolist() != second.tolist()
    assert SampleOrder(10, 4, seed=3).rows(3).tolist() == order.rows(3).tolist()
    assert SampleOrder(10, 4, seed=4).rows(3).tolist() != order.rows(3).tolist()
    with pytest.raises(PlanError, match="smaller --batch"):
        SampleOrder(10, 11, seed=0)


def test_digits_are_real_and_split() -> None:
    pytest.importorskip("sklearn")
    data = digits()
    assert data.inputs.shape == (1437, 8, 8)
    assert data.held_out_inputs.shape == (360, 8, 8)
    assert (data.inputs.min(), data.inputs.max()) == (0, 1)
    assert set(data.targets.tolist()) == set(data.held_out_targets.tolist()) == set(range(10))
    assert data.digest() == digits().digest()


@pytest.mark.thorough
def test_larger_digits_are_interpolated() -> None:
    pytest.importorskip("sklearn")
    small, large = digits(8), digits(28)
    assert large.inputs.shape == (1437, 28, 28)
    assert (large.inputs.min(), large.inputs.max()) == (0, 1)
    np.testing.assert_array_equal(large.targets, small.targets)
    np.testing.assert_allclose(large.inputs[:, ::27, ::27], small.inputs[:, ::7, ::7], atol=1e-6)  # the corners
    np.testing.assert_allclose(large.inputs.mean(), small.inputs.mean(), rtol=0.02)


def test_characters_are_numbered() -> None:
    assert encode(b"\t\n ~\r\xe9").tolist() == [0, 1, 2, 96, 97, 97]


def test_the_text_is_cut_into_windows_that_continue() -> None:
    data = library_text()
    assert data.inputs.shape[1:] == data.targets.shape[1:] == (WINDOW,)
    assert len(data.held_out_inputs) == 512
    np.testing.assert_array_equal(data.inputs[:, 1:], data.targets[:, :-1])
    np.testing.assert_array_equal(data.inputs[1:, 0], data.targets[:-1, -1])
    assert data.inputs.max() < CHARACTERS


# ---- models ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters"), [("mlp", 5_824_522), ("cnn", 151_306), ("lstm", 361_186), ("resnet", 855_482)]
)
def test_models_have_the_documented_size_and_take_their_data(name: str, parameters: int) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    from gradientflow.bench.train.tasks import load_task

    task = load_task(name)
    model = task.model(1)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert all(map(torch.equal, model.parameters(), task.model(1).parameters()))
    inputs, targets = task.samples(np.arange(4))
    random_inputs, random_targets = task.random_samples(4, [0, 1])
    assert (random_inputs.shape, random_targets.shape) == (inputs.shape, targets.shape)
    assert (random_inputs.dtype, random_targets.dtype) == (inputs.dtype, targets.dtype)
    loss = float(task.loss(model(inputs), targets).detach())
    assert 0.9 < loss / math.log(task.classes) < 1.1  # knows nothing yet
    short = replace(task, data=replace(task.data, held_out_inputs=inputs.numpy(), held_out_targets=targets.numpy()))
    assert short.evaluate(model)[0] == pytest.approx(loss)


# ---- figures ---------------------------------------------------------------------------------------------------------


def turn(*steps: tuple[int, int, int], sent: int = 0, reported: int | None = None) -> Turn:
    times = np.array(steps, np.int64) * 1_000_000
    bookkeeping = np.array([milliseconds / 1000 for _, milliseconds, _ in steps])
    return Turn(times, bookkeeping, len(steps) + 1, 1.0, sent, reported)


def joint(*milliseconds: float, sent: float = 0) -> JointTurn:
    step = np.array(milliseconds)
    return JointTurn(step, step / 4, step / 2, step * np.nan, 3, 1.0, sent, None)


def test_a_step_counts_with_its_slowest_rank() -> None:
    fast = turn((1, 2, 3), (4, 4, 4), sent=100, reported=40)
    late = replace(turn((2, 2, 4), (1, 5, 1), sent=0, reported=60), seconds=2.0)
    both = join([fast, late])
    assert both.step.tolist() == [8, 12]
    assert both.forward.tolist() == [2, 4]
    assert both.backward.tolist() == [2, 5]
    assert both.bookkeeping.tolist() == [2, 5]
    assert (both.steps, both.seconds, both.sent, both.reported) == (3, 2.0, 25, 50)  # bytes a step and rank


def test_ranks_that_make_other_numbers_of_steps_are_joined() -> None:
    fast = replace(turn((1, 1, 1), (1, 1, 1), (1, 1, 1), (1, 1, 1), sent=60), waited=0.002)
    late = replace(turn((2, 2, 2), (3, 3, 3)), waited=0.007)
    both = join([fast, late])
    assert both.step.tolist() == [6, 9]  # the first steps of each
    assert both.sent == 10
    assert both.waited == pytest.approx(9 / 27)
    assert both.iterations_per_second == pytest.approx(6 / 0.015)
    figures = summarize([both, both], [joint(5, 5)] * 2, 2, 32, traffic_known=True)
    assert (figures.waiting_percent, figures.iterations_per_second) == (33.33, 400)
    assert (figures.samples_per_second, figures.speedup) == (400 * 32, None)
    assert join([turn((1, 1, 1))]).waited is None


def test_steps_are_held_until_they_have_computed_as_long_as_drawn() -> None:
    pace = Pace(Stragglers((1, 3), jitter=0.1), 1, 0, 0.01, 0.005)
    durations = Stragglers((1, 3), jitter=0.1).durations(1, 3000, run=0)
    assert [pace.seconds(step) for step in (5, 2500, 0)] == [0.01 * durations[step] for step in (5, 2500, 0)]
    began = time.perf_counter_ns()
    pace.hold(began, True, 0)
    assert time.perf_counter_ns() - began >= 1e9 * (pace.seconds(0) - 0.005)
    pace.hold(began, False, 0)
    assert time.perf_counter_ns() - began >= 1e9 * pace.seconds(0)
    pace.hold(began - 10**9, True, 0)  # late already


def test_the_time_to_the_same_accuracy_is_shown_with_stragglers() -> None:
    def shown(found: list[TrainResult]) -> list[list[str]]:
        table = LAYOUT.table(found)
        cells = {str(column.header).split("\n")[0]: list(column.cells) for column in table.columns}
        return [[str(cell) for cell in cells.get("as accurate", [])]]

    figures = Figures(10, 30.0, 33.0, 7.0, 14.0, 2133.3, None, 0.0, None, 0, None, 25.0, 40.0)
    fast = [Run(0, [Point(0, 0.0, 2.0, 0.1), Point(5, 1.0, 1.0, 0.8), Point(9, 2.0, 1.0, 0.9)])]
    slow = [Run(0, [Point(0, 0.0, 2.0, 0.1), Point(5, 2.0, 1.0, 0.6), Point(9, 4.0, 1.0, 0.8)])]
    none = [Run(0, [Point(0, 0.0, 2.0, 0.1)])]
    found = [
        TrainResult("cnn", 5, entry, 2, 1, 32, None, figures, runs, 0, SGD)
        for entry, runs in ((Entry(NONE), none), (Entry("mpi"), slow), (Entry("gradientflow", Dense()), fast))
    ]
    assert shown(found) == [["-", "4.00", "1.00"]]
    equal = replace(figures, waiting_percent=None)
    assert shown([replace(each, figures=equal) for each in found]) == [[]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stragglers": Stragglers((1,)), "ladder": True}, "leave --stragglers out"),
        ({"step_ms": 10.0}, "--step-ms is about --stragglers"),
        ({"step_ms": 0.0, "stragglers": Stragglers((1,))}, "--step-ms needs more than 0"),
    ],
)
def test_stragglers_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        TrainPlan(**options)


def test_exposed_time_is_that_beyond_computing_in_the_same_turns() -> None:
    # The machine is twice as slow in the second turn, for both alike.
    without = [joint(10, 11, 12), joint(20, 22, 24)]
    figures = summarize([joint(15, 16, 17), joint(25, 27, 29)], without, 4, 32, traffic_known=True)
    assert figures.exposed_ms == 5
    assert figures.step_median_ms == 21
    assert figures.samples_per_second == round(4 * 32 / 0.021, 2)
    assert figures.speedup == round(4 * 16 / 21, 4)
    assert figures.bookkeeping_ms is None
    # What happens in every third step is a third of it in each.
    rare = [joint(10, 11, 42), joint(10, 11, 42)]
    thirds = summarize(rare, without[:1] * 2, 4, 32, traffic_known=True, period=3)
    assert (thirds.step_median_ms, thirds.exposed_ms, thirds.steps) == (21, 10, 6)
    kept = [replace(turn, bookkeeping=turn.step / 10) for turn in without]
    assert summarize(kept, None, 4, 32, traffic_known=True).bookkeeping_ms == 1.6


def test_bytes_are_given_where_they_were_counted() -> None:
    turns = [joint(1, 1, sent=10), joint(1, 1, sent=30)]
    assert summarize(turns, None, 2, 8, traffic_known=True).bytes_sent == 20
    figures = summarize(turns, None, 2, 8, traffic_known=False)
    assert (figures.bytes_sent, figures.bytes_reported, figures.exposed_ms, figures.speedup) == (None, None, None, None)


def results() -> list[TrainResult]:
    figures = Figures(10, 30.0, 33.0, 7.0, 14.0, 2133.3, 2.0, 0.0, None, 0, None)
    found = []
    for entry, step, wrong in (
        (Entry(NONE), 30.0, 0),
        (Entry("gradientflow", Dense(fusion_threshold=math.inf, wire="float16")), 60.0, 0),
        (Entry("ddp-gloo"), 90.0, 0),
        (Entry("ddp-gloo-powersgd", approximation_rank=4), 0.0, 7),
        (Entry("gradientflow", CSC(0.2)), 40.0, 0),
    ):
        runs = [Run(seed, [Point(5, 0.5, 1.5, 0.25), Point(10, 1.0, 0.5 + seed, 0.75)]) for seed in (0, 1)]
        bookkeeping = 2.0 if "density" in entry.settings else None
        taken = replace(figures, step_median_ms=step, exposed_ms=step - 30, bookkeeping_ms=bookkeeping)
        link = None if entry.sent_dtype is None else 34.0
        found.append(TrainResult("mlp", 5_824_522, entry, 2, 2, 32, link, None if wrong else taken, runs, wrong, SGD))
    return found


def test_the_json_file_holds_exactly_the_agreed_fields(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    JsonOutput(str(path)).write(figures_of({"ranks": 2}, results()))
    written = json.loads(path.read_text(), parse_constant=pytest.fail)  # no Infinity, which is no JSON
    assert written["environment"] == {"ranks": 2}
    assert [list(result) for result in written["results"]] == [RESULT_FIELDS] * 5
    ours, wrong = written["results"][1], written["results"][3]
    assert (ours["contestant"], ours["strategy"]) == ("gradientflow", "dense")
    shared = {"wire": "float16", "algorithm": "auto", "share": None, "nonfinite": None}
    assert ours["settings"] == {"threshold_bytes": "inf", **shared}
    assert ours["runs"][1]["curve"][1] == {"step": 10, "seconds": 1.0, "loss": 1.5, "accuracy": 0.75, "sent": None}
    assert (wrong["approximation_rank"], wrong["step_median_ms"], wrong["wrong"]) == (4, None, 7)
    sparse = written["results"][4]
    assert (sparse["strategy"], sparse["settings"]["density"], sparse["overlaps"]) == ("csc", 0.2, True)
    assert [wrong[name] for name in ("strategy", "settings", "overlaps")] == [None] * 3


def test_what_is_no_json_is_written_in_another_way(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    found = [replace(each, runs=[Run(0, [Point(5, 0.5, math.nan, 0.25)])]) for each in results()[:1]]
    JsonOutput(str(path)).write(figures_of({"limit": math.inf, "names": {"a"}}, found))
    written = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert written["environment"] == {"limit": None, "names": "{'a'}"}
    assert written["results"][0]["runs"][0]["curve"][0]["loss"] is None


def shown(found: list[TrainResult], width: int | None = None) -> str:
    return rendered(LAYOUT, found, force_terminal=width is not None, width=width)


def test_the_table_shows_what_is_known() -> None:
    lines = shown(results()).splitlines()
    ours = next(line for line in lines if "gradientflow" in line).split()
    assert ours[:6] == ["gradientflow", "dense(fusion_threshold=inf,", "wire='float16')", "60.0", "33.0", "14.0"]
    assert "1.50x" in ours  # ddp-gloo's 90 over our 60
    assert "20.0" in ours  # 34 on the link less 14 of backward
    assert "1.0000" in ours  # the mean over the seeds
    assert "(0.5000..1.5000)" in ours
    assert "WRONG" in next(line for line in lines if "powersgd" in line)
    sparse = next(line for line in lines if "csc" in line).split()
    assert sparse[:3] == ["gradientflow", "csc(density=0.2)", "40.0"]
    assert {"2.00", "5.0"} <= set(sparse)  # with chunks, and in per cent of the step
    assert "the range" in LAYOUT.explain(results())


def test_it_is_said_why_nothing_is_sent_inside_a_node() -> None:
    found = [replace(each, figures=each.figures and replace(each.figures, bytes_reported=0)) for each in results()]
    assert "reported is 0 because ranks of one node share memory" in LAYOUT.explain(found)
    found[1] = results()[1]
    assert found[1].figures is not None
    found[1] = replace(found[1], figures=replace(found[1].figures, bytes_reported=7))
    for each in (found, results()):
        assert "reported is 0" not in LAYOUT.explain(each)


def test_figures_are_written_as_lines(tmp_path: Path) -> None:
    path = tmp_path / "figures.csv"
    scaled = (Scaled(1, 100.0, 1.0), Scaled(2, 150.0, 0.75))
    found = results()
    write_csv(
        str(path), [*found[:3], replace(found[3], optimizer=Optimizer(0.05, 0.9)), replace(found[4], scale=scaled)]
    )
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["contestant"] for row in rows] == [result.entry.contestant for result in found]
    assert [row["final_loss"] for row in rows] == ["1.0"] * 5
    assert json.loads(rows[1]["settings"])["threshold_bytes"] == "inf"
    assert (rows[3]["wrong"], rows[3]["step_median_ms"]) == ("7", "")
    assert rows[3]["optimizer"] == "SGD(lr=0.05, momentum=0.9)"
    assert [row["efficiency_at_2"] for row in rows] == [*[""] * 4, "0.75"]
    assert not {"runs", "scale"} & set(rows[0])


ENVIRONMENT = {
    **{"cpu": "a <processor>", "cores": 2, "memory_GiB": 4, "ranks": 2, "ranks_on_this_machine": 2, "nodes": 2},
    **{"hosts": 2, "ranks_per_host": 1, "link_rate": "1gbit", "gradientflow": "1", "mpi": "MPI", "python": "3"},
    **{"numpy": "2", "kernel": "Linux", "torch": "2", "date": "2026-01-02T03:04:05+00:00", "command": "a 'b & c'"},
}


class Marked(Dense):
    name = "<b>$x$</b>"


def test_the_page_holds_all_that_is_known_and_fetches_nothing() -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    from gradientflow.bench.train.page import page_of

    found = results()
    for place, entry in enumerate([Entry("gradientflow", Marked()), Entry("gradientflow", DiLoCo(5))]):
        curve = [Point(5 * n, 0.5 * n, 2.0 / (n + 1), 0.1 + 0.2 * n, 2e6 * n) for n in range(4)]
        runs = [Run(0, curve), Run(1, [*curve[:2], Point(10, 1.0, math.nan, 0.1, 4e6)])]
        scale = (Scaled(1, 100.0, 1.0), Scaled(2, 150.0, 0.75 + place))
        figures = Figures(10, 20.0, 33.0, 7.0, 14.0, 3000.0, 2.0, 0.0, None, 0, None)
        found.append(replace(found[0], entry=entry, figures=figures, runs=runs, scale=scale))
    text = page_of(found, ENVIRONMENT, ["WRONG: <i>"])
    assert re.findall(r"<script|<link|<img|<iframe|@import|url\((?!#)", text) == []
    assert {each[0] for each in re.findall(r"""(?:src|href)\s*=\s*["'](.)""", text)} <= {"#"}
    for heading in ("Loss against time", "Accuracy against time", "Loss against bytes sent", "Scale efficiency"):
        assert f"<h3>{heading}</h3>" in text
    assert text.count("<svg") == 6
    assert "a &lt;processor&gt;" in text
    assert "a &#39;b &amp; c&#39;" in text
    assert "WRONG: &lt;i&gt;" in text
    assert text.count("&lt;b&gt;$x$&lt;/b&gt;") > 3  # in the table and in the plots
    assert not re.search("<b>|<i>|<processor>", text)
    assert "WRONG, and without figures: ddp-gloo-powersgd (rank 4) (mlp)." in text
    assert "p95" in text
    assert "Of 4 ways, 2 trained on more samples a second than ddp-gloo, and 2 on as many or fewer" in text
    assert "2026-01-02 03:04:05 UTC" in text
    nothing = [replace(result, figures=None, wrong=1, runs=[]) for result in results()]
    assert page_of(nothing, ENVIRONMENT, []).count("<svg") == 1


@pytest.mark.thorough
def test_a_strategy_has_one_color_in_all_panels() -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    from gradientflow.bench.train.colors import FAMILIES, colors_of, family
    from gradientflow.bench.train.page import page_of

    every = replace(named(f"all; {SIGN}", steps=4000), contestants=CONTESTANTS).entries
    colors = colors_of(every)
    assert [entry.setting for entry in every if family(entry) == "your own"] == ["SignSGD(scale=0.01)"]
    for name in FAMILIES:
        members = [entry for entry in every if family(entry) == name]
        assert 1 <= len(members) == len({colors[entry] for entry in members})

    found = results()
    for place, entry in enumerate([Entry("gradientflow", CSC(0.3)), Entry("gradientflow", Dense())]):
        # The first is not known for every panel, and so is not in each.
        curve = [Point(5 * n, 0.5 * n, 2.0 / (n + 1), 0.1 + 0.2 * n, 2e6 * n if place else None) for n in range(4)]
        figures = Figures(10, 20.0, 33.0, 7.0, 14.0, 3000.0, 2.0, -0.5, None, 0, None)
        found.append(replace(found[0], entry=entry, figures=figures, runs=[Run(0, curve)]))
    mine = colors_of(result.entry for result in found)
    _, *parts = page_of(found, ENVIRONMENT, []).split("<h3>")
    assert sum(part.count("0, within the noise") for part in parts) == 2
    for entry, headings in (
        (found[-1].entry, ["Speed", "Loss", "Accuracy", "Loss", "Accuracy", "All"]),
        (found[-2].entry, ["Speed", "Loss", "Accuracy", "All"]),
    ):
        assert [part.replace(",", "").split()[0] for part in parts if mine[entry] in part] == headings


# ---- what is kept ----------------------------------------------------------------------------------------------------


class OneRank:
    rank = 0
    allgather = staticmethod(lambda tensor: tensor[None])
    allgatherv = staticmethod(lambda tensor, counts: tensor)


def kept(path: Path, **conditions: str) -> ResumeFile:
    return ResumeFile(OneRank(), str(path), {"steps": "40", **conditions})  # type: ignore[arg-type]


def test_parts_are_measured_once(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    first = kept(path)
    assert first.part("a", lambda: {"x": [1.5, math.nan]})["x"][0] == 1.5
    first.part("b", lambda: 2)
    whole = path.read_text()
    path.write_text(whole[:-5])  # as if it had ended while it wrote b
    second = kept(path)
    assert second.part("a", pytest.fail)["x"][0] == 1.5
    assert ("a" in second, "b" in second) == (True, False)
    assert second.part("b", lambda: 3) == 3
    third = kept(path)
    assert third.part("b", pytest.fail) == 3
    assert len(third.started_at) == 3


def test_what_was_measured_under_other_conditions_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    kept(path).part("a", lambda: 1)
    before = path.read_text()
    with pytest.raises(PlanError, match="holds what was measured with steps 40, and now that is 80: make it the same"):
        kept(path, steps="80")
    assert path.read_text() == before
    for text in ("a picture", "{}\n", "[1]\n", '{"results": []}\n'):
        path.write_text(text)
        with pytest.raises(PlanError, match="is no file that --resume has written"):
            kept(path)
        assert path.read_text() == text


def test_a_full_disk_leaves_what_was_kept(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    kept(path).part("a", lambda: [1.5] * 1000)
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        with pytest.raises(PlanError, match=r"cannot be written, and holds what was kept before: .* File too large"):
            kept(path)
        assert path.read_bytes() == before
        assert os.listdir(tmp_path) == ["kept"]
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        again = kept(path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(path.read_bytes()) + 100, limits[1]))
        with pytest.raises(PlanError, match=r"cannot be written, and holds what was kept before: .* File too large"):
            again.part("b", lambda: [1.5] * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    third = kept(path)  # without the beginning of b
    assert ("a" in third, "b" in third) == (True, False)
    assert third.part("a", pytest.fail) == [1.5] * 1000


def test_plans_that_go_together(tmp_path: Path) -> None:
    plan = named("dense; csc")
    assert plan.conditions == replace(plan, seeds=(0, 1), models=("cnn",), scale=(1, 2), resume="x").conditions
    assert plan.conditions != replace(plan, steps=50).conditions
    assert plan.conditions != named("dense; csc(0.2)").conditions
    own = tmp_path / "mine.py"
    text = "from gradientflow.strategies import Dense\nclass Mine(Dense): pass\n"
    own.write_text(text)
    before = named(f"{own}:Mine").conditions
    assert named(f"{own}:Mine").conditions == before
    own.write_text(text + "# another\n")
    assert named(f"{own}:Mine").conditions != before


def test_the_ladder_is_shown_as_in_the_paper(tmp_path: Path) -> None:
    plan = TrainPlan(models=("mlp",), ladder=True)
    figures = Figures(10, 30.0, 33.0, 7.0, 14.0, 1000.0, 2.0, 0.0, None, 0, None)
    found = [
        TrainResult("mlp", 10, entry, 2, 2, 32, None, replace(figures, samples_per_second=1000.0 * number), [], 0, SGD)
        for number, entry in enumerate([plan.entries[1], plan.entries[0], *plan.entries[2:]], 1)
    ]
    found[3] = replace(found[3], figures=None, wrong=1)
    rungs = ladder_results(plan, found)
    rates = [1000.0, 3000.0, None, 5000.0, 6000.0, 7000.0, 2000.0]
    assert [rung.samples_per_second for rung in rungs] == rates
    assert [rung.speedup_over_first for rung in rungs] == [rate and rate / 1000 for rate in rates]
    row = next(line for line in rendered(LADDER, rungs, width=200).splitlines() if line.startswith("mlp"))
    assert row.split() == [
        *("mlp", "1,000", "(1.0x)", "3,000", "(3.0x)", "WRONG", "5,000", "(5.0x)", "6,000", "(6.0x)"),
        *("7,000", "(7.0x)", "2,000", "(2.0x)"),
    ]
    path = tmp_path / "figures.json"
    JsonOutput(str(path)).write(figures_of({}, found, {"ladder": rungs}))
    assert json.loads(path.read_text())["ladder"][0] == {
        **{"model": "mlp", "column": "MPI", "samples_per_second": 1000.0, "speedup_over_first": 1.0}
    }


def test_a_narrow_terminal_gets_all_columns() -> None:
    narrow = shown(results(), 110)
    assert max(map(len, narrow.splitlines())) <= 110
    assert all(word in narrow for word in ("step", "backward", "exposed", "loss", "ddp-gloo-powersgd"))


@pytest.mark.thorough
def test_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from gradientflow.bench.core.plot import save_plot
    from gradientflow.bench.train.plot import draw

    environment = {
        **{"cpu": "a processor", "cores": 2, "memory_GiB": 4, "ranks": 2, "ranks_on_this_machine": 2, "nodes": 2},
        **{"hosts": 2, "ranks_per_host": 1, "link_rate": "1gbit", "gradientflow": "1", "mpi": "MPI", "python": "3"},
        **{"numpy": "2", "kernel": "Linux", "torch": "2", "warning": "busy"},
    }
    timed = results()
    compared = [
        replace(result, entry=Entry(SINGLE) if result.entry == Entry(NONE) else result.entry) for result in timed
    ]
    for number, found in enumerate((timed, compared, [])):
        path = tmp_path / f"{number}.png"
        save_plot(str(path), draw, found, environment)
        assert path.read_bytes().startswith(b"\x89PNG")


# ---- jobs ------------------------------------------------------------------------------------------------------------


@pytest.mark.checks("bench_train")
def test_training_is_right_timed_and_found_out_where_it_is_not(check: Callable[..., Any]) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    check(2, env={"GRADIENTFLOW_NODE_SIZE": "1"}, timeout=100)


@pytest.mark.thorough
def test_the_command_starts_a_job_and_writes_its_figures(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    path = tmp_path / "figures.json"
    options = ("--model", "cnn", "--contestants", "gradientflow,ddp-gradientflow", "--steps", "2", "--batch", "4")
    options += ("--strategy", f"dense; {SIGN}", "--strategy", "csc", "--views")
    command = module_command("gradientflow.cli", ["bench", "train", "-n", "2", *options, "--json", str(path)])
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "over the samples per second of one rank" in " ".join(ended.stdout.split())
    written = json.loads(path.read_text())
    assert written["environment"]["torch"]
    contestants = [result["contestant"] for result in written["results"]]
    assert contestants == [NONE, DDP_ALONE, *["gradientflow"] * 3, "ddp-gradientflow", DDP_ALONE, "ddp-gradientflow"]
    assert [result["views"] for result in written["results"]] == [None, False, None, None, None, False, True, True]
    assert [(result["strategy"], result["settings"] and len(result["settings"])) for result in written["results"]] == [
        *((None, None), (None, None), ("dense", 5), ("SignSGD", 1), ("csc", 8)),
        *[(None, None)] * 3,
    ]
    assert {(result["steps"], result["wrong"]) for result in written["results"]} == {(2, 0)}


@pytest.mark.slow
def test_an_interrupted_run_goes_on_and_reports_all(command_line: Callable[..., Finished], tmp_path: Path) -> None:
    for package in ("torch", "sklearn", "matplotlib", "jinja2"):
        pytest.importorskip(package)
    path = tmp_path / "kept"
    options = ["--model", "cnn", "--contestants", "gradientflow,ddp-gloo", "--strategy", f"dense; {SIGN}", "--seeds"]
    options += ["0,1", "--steps", "12", "--batch", "4", "--scale", "1,2", "--resume", str(path), "--json"]
    options += [str(tmp_path / "a.json"), "--csv", str(tmp_path / "a.csv"), "--report", str(tmp_path / "a.html")]
    command = module_command("gradientflow.cli", ["bench", "train", "-n", "2", *options])
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as stopped:
        while not (path.exists() and '"cnn: seed 0' in path.read_text()) and stopped.poll() is None:
            time.sleep(0.01)
        stopped.send_signal(signal.SIGINT)
        assert stopped.wait(30) == 130
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    first = next(line["values"] for line in lines if line.get("part", "").startswith("cnn: seed 0"))
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Measured in 2 sittings" in " ".join(ended.stdout.split())
    written = json.loads((tmp_path / "a.json").read_text())["results"]
    assert [len(result["runs"]) for result in written] == [2] * 4
    for result, found in zip(written, first["contestants"].values(), strict=True):
        assert result["runs"][0] == found["run"]
        assert result["steps"] == 2 * 12
        assert [each["ranks"] for each in result["scale"]] == [1, 2]
        assert all(each["samples_per_second"] > 0 for each in result["scale"])
    assert written[0]["scale"][0]["efficiency"] == 1
    with (tmp_path / "a.csv").open(newline="") as file:
        assert [row["strategy"] for row in csv.DictReader(file)] == ["", "dense", "SignSGD", ""]
    text = (tmp_path / "a.html").read_text()
    assert "Checked: of all 3 rows that communicate" in text
    assert "All of it was right." in text
    assert "SignSGD(scale=0.01)" in text
    refused = command_line("bench", "train", "-n", "2", *options, "--steps", "13")
    assert refused.returncode != 0
    assert "holds what was measured with steps 12, and now that is 13" in refused.stderr


BAD_STRATEGIES = """
from gradientflow.strategies import Strategy
class Binds(Strategy):
    def bind(self, comm, layout): ...
class Forgets(Binds):
    def __init__(self, scale=1): ...
class Raises(Binds):
    def __init__(self): raise RuntimeError("not today")
class Unbound(Strategy): ...
class Other: ...
"""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--strategy", "dense; cscs"], "there is no strategy 'cscs': there are asgd, auto, csc, dense, "),
        (["--strategy", "csc(density=0.1, chunk=3)"], "the arguments of csc are density, chunk_size, "),
        (["--strategy", "csc(density=2)"], "'csc(density=2)': density is above 0 and at most 1, not 2"),
        (["--strategy", "dense(wire='int8')"], "wire is one of float32, float16, bfloat16, float8_e4m3, not 'int8'"),
        (["--strategy", "dense(fusion_threshold='x')"], "'x'"),
        (["--strategy", "; "], "names no strategy"),
        (["--strategy", "nowhere.py:Mine"], "the file of a strategy cannot be read"),
        (["--strategy", "bad.py:Mine"], "bad.py has no strategy 'Mine': it has Binds, Forgets, Raises, Unbound"),
        (["--strategy", "bad.py:Other"], "bad.py has no strategy 'Other'"),
        (["--strategy", "bad.py:Raises"], "'bad.py:Raises' cannot be made: RuntimeError: not today"),
        (["--strategy", "bad.py:Unbound"], "bind"),
        (["--strategy", "bad.py:Forgets"], "Forgets has no attribute scale"),
        (["--wire", "float16", "--strategy", SIGN], "--wire does not go with SignSGD(scale=0.01)"),
    ],
)
def test_wrong_strategies_are_refused_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], words: str
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    from gradientflow.cli.bench import bench

    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.py").write_text(BAD_STRATEGIES)
    with pytest.raises(GradientFlowError) as caught:
        bench.main(["train", "-n", "2", *options], standalone_mode=False)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--contestants", "horovod"], CONTESTANTS[0]),
        (["-n", "0"], "at least 1"),
        (["--scale", "1,2,4"], "--scale goes up to the 2 ranks that there are, not to 4"),
        (["--strategy", "csc", "--strategy", "cscs"], "there is no strategy 'cscs'"),
    ],
)
def test_wrong_options_are_refused(command_line: Callable[..., Finished], options: list[str], words: str) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    ended = command_line("bench", "train", "-n", "2", *options)
    assert ended.returncode == 2
    assert words in ended.stderr
