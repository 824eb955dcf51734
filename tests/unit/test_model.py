"""The model of a cluster that need not be there: limits that can be told by hand, and fits of known links."""

from __future__ import annotations

import math
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradientflow.errors import ArgumentError
from gradientflow.model import (
    NETWORKS,
    Call,
    Cluster,
    Computation,
    Costs,
    Link,
    computation_of,
    computation_of_events,
    layers_of,
    predict,
    schedule_of,
)
from gradientflow.model.cluster import hosts, parts_of
from gradientflow.model.fit import Measurement, Point, fit_link, fit_nonnegative
from gradientflow.model.pooled import chunk_traffic
from gradientflow.policies import Stragglers
from gradientflow.settings_file import SettingsFile, write_settings_file
from gradientflow.strategies import Dense, parse_strategies
from gradientflow.strategies.parsing import as_strategy

FAST = Link(latency=0.0, call_inside=0.0, per_byte_inside=0.0, per_byte_of_pass=0.0)  # nothing takes any time
MILLION = Computation.of([(1000, 1000)], [1.0], 0.1)


def test_well_known_models_have_their_numbers_of_parameters() -> None:
    found = {name: sum(math.prod(shape) for each in layers_of(name) for shape in each.shapes) for name in NETWORKS}
    assert found["alexnet"] == 61_100_840
    assert found["vgg16"] == 138_357_544
    assert found["resnet50"] == 25_557_032
    assert found["gpt2"] == 124_439_808
    assert found["bert"] == 109_482_240
    assert found["perceptron"] == 5_824_522
    products = sum(each.products for each in layers_of("resnet50"))
    assert products == pytest.approx(4.1e9, rel=0.02)


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_become_final_in_order_and_at_last_with_the_step(name: str) -> None:
    computation = computation_of(layers_of(name), 0.3, 0.15)
    assert all(first <= second for first, second in pairwise(computation.ready))
    assert computation.ready[0] >= 0.15
    assert computation.ready[-1] == pytest.approx(0.3)


# ---- messages --------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**7), st.integers(1, 40), st.integers(1, 64))
def test_parts_are_nearly_equal_and_add_up(count: int, parts: int, grain: int) -> None:
    found = parts_of(count, parts, grain)
    assert found.sum() == count
    assert len(found) == parts
    grains = -(-found // grain)
    assert grains.max() - grains.min() <= 1


@given(st.lists(st.integers(1, 5), min_size=2, max_size=12), st.integers(1, 10**6))
def test_a_ring_sends_what_its_limit_says(nodes: list[int], count: int) -> None:
    """Each rank sends 2 (P - 1) / P of the tensor, and what leaves the nodes is no more than what is sent."""
    cluster = Cluster(tuple(nodes))
    found = schedule_of(cluster, "allreduce", count, algorithm="ring")
    ranks, agreement = cluster.ranks, 32 * len(nodes) * len(nodes)
    assert 2 * (ranks - 1) * count * 4 <= found.sent.sum() <= 2 * (ranks - 1) * count * 4 + agreement
    assert found.leaving.sum() <= found.sent.sum()
    assert found.rounds >= 2 * (ranks - 1)


def test_a_wire_halves_the_bytes_of_large_tensors() -> None:
    whole, half = (schedule_of(hosts(4, 2), "allreduce", 1 << 20, wire=wire) for wire in (None, "float16"))
    assert half.sent.sum() / whole.sent.sum() == pytest.approx(0.5, rel=0.01)


def test_large_clusters_take_the_algorithms_of_the_core() -> None:
    assert schedule_of(hosts(1250, 8), "allreduce", 100).path == "agreement"
    assert schedule_of(hosts(1250, 8), "allreduce", 1 << 24).path == "hierarchical_lanes"
    assert schedule_of(hosts(1, 8), "allreduce", 1 << 24).path == "node_memory"
    with pytest.raises(ArgumentError, match="no model of alltoall"):
        schedule_of(hosts(2), "alltoall", 8)


def test_a_wire_that_does_not_exist_is_named() -> None:
    with pytest.raises(ArgumentError, match=r"wire is one of float32, .*, not 'foo'"):
        schedule_of(hosts(2), "allreduce", 8, wire="foo")


# ---- limits ----------------------------------------------------------------------------------------------------------


def test_without_latency_the_bandwidth_is_all_that_counts() -> None:
    costs = Costs(hosts(4), Link(**(vars(FAST) | {"per_byte": 1e-9})))
    elements = 1 << 24
    assert costs.seconds(Call("allreduce", elements)) == pytest.approx(2 * 3 / 4 * elements * 4 * 1e-9, rel=1e-3)


def test_without_bytes_the_rounds_are_all_that_count() -> None:
    costs = Costs(hosts(4), Link(**(vars(FAST) | {"latency": 1e-3})))
    call = Call("allreduce", 1 << 24)
    assert costs.seconds(call) == pytest.approx(costs.schedule(call).rounds * 1e-3)


@pytest.mark.parametrize("words", ["dense", "csc", "top_k", "hpsgd", "diloco", "ssd_sgd"])
def test_one_rank_waits_for_nobody(words: str) -> None:
    found = predict(as_strategy(words), MILLION, Costs(hosts(1), Link.parse("1gbit,1ms")))
    assert found.step.exposed_seconds == pytest.approx(0, abs=1e-12)
    assert found.step.bytes_sent == 0


@pytest.mark.parametrize("strategy", parse_strategies("all"), ids=str)
def test_a_network_that_costs_nothing_leaves_computation_alone(strategy: object) -> None:
    found = predict(as_strategy(strategy), MILLION, Costs(hosts(8), FAST))
    assert found.step.seconds == pytest.approx(0.1)
    assert found.efficiency == pytest.approx(1.0)


def test_what_servers_get_from_their_own_node_passes_through_its_memory() -> None:
    link = Link(**(vars(FAST) | {"per_byte_inside": 1e-9}))
    alone, beside = (predict(as_strategy("ssgd"), MILLION, Costs(hosts(2, ranks), link)).step for ranks in (1, 2))
    assert alone.exposed_seconds == pytest.approx(0, abs=1e-12)
    # 4 MB of two workers, half of it within the node, written and read: in the push at the end, and in the pull.
    assert beside.exposed_seconds == pytest.approx(2 * 8e-3)


def test_what_fits_into_backpropagation_is_hidden_except_the_last_range() -> None:
    computation = Computation.of([(1 << 20,)] * 10, [1.0] * 10, 1.0, 1.0)
    link = Link(**(vars(FAST) | {"per_byte": 0.01 / (2 * 3 / 4 * 4 * (1 << 20))}))  # 10 ms for each tensor
    found = predict(as_strategy("dense(fusion_threshold=0)"), computation, Costs(hosts(4), link))
    assert found.step.exposed_seconds == pytest.approx(0.01, rel=0.01)
    at_the_end = predict(as_strategy("dense(fusion_threshold='inf')"), computation, Costs(hosts(4), link))
    assert at_the_end.step.exposed_seconds == pytest.approx(0.1, rel=0.01)


@pytest.mark.parametrize(("call", "threshold", "exposed"), [(1, 0, 1), (4, 0, 9), (4, 128, 6), (4, "inf", 4)])
def test_a_range_waits_for_its_gradients_and_for_the_range_before(call: int, threshold: Any, exposed: int) -> None:
    computation = Computation(((16,), (16,), (32,)), (0.0, 1.0, 3.0), 3.0, 3.0)
    costs = Costs(hosts(2), Link(call=call, latency=0.0))
    found = predict(Dense(fusion_threshold=threshold), computation, costs)
    assert found.step.exposed_seconds == exposed


def test_a_chunk_waits_for_no_gradient_but_its_own() -> None:
    tensors = Computation.of([(64,)] * 25, [1.0] * 25, 0.1)
    traffic = chunk_traffic(tensors, hosts(2), 1.0, 64, 0, None, "auto")
    assert [each.tensors for each in traffic.exchanges] == [*range(1, 26), 25]  # at last the norms of all


def test_a_bucket_lets_what_is_sent_after_a_pause_through() -> None:
    link = Link(**(vars(FAST) | {"per_byte": 1e-6, "burst": 1000.0}))
    costs = Costs(hosts(2), link)
    call = Call("allreduce", 1000, algorithm="ring")
    leaving = float(costs.schedule(call).leaving.max())
    assert costs.seconds(call, idle=0.0) == pytest.approx(leaving * 1e-6)
    assert costs.seconds(call, idle=0.5e-3) == pytest.approx((leaving - 500) * 1e-6)
    assert costs.seconds(call) == pytest.approx((leaving - 1000) * 1e-6)


def test_periodic_exchanges_count_once_in_a_period() -> None:
    costs = Costs(hosts(2), Link(**(vars(FAST) | {"per_byte": 1e-8})))
    one, ten = (predict(as_strategy(f"local_sgd(period={each})"), MILLION, costs).step for each in (1, 10))
    assert ten.exposed_seconds == pytest.approx(one.exposed_seconds / 10)
    assert ten.bytes_sent == pytest.approx(one.bytes_sent / 10)
    hidden = predict(as_strategy("local_sgd(period=10, delay=5)"), MILLION, costs).step
    assert hidden.exposed_seconds == 0


def test_exchanges_that_overlap_share_the_link() -> None:
    costs = Costs(hosts(2), Link(**(vars(FAST) | {"per_byte": 1e-6})))
    step = predict(as_strategy("diloco(period=10, fragments=10, delay=9)"), MILLION, costs).step
    assert MILLION.seconds < step.communication_seconds < 9 * MILLION.seconds  # of one exchange: there is one in a step
    assert step.exposed_seconds == pytest.approx(step.communication_seconds - MILLION.seconds)


def test_a_slow_rank_holds_up_those_that_wait_for_it() -> None:
    costs = Costs(hosts(4), FAST)
    slow = Stragglers((1, 1, 1, 2))
    assert predict(as_strategy("dense"), MILLION, costs, slow).step.seconds == pytest.approx(0.2)
    assert predict(as_strategy("diloco"), MILLION, costs, slow).step.seconds == pytest.approx(0.2)
    alone = predict(as_strategy("asgd"), MILLION, costs, slow)
    assert alone.step.seconds == pytest.approx(0.1 * 4 / 3.5)
    assert alone.efficiency == pytest.approx(1.0)


def test_ranks_that_meet_rarely_suffer_less_from_chance() -> None:
    costs, slow = Costs(hosts(64), FAST), Stragglers((1,), jitter=0.2)
    often, rarely = (predict(as_strategy(each), MILLION, costs, slow).step.seconds for each in ("dense", "diloco"))
    assert often > 1.2 * rarely


# ---- fits ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 10), min_size=3, max_size=3))
def test_nonnegative_factors_are_found_again(factors: list[float]) -> None:
    random = np.random.default_rng(0)
    rows = random.uniform(1, 2, (12, 3))
    seconds = rows @ np.array(factors) + 1e-9
    assert np.allclose(rows @ fit_nonnegative(rows, seconds), seconds, rtol=1e-3, atol=1e-6)


def test_a_known_link_is_found_again_from_its_calls() -> None:
    known = Link(call=3e-5, latency=5e-5, per_byte=8.5e-9, burst=float(1 << 16), per_byte_of_pass=1e-11)
    measurements = []
    for number in (2, 3):
        costs = Costs(hosts(number), known)
        calls = [Call("allreduce", 4**power) for power in range(3, 12)]
        points = tuple(Point(call, costs.seconds(call)) for call in calls)
        measurements.append(Measurement(hosts(number), points, per_byte_of_pass=1e-11))
    found = fit_link(measurements)
    assert found.burst == known.burst
    assert found.per_byte == pytest.approx(known.per_byte, rel=1e-3)
    assert found.latency == pytest.approx(known.latency, rel=1e-2)


def test_a_link_in_words() -> None:
    link = Link.parse("25gbit, 20us")
    assert link.latency == pytest.approx(20e-6)
    assert 1 / link.per_byte == pytest.approx(25e9 / 8 * 0.9415, rel=1e-3)
    assert Link.parse("1ms,200Mbit").latency == pytest.approx(1e-3)
    for wrong in ("", "25", "25gbit,20us,3us", "fast", "20us", "0gbit", "1.2.3gbit", "1gbit,2gbit"):
        with pytest.raises(ArgumentError, match="link"):
            Link.parse(wrong)


def test_a_link_in_a_file(tmp_path: Path) -> None:
    link = Link(call=1e-5, latency=3e-5, per_byte=8e-9, burst=4096.0, cores=2.0)
    path = str(tmp_path / "gradientflow.toml")
    write_settings_file(path, SettingsFile(link=asdict(link)))
    assert Link.load(path) == link
    for text, sentence in (
        ("speed = 1", "speed"),
        ("latency = true", "latency is a number, not True"),
        ("latency = '1ms'", "latency is a number, not '1ms'"),
        ("latency = -1", "latency is 0 or more"),
        ("", "no table"),
    ):
        (tmp_path / "wrong.toml").write_text(f"[link]\n{text}\n", encoding="utf-8")
        with pytest.raises(ArgumentError, match=rf"wrong\.toml.*{sentence}"):
            Link.load(tmp_path / "wrong.toml")
    with pytest.raises(ArgumentError, match="cannot be read"):
        Link.load(tmp_path / "missing.toml")


# ---- recorded runs ---------------------------------------------------------------------------------------------------


def timeline(steps: int, late: float = 0.0) -> list[dict[str, object]]:
    """Return a timeline of steps of 10 ms whose two gradients are final after 5 and 9 ms, with waits of 3 ms."""
    events: list[dict[str, object]] = []
    for begin in (step * 13e3 for step in range(steps)):
        for number, at in enumerate((5e3, 9e3 + late)):
            place = {"bytes": 400 * (number + 1)}
            events.append({"name": f"tensor {number} ready", "ph": "i", "ts": begin + at, "args": place})
        events.append({"name": "tensor 2 ready", "ph": "i", "ts": begin + 9.5e3, "args": {}})  # numbers beside
        events.append({"name": "wait for gradients", "ph": "X", "ts": begin + 10e3, "dur": 3e3})
    return events


def test_the_computation_of_a_timeline_is_that_between_waits() -> None:
    found = computation_of_events(timeline(4))
    assert found.shapes == ((100,), (200,))
    assert found.ready == pytest.approx((5e-3, 9e-3))
    assert found.seconds == pytest.approx(10e-3)


def test_runs_without_two_alike_steps_are_refused() -> None:
    with pytest.raises(ArgumentError, match="no two steps"):
        computation_of_events(timeline(1))
    with pytest.raises(ArgumentError, match="no two steps"):
        computation_of_events([])
    with pytest.raises(ArgumentError, match="no two steps"):
        computation_of_events([{**each, "args": {"bytes": "many"}} for each in timeline(4)])
    with pytest.raises(ArgumentError, match="not alike"):
        computation_of_events([each for each in timeline(4) if (each["name"], each["ts"]) != ("tensor 1 ready", 35e3)])
