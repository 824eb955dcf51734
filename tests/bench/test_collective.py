"""What ``gradientflow.bench`` works out, and that it notices wrong results.

Without MPI, ranks are threads here; only the last tests start jobs.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from figures import ENVIRONMENT, rendered

import gradientflow as gf
from gradientflow.bench.collective.columns import LAYOUT, Result, summarize
from gradientflow.bench.collective.plan import ALGORITHMS, DTYPES, OPS
from gradientflow.bench.collective.plan import CollectivePlan as Plan
from gradientflow.bench.collective.session import CollectiveSession
from gradientflow.bench.core import measure
from gradientflow.bench.core.case import COLLECTIVES, Case, block
from gradientflow.bench.core.data import CHUNK, RandomSource, TiledSource, alphabet, count_wrong, fill
from gradientflow.bench.core.environment import environment_lines
from gradientflow.bench.core.hosts import Hosts
from gradientflow.bench.core.measure import (
    FreshValues,
    Series,
    Steps,
    Times,
    fitting_iterations,
    refiller,
    slowest,
    take_series,
    together,
)
from gradientflow.bench.core.peers import Contestant, then_divide
from gradientflow.bench.core.plan import WIRES, PlanError, parse_list, parse_sizes
from gradientflow.bench.core.results import figures_of
from gradientflow.bench.core.session import RunOutcome
from gradientflow.bench.core.table import bandwidth, microseconds, ratio
from gradientflow.json_option import JsonOutput
from gradientflow.launch import Launcher, launch_environment, module_command, mpirun_command
from gradientflow.machine import format_size, mpi_library
from gradientflow.machine_load import Load
from gradientflow.netlab import bytes_per_second

RESULT_FIELDS = [
    *("backend", "dtype", "wire", "device", "transport", "ranks", "nodes", "bytes", "iterations"),
    *("collective", "algorithm", "memory"),
    *("median_us", "min_us", "p95_us", "refill_median_us", "cpu_us", "link_share", "algbw_GBps", "busbw_GBps"),
    *("launch_us", "wrong"),
]
REDUCE: dict[str, Callable[..., Any]] = {
    "sum": np.sum,
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "prod": np.prod,
}


# ---- options -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("16K,1M,64M", (16 << 10, 1 << 20, 64 << 20)),
        ("4", (4,)),
        ("1KiB, 2kb ,3k", (1 << 10, 2 << 10, 3 << 10)),
        ("1G", (1 << 30,)),
        ("1K,1024,1K", (1 << 10,)),
    ],
)
def test_sizes_are_read(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize("text", ["12Q", "K", "-4", "1.5M", "0", "1M;2M", "1KK"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(PlanError):
        parse_sizes(text)


@pytest.mark.parametrize("size", [1, 1000, 1024, 1536, 1 << 20, 3 << 30, (1 << 20) + 4])
def test_sizes_are_written_as_they_are_read(size: int) -> None:
    assert parse_sizes(format_size(size)) == (size,)


def test_lists_are_split_without_repeats_and_blanks() -> None:
    assert parse_list(" pool, array,pool,, ") == ("pool", "array")
    assert parse_list("") == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sizes": (1022,)}, "1022 bytes"),
        ({"sizes": ()}, "--sizes"),
        ({"sizes": (2,), "dtype": "int32"}, "int32"),
        ({"memories": ("gpu",)}, "'gpu'"),
        ({"memories": ()}, "--memory"),
        ({"algorithms": ("tree",)}, "'tree'"),
        ({"peers": ("nccl",)}, "'nccl'"),
        ({"dtype": "complex64"}, "'complex64'"),
        ({"op": "avg"}, "'avg'"),
        ({"op": "mean", "dtype": "int32"}, "mean"),
        ({"iterations": 0}, "--iterations"),
        ({"seconds": 0.0}, "--seconds"),
        ({"seconds": float("nan")}, "--seconds"),
        ({"collective": "gossip"}, "'gossip'"),
        ({"wires": ("int8",)}, "'int8'"),
        ({"wires": ("float16",), "dtype": "float64"}, "float16 needs --dtype float32"),
        ({"wires": ("float16",), "collective": "broadcast"}, "allreduce, not broadcast"),
        ({"peers": ("limit",), "collective": "broadcast"}, "limit is for allreduce, not broadcast"),
    ],
)
def test_what_cannot_be_measured_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        Plan(**{"collective": "allreduce", "sizes": (1024,), **change})


@pytest.mark.parametrize(
    ("plan", "ranks", "words"),
    [
        (Plan("allreduce", (4,)), 0, "at least 1"),
        (Plan("allreduce", (4,), dtype="int8"), 200, "not exact in int8: choose a wider --dtype"),
        (Plan("allreduce", (4,), wires=("float32", "bfloat16")), 300, "not exact in bfloat16: choose a wider --wire"),
        (Plan("allgather", (1 << 50,)), 2, "GiB"),
    ],
)
def test_jobs_that_could_only_fail_are_refused(plan: Plan, ranks: int, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        plan.check_job(ranks, on_this_machine=True)


def test_ours_are_every_memory_algorithm_and_wire() -> None:
    plan = Plan("allreduce", (4,), memories=("pool",), algorithms=("auto", "ring"), wires=("float32", "bfloat16"))
    assert plan.variants == [
        *(("pool", "auto", "float32"), ("pool", "auto", "bfloat16")),
        *(("pool", "ring", "float32"), ("pool", "ring", "bfloat16")),
    ]
    assert Plan("barrier", (0,)).variants == [("array", "auto", "float32")]
    assert Plan("allreduce", (8,), memories=("array",), dtype="float64").variants == [("array", "auto", "float64")]


# ---- collectives and data --------------------------------------------------------------------------------------------


def make_case(collective: str = "allreduce", size: int = 4 << 10, **change: Any) -> Case:
    return Case(**{
        "collective": collective, "size": size, "dtype": "float32", "op": "sum", "ranks": 3, "rank": 1, **change
    })  # fmt: skip


@pytest.mark.parametrize(
    ("name", "factors"),
    [
        ("allreduce", (0, 1, 1.5)),
        ("allgather", (0, 0.5, 0.75)),
        ("reduce-scatter", (0, 0.5, 0.75)),
        ("broadcast", (1, 1, 1)),
        ("reduce", (1, 1, 1)),
        ("alltoall", (0, 0.5, 0.75)),
        ("gather", (0, 0.5, 0.75)),
        ("scatter", (0, 0.5, 0.75)),
    ],
)
def test_bus_factors_are_those_of_nccl_tests(name: str, factors: tuple[float, ...]) -> None:
    assert tuple(COLLECTIVES[name].bus_factor(ranks) for ranks in (1, 2, 4)) == factors


def test_blocks_tile_the_elements_and_the_first_are_the_longer() -> None:
    for count, ranks in product((0, 1, 5, 7, 12), (1, 2, 3, 5)):
        blocks = [block(count, ranks, rank) for rank in range(ranks)]
        assert [index for begin, end in blocks for index in range(begin, end)] == list(range(count)), ranks
        lengths = [end - begin for begin, end in blocks]
        assert lengths == sorted(lengths, reverse=True), (count, ranks)
        assert max(lengths) - min(lengths) <= 1, (count, ranks)


@pytest.mark.parametrize(
    ("collective", "on_root", "elsewhere"),
    [
        ("allgather", (83, 249), (83, 249)),
        ("alltoall", (249, 249), (249, 249)),
        ("gather", (83, 249), (83, 0)),
        ("scatter", (249, 83), (0, 83)),
    ],
)
def test_sizes_of_equal_blocks_are_those_of_all_blocks_rounded_down(
    collective: str, on_root: tuple[int, int], elsewhere: tuple[int, int]
) -> None:
    for rank, counts in ((0, on_root), (1, elsewhere)):
        case = make_case(collective, 1000, rank=rank)
        assert (case.bytes, (case.input_count, case.result_count)) == (996, counts)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_every_order_of_reduction_gives_the_same_bits(ranks: int) -> None:
    for op, dtype in product(OPS, DTYPES):
        if op == "mean" and not dtype.startswith("float"):
            continue
        letters = alphabet(make_case(op=op, dtype=dtype, ranks=ranks))
        extremes = np.array([letters.min(), letters.max()], np.float64)
        assert letters.dtype == dtype
        total = {"sum": extremes * ranks, "mean": extremes * ranks, "prod": np.abs(extremes) ** ranks}.get(op, extremes)
        assert (total.astype(dtype) == total).all(), (op, dtype)  # even the largest partial result can be stored
        assert op != "mean" or (np.mod(letters, ranks) == 0).all(), dtype


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 15])
def test_every_partial_result_is_exact_on_the_wire(ranks: int) -> None:
    for op, wire, terms in product(OPS, ("float16", "bfloat16"), range(1, ranks + 1)):
        letters = alphabet(make_case(op=op, ranks=ranks, wires=("float32", wire))).astype(np.float64)
        largest = np.abs(letters).max()
        travels = {"sum": largest * terms, "mean": largest * terms / ranks, "prod": largest**terms}.get(op, largest)
        assert rounded(travels, wire) == travels, (op, wire, terms)
        assert len(letters) > 1, (op, wire)


def rounded(value: float, wire: str) -> float:
    """Round to the nearest value of a 16-bit float."""
    if wire == "float16":
        return float(np.float16(value))
    bits = np.array(value, np.float32).view(np.uint32)
    return float(((bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32))


def test_a_narrow_wire_makes_the_alphabet_smaller() -> None:
    sizes = [len(alphabet(make_case(wires=wires))) for wires in ((), ("float32",), ("float16",), WIRES)]
    assert sizes == [4095, 4095, 2 * (2048 // 3) + 1, 2 * (256 // 3) + 1]


def test_a_random_source_gives_the_same_values_for_any_cut() -> None:
    source = RandomSource(alphabet(make_case()), seed=7)
    whole = source.values(1, 0, 2 * CHUNK + 10)
    for begin, end in ((0, 5), (CHUNK - 1, CHUNK + 1), (3, 2 * CHUNK + 3)):
        assert np.array_equal(source.values(1, begin, end), whole[begin:end])
    filled = np.empty_like(whole)
    fill(filled, source, 1)
    assert np.array_equal(filled, whole)
    assert not np.array_equal(source.values(2, 0, 100), whole[:100])
    assert not np.array_equal(RandomSource(alphabet(make_case()), seed=8).values(1, 0, 100), whole[:100])


def test_a_tiled_source_repeats_its_block() -> None:
    source = TiledSource([np.arange(5), np.arange(5) + 10])
    assert source.values(1, 3, 12).tolist() == [13, 14, 10, 11, 12, 13, 14, 10, 11]


def test_values_that_share_a_scale_may_be_off_by_a_part_of_the_largest() -> None:
    case = make_case("allreduce", 4 * CHUNK, op="mean", wires=("float8_e4m3",))
    letters = alphabet(case)
    source = RandomSource(letters, seed=3)
    right = np.mean([source.values(rank, 0, CHUNK) for rank in range(case.ranks)], axis=0)
    far = right.copy()
    far[[0, 1, -1]] += letters[-1]
    near = right + letters[-1] / 64
    over = ["float8_e4m3", "float8_e4m3", "float32", "float8_e4m3"]
    assert count_wrong(case, source, [near, far, near, right[:-2]], over) == [0, 3, CHUNK, 2]


@pytest.mark.parametrize("collective", [name for name in COLLECTIVES if name != "barrier"])
def test_every_wrong_element_is_counted(collective: str) -> None:
    case = make_case(collective, 4 * 3 * (CHUNK // 2 + 11), rank=0)
    source = RandomSource(alphabet(case), seed=3)
    inputs = np.stack([source.values(rank, 0, case.input_count) for rank in range(case.ranks)])
    begin, end = block(case.input_count, case.ranks, 0)  # of rank 0, which is the root
    right = {
        "broadcast": inputs[0],
        "allgather": inputs.reshape(-1),
        "gather": inputs.reshape(-1),
        "alltoall": inputs[:, begin:end].reshape(-1),
        "scatter": inputs[0, begin:end],
        "reduce-scatter": inputs.sum(axis=0)[begin:end],
    }.get(collective, inputs.sum(axis=0))
    wrong = right.copy()
    wrong[[0, 1, -1]] += 1
    shifted = np.roll(right, 1)
    assert count_wrong(case, source, [right, wrong]) == [0, 3]
    assert count_wrong(case, source, [shifted])[0] == np.count_nonzero(shifted != right)
    assert count_wrong(case, source, [right[:-2], np.full_like(right, np.nan)]) == [2, len(right)]


@pytest.mark.parametrize("length", [1, 100, 64 << 10, (64 << 10) + 7])
def test_refilling_writes_the_block_over_the_whole_buffer(length: int) -> None:
    case = make_case(size=4 * length)
    fresh = FreshValues(case, alphabet(case), seed=1)
    target = np.full(length, np.nan, np.float32)
    for iteration in (0, 1):
        refiller(case, target, fresh.block_length)(fresh.block(iteration))
        assert np.array_equal(target, fresh.source(iteration).values(case.rank, 0, length))
    if length > 1:
        assert not np.array_equal(fresh.block(0), fresh.block(1))


@pytest.mark.parametrize("collective", ["broadcast", "scatter"])
def test_only_the_root_writes_what_it_sends(collective: str) -> None:
    for rank in (0, 1):
        target = np.zeros(4, np.float32)
        refiller(make_case(collective, 16, rank=rank), target, 4)(np.ones(4, np.float32))
        assert target.any() == (rank == 0)


def test_a_mean_is_made_of_a_sum() -> None:
    result = np.array([3.0, 6.0], np.float32)
    then_divide(lambda: None, result, 3)()
    assert result.tolist() == [1.0, 2.0]


# ---- figures ---------------------------------------------------------------------------------------------------------


def contestant(backend: str = "gradientflow", wire: str = "float32") -> Contestant:
    buffer = np.empty(4, np.float32)
    return Contestant(backend, "auto", "array", wire, buffer, buffer, lambda: None)


def make_times(call: int = 1000, refill: int = 1000, processor: int = 1000) -> Times:
    return Times(*(np.array([time, time]) for time in (call, refill, processor)))


def test_an_iteration_counts_with_its_slowest_rank_and_the_processor_time_of_all() -> None:
    samples = [np.array([[1, 5, 3]]), np.array([[2, 4, 9]])]
    assert slowest(samples).tolist() == [[2, 5, 9]]
    assert together(samples).tolist() == [[3, 9, 12]]


def test_a_summary_is_of_the_slowest_ranks_samples() -> None:
    times = Times(call=np.arange(1, 101) * 1000, refill=np.full(100, 7000), processor=np.arange(100) * 1000)
    result = summarize(make_case(size=1 << 20, ranks=4), contestant(), 1, 0, times)
    assert (result.median_us, result.min_us, result.p95_us, result.refill_median_us) == (50.5, 1.0, 95.05, 7.0)
    assert result.algbw_GBps == pytest.approx((1 << 20) / 50.5e3)
    assert result.busbw_GBps == pytest.approx((1 << 20) / 50.5e3 * 1.5)
    assert (result.iterations, result.wire, result.bytes) == (100, "float32", 1 << 20)
    assert (result.cpu_us, result.link_share) == (49.5, None)


def test_contestants_with_other_wires_are_others() -> None:
    ours, narrow = contestant(), contestant(wire="float16")
    assert ours.key != narrow.key
    assert (ours.name, narrow.name) == ("ours (auto, array)", "ours (auto, array, float16 on the wire)")
    assert summarize(make_case(), narrow, 1, 0, None).key == narrow.key


def test_a_wrong_result_has_no_times() -> None:
    result = summarize(make_case(), contestant(), 1, 5, make_times())
    assert (result.wrong, result.median_us, result.busbw_GBps, result.iterations) == (5, None, None, 0)


@pytest.mark.parametrize(
    ("rate", "bytes_a_second"),
    [("1gbit", 125e6), ("200mbit", 25e6), ("2.5gbit", 312.5e6), ("800bit", 100.0), ("none", None), ("", None)],
)
def test_rates_are_read_as_tc_writes_them(rate: str, bytes_a_second: float | None) -> None:
    assert bytes_per_second(rate) == bytes_a_second


@pytest.mark.parametrize(
    ("collective", "wire", "share"),
    [
        ("allreduce", "float32", 1.5),
        ("allreduce", "float16", 0.75),
        ("allreduce", "bfloat16", 0.75),
        ("allreduce", "float8_e4m3", 0.375),
        ("reduce-scatter", "float32", 0.75),
        ("allgather", "float32", 0.75),
        ("broadcast", "float32", 1.0),
        ("reduce", "float32", 1.0),
        ("alltoall", "float32", 1.5),  # two ranks on each host
        ("scatter", "float32", 0.75),
        ("gather", "float32", 0.25),
    ],
)
def test_links_need_the_time_in_which_the_busiest_host_sends_its_share(
    collective: str, wire: str, share: float
) -> None:
    hosts = Hosts(number=4, ranks_per_host=2, machine="", ranks_on_this_machine=8, rate="8mbit")
    case = make_case(collective, 1 << 20, ranks=8)
    seconds = hosts.link_seconds(case, wire)
    assert seconds == pytest.approx(share * (1 << 20) / 1e6)
    assert replace(hosts, rate="").link_seconds(case, wire) is None
    assert replace(hosts, number=1).link_seconds(case, wire) is None
    result = summarize(case, contestant(), 4, 0, make_times(call=4_000_000_000), seconds)
    assert result.link_share == pytest.approx(share * 1.048576 / 4, abs=1e-4)


def test_iterations_fit_the_time_within_bounds() -> None:
    assert fitting_iterations(1.0, 0.01) == 100
    assert fitting_iterations(1.0, 10.0) == 5
    assert fitting_iterations(1.0, 0.0) == 10_000


@pytest.mark.parametrize(("long_round", "warm_up"), [(float("inf"), 9), (0.0, 3)])
def test_long_rounds_warm_up_once_for_each_series(
    monkeypatch: pytest.MonkeyPatch, long_round: float, warm_up: int
) -> None:
    monkeypatch.setattr(measure, "_LONG_ROUND", long_round)
    calls: list[int] = []
    steps = Steps(lambda block: None, lambda: calls.append(1), lambda block: None, lambda: calls.append(1))
    with gf.init() as comm:
        series = Series(
            [steps], FreshValues(Case("allreduce", 64, "float32", "sum", 1, 0), np.ones(1), 0), comm.barrier
        )
        (times,) = take_series(comm, series, 4, 1.0, lambda iteration: None)
    assert [len(samples) for samples in (times.call, times.refill, times.processor)] == [4, 4, 1]
    assert len(calls) == warm_up + 9


def test_a_ratio_is_the_peers_time_over_ours() -> None:
    assert ratio(2.0, 10.0) == 5.0
    assert ratio(10.0, 2.0) == 0.2
    assert ratio(None, 1.0) is None
    assert ratio(1.0, None) is None


def test_numbers_are_written_without_exponents() -> None:
    assert [microseconds(value) for value in (None, 0.5, 12.34, 1234.5)] == ["-", "0.50", "12.3", "1234"]
    assert [bandwidth(value) for value in (None, 0.0, 0.0000123, 0.5, 12.34, 1234)] == [
        "-", "-", "0.000012", "0.500", "12.3", "1234",
    ]  # fmt: skip


def test_the_json_file_holds_exactly_the_agreed_fields(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    JsonOutput(str(path)).write(figures_of({"cores": 2}, [summarize(make_case(), contestant(), 1, 1, None)]))
    written = json.loads(path.read_text())
    assert written["environment"] == {"cores": 2}
    assert [list(result) for result in written["results"]] == [RESULT_FIELDS]


# ---- table and remarks -----------------------------------------------------------------------------------------------


def make_results() -> list[Result]:
    times = make_times(call=2000, refill=4000, processor=3_145_728)
    slow = make_times(call=10000, refill=2000)
    ours = summarize(make_case(size=1 << 20), contestant(), 1, 0, times)
    return [
        ours,
        replace(ours, memory="pool", wrong=7, median_us=None, refill_median_us=None),
        *(summarize(make_case(size=1 << 20), contestant(peer), 1, 0, slow) for peer in ("mpi", "gloo")),
    ]


def test_the_table_shows_gains_losses_and_wrong_results() -> None:
    lines = rendered(LAYOUT, make_results(), force_terminal=False).splitlines()
    ours = next(line for line in lines if " ours " in line and "array" in line)
    assert ours.split()[:3] == ["1M", "ours", "array"]
    assert ours.count("5.00x") == 2
    assert ours.count("0.50x") == 2
    assert "WRONG" in next(line for line in lines if "pool" in line)


def test_a_narrow_terminal_gets_all_columns_in_two_tables() -> None:
    for width in (95, 85):
        text = rendered(LAYOUT, make_results(), force_terminal=True, width=width)
        assert max(map(len, text.splitlines())) <= width
        assert "…" not in text
        assert (text.count("memory"), text.count(" min "), text.count("gloo / ours")) == (2, 1, 1)


def test_the_algorithm_is_shown_where_there_was_a_choice() -> None:
    results = make_results()
    headings = [str(column.header) for column in LAYOUT.table(results).columns]
    assert "algorithm" not in headings
    chosen = [str(column.header) for column in LAYOUT.table([replace(results[0], algorithm="mpi")]).columns]
    assert "algorithm" in chosen


def test_the_wire_is_shown_where_there_was_a_choice() -> None:
    results = make_results()
    assert "wire" not in [str(column.header) for column in LAYOUT.table(results).columns]
    narrow = replace(results[0], wire="float16")
    assert "wire" in [str(column.header) for column in LAYOUT.table([*results, narrow]).columns]
    lines = rendered(LAYOUT, [*results, narrow], force_terminal=False).splitlines()
    line = next(line for line in lines if "float16" in line)
    assert line.count("5.00x") == 2


def test_no_figure_is_cut_where_there_are_many_variants() -> None:
    results = [
        replace(result, algorithm="hierarchical_lanes", wire="bfloat16", link_share=0.5)
        if result.backend == "gradientflow"
        else result
        for result in make_results()
    ]
    for width in (80, 110):
        text = rendered(LAYOUT, results, force_terminal=True, width=width)
        assert max(map(len, text.splitlines())) <= width
        assert text.count("5.00x") == 2
        assert all(word in text for word in ("hierarch", "bfloat16", "filled", "gloo / ours"))


def test_processor_times_are_shown_on_demand() -> None:
    results = make_results()
    assert "cpu" not in rendered(LAYOUT, results, force_terminal=False)
    assert "cpu" not in LAYOUT.explain(results)
    table = rendered(LAYOUT, results, with_cpu=True)
    ours = next(line for line in table.splitlines() if " ours " in line and "array" in line)
    assert {"3146", "1.00"} <= set(ours.split())  # microseconds; nanoseconds for each of 2^20 bytes on 3 ranks
    assert "cpu" in LAYOUT.explain(results, with_cpu=True)


def test_the_share_of_the_link_is_shown_where_it_is_known() -> None:
    results = make_results()
    assert "link" not in rendered(LAYOUT, results, force_terminal=False)
    known = [replace(result, link_share=0.876) for result in results]
    assert (
        "88"
        in next(line for line in rendered(LAYOUT, known, force_terminal=False).splitlines() if "array" in line).split()
    )
    assert "link" in LAYOUT.explain(known)


def test_a_busy_machine_is_remarked() -> None:
    assert "1.5 of 2" in Load(others=1.5, stolen=0.0, processors=2).remark(ranks=2)
    assert Load(others=1.5, stolen=0.0, processors=4).remark(ranks=2) == ""
    assert Load(others=0.05, stolen=0.0, processors=2).remark(ranks=4) == ""
    assert Load(others=0.0, stolen=0.6, processors=2).remark(ranks=2)


def test_more_ranks_than_cores_are_remarked() -> None:
    assert "3 ranks share 2 cores" in environment_lines(ENVIRONMENT)[-1]
    assert not any("share" in line for line in environment_lines({**ENVIRONMENT, "ranks_on_this_machine": 2}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "3 ranks on 1 node"),
        ({"nodes": 3}, "3 ranks on 3 nodes: 1 host with 3 ranks"),
        ({"nodes": 3, "hosts": 3, "ranks_per_host": 1}, "3 ranks on 3 nodes: 3 hosts with 1 rank each"),
        ({"nodes": 2, "hosts": 2, "link_rate": "1gbit"}, "2 nodes: 2 hosts with 3 ranks each at 1gbit"),
    ],
)
def test_the_environment_names_hosts_and_links(change: dict[str, Any], words: str) -> None:
    assert environment_lines({**ENVIRONMENT, **change})[0].endswith(words)


def test_the_mpi_librarys_name_leaves_out_where_it_was_built() -> None:
    assert mpi_library("Open MPI v5.0.11, package: Open MPI me@home Distribution") == "Open MPI v5.0.11"
    assert mpi_library("MPICH Version:      5.0.2\nMPICH Release date: ...") == "MPICH 5.0.2"


# ---- sessions --------------------------------------------------------------------------------------------------------


class Exchange:
    """What the threads that play ranks have in common."""

    def __init__(self, ranks: int) -> None:
        self.barrier = threading.Barrier(ranks, timeout=30)
        self.slots: list[Any] = [None] * ranks


class ThreadRank:
    """One rank of a job of threads: the part of Communicator that a session uses."""

    def __init__(self, exchange: Exchange, rank: int) -> None:
        self.rank, self.size, self.local_size, self.node, self.nodes = rank, len(exchange.slots), 1, rank, 1
        self._exchange = exchange

    def describe(self) -> dict[str, Any]:
        return {"transport": "mpi"}

    def allgather(self, value: Any, algorithm: str = "", out: Any = None) -> Any:
        self._exchange.slots[self.rank] = value.copy() if isinstance(value, np.ndarray) else value
        self._exchange.barrier.wait()
        values = list(self._exchange.slots)
        self._exchange.barrier.wait()
        if out is not None:
            out[:] = np.concatenate(values)
        return values

    def alltoall(self, x: np.ndarray[Any, Any], algorithm: str, out: np.ndarray[Any, Any]) -> None:
        own = slice(*block(len(x), self.size, self.rank))
        out[:] = np.concatenate([values[own] for values in self.allgather(x)])

    def allgatherv(self, x: np.ndarray[Any, Any], counts: list[int]) -> np.ndarray[Any, Any]:
        values = self.allgather(x)
        assert [len(value) for value in values] == counts
        return np.concatenate(values)

    def gather(self, x: Any, root: int, algorithm: str, out: Any) -> None:
        self.allgather(x, out=out if self.rank == root else None)

    def scatter(self, x: np.ndarray[Any, Any], root: int, algorithm: str, out: np.ndarray[Any, Any]) -> None:
        values = self.allgather(x)[root]
        out[:] = values[slice(*block(len(values), self.size, self.rank))]

    def barrier(self) -> None:
        self._exchange.barrier.wait()

    def empty(self, count: int, dtype: str) -> np.ndarray[Any, Any]:
        return np.zeros(count, dtype)

    def reduced(self, x: np.ndarray[Any, Any], op: str) -> np.ndarray[Any, Any]:
        return np.asarray(REDUCE[op](np.stack(self.allgather(x)), axis=0)).astype(x.dtype)

    def allreduce(self, x: np.ndarray[Any, Any], op: str, algorithm: str, wire: str = "float32") -> None:
        if algorithm == "shared":
            raise ValueError("not in this job")
        if algorithm == "mpi" and wire != "float32":
            raise ValueError("no wire")
        x[:] = self.reduced(x, op)

    def reduce(self, x: np.ndarray[Any, Any], root: int, op: str, algorithm: str) -> None:
        total = self.reduced(x, op)
        if self.rank == root:
            x[:] = total

    def broadcast(self, x: np.ndarray[Any, Any], root: int, algorithm: str) -> None:
        x[:] = self.allgather(x)[root]

    def reduce_scatter(self, x: np.ndarray[Any, Any], op: str, algorithm: str, out: np.ndarray[Any, Any]) -> None:
        begin, end = block(len(x), self.size, self.rank)
        out[:] = self.reduced(x, op)[begin:end]


def run_session(
    plan: Plan, ranks: int, extra: Callable[[ThreadRank, Case], list[Contestant]] | None = None
) -> RunOutcome:
    exchange = Exchange(ranks)
    outcomes: dict[int, RunOutcome] = {}

    def play(rank: int) -> None:
        comm: Any = ThreadRank(exchange, rank)
        build = None if extra is None else lambda size, case: extra(comm, case)
        outcomes[rank] = CollectiveSession(comm, plan, extra=build).run()

    threads = [threading.Thread(target=play, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(outcomes) == ranks
    assert len({outcome.wrong for outcome in outcomes.values()}) == 1
    return outcomes[0]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_right_contestants_are_timed(collective: str, ranks: int) -> None:
    sizes = (0,) if collective == "barrier" else (12, 1000, 300_004)
    plan = Plan(collective, sizes, memories=("pool",), peers=(), iterations=3)
    outcome = run_session(plan, ranks)
    assert outcome.wrong == 0
    assert [result.iterations for result in outcome.results] == [3] * len(sizes)
    assert all(result.median_us and result.refill_median_us and result.cpu_us for result in outcome.results)


@pytest.mark.parametrize("op", OPS)
def test_ops_are_checked_against_numpy(op: str) -> None:
    plan = Plan("allreduce", (4000,), memories=("array",), peers=(), iterations=1, op=op)
    assert run_session(plan, 3).wrong == 0


def test_a_wrong_contestant_is_reported_and_the_others_are_timed() -> None:
    def off_by_one(comm: ThreadRank, case: Case) -> list[Contestant]:
        buffer = np.empty(case.input_count, case.dtype)

        def call() -> None:
            comm.allreduce(buffer, case.op, "auto")
            buffer[-1] += 1  # one element, on each rank

        return [Contestant("faulty", "auto", "array", "float32", buffer, buffer, call)]

    plan = Plan("allreduce", (4000,), memories=("array",), peers=(), iterations=2)
    outcome = run_session(plan, 3, off_by_one)
    ours, faulty = outcome.results
    assert (ours.wrong, ours.iterations) == (0, 2)
    assert (faulty.wrong, faulty.iterations, faulty.median_us) == (3, 0, None)
    assert outcome.wrong == 3
    assert any("WRONG: faulty" in remark for remark in outcome.remarks)


def test_a_contestant_that_turns_wrong_while_it_is_timed_is_caught() -> None:
    def tiring(comm: ThreadRank, case: Case) -> list[Contestant]:
        buffer = np.empty(case.input_count, case.dtype)
        calls = iter(range(1000))

        def call() -> None:
            total = comm.reduced(buffer, case.op)
            if next(calls) < 12:  # right when it is checked first, and in the warm-up
                buffer[:] = total

        return [Contestant("faulty", "auto", "array", "float32", buffer, buffer, call)]

    plan = Plan("allreduce", (4000,), memories=("array",), peers=(), iterations=5)
    outcome = run_session(plan, 2, tiring)
    assert outcome.results[0].wrong == 0
    assert outcome.results[1].wrong > 0
    assert outcome.results[1].median_us is None


def test_a_contestant_that_refuses_is_left_out_with_its_reason() -> None:
    plan = Plan("allreduce", (4000, 8000), memories=("array",), algorithms=("auto", "shared"), peers=(), iterations=1)
    outcome = run_session(plan, 2)
    assert [result.algorithm for result in outcome.results] == ["auto", "auto"]
    reasons = [remark for remark in outcome.remarks if "not in this job" in remark]
    assert len(reasons) == 1
    assert reasons[0].startswith("4000, 8000: ours (shared, array)")


def test_every_wire_is_a_contestant() -> None:
    plan = Plan(
        "allreduce", (4000,), memories=("array",), algorithms=("auto", "mpi"), wires=WIRES, peers=(), iterations=1
    )
    outcome = run_session(plan, 3)
    assert [(result.algorithm, result.wire, result.dtype, result.wrong) for result in outcome.results] == [
        *(("auto", wire, "float32", 0) for wire in WIRES),
        ("mpi", "float32", "float32", 0),
    ]
    assert sum("no wire" in remark for remark in outcome.remarks) == len(WIRES) - 1
    assert any("nothing is rounded" in remark for remark in outcome.remarks)  # one node


def test_a_size_without_one_element_for_each_rank_is_left_out() -> None:
    outcome = run_session(Plan("allgather", (4,), memories=("array",), peers=(), iterations=1), 3)
    assert outcome.results == []
    assert "left out" in outcome.remarks[0]


# ---- jobs across nodes -----------------------------------------------------------------------------------------------


def run_job(launcher: Launcher, ranks: int, *arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run ``gradientflow bench`` in a job; its standard error comes with its output."""
    command = mpirun_command(launcher, ranks, module_command("gradientflow.cli", ["bench", *arguments]))
    return subprocess.run(
        command,
        env={**os.environ, **launch_environment(launcher), "OMP_NUM_THREADS": "1", **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("op", [pytest.param("sum", marks=pytest.mark.slow), "mean"])
def test_every_algorithm_and_wire_is_right_across_nodes(launcher: Launcher, tmp_path: Path, op: str) -> None:
    path = tmp_path / "figures.json"
    arguments = ("--sizes", "4K,300012", "--wire", ",".join(WIRES), "--algorithm", ",".join(ALGORITHMS), "--op", op)
    ended = run_job(
        *(launcher, 3, "allreduce", *arguments, "--cpu", "--iterations", "2", "--json", str(path)),
        env={"GRADIENTFLOW_NODE_SIZE": "1"},
    )
    assert ended.returncode == 0, ended.stdout
    results = json.loads(path.read_text())["results"]
    assert {(result["nodes"], result["wrong"]) for result in results} == {(3, 0)}
    assert all(result["cpu_us"] > 0 for result in results)
    ours = {(result["algorithm"], result["wire"]) for result in results if result["backend"] == "gradientflow"}
    served = [name for name in ALGORITHMS if name not in ("shared", "mpi")]
    assert ours == {("mpi", "float32"), *((name, wire) for name in served for wire in WIRES)}
    assert "algorithm 'shared' works inside one node" in " ".join(ended.stdout.split())


@pytest.mark.thorough
@pytest.mark.parametrize("collective", ["alltoall", "gather", "scatter"])
def test_the_collectives_of_blocks_are_right_across_nodes(launcher: Launcher, tmp_path: Path, collective: str) -> None:
    path = tmp_path / "figures.json"
    arguments = ("--sizes", "12,300000", "--compare", "mpi", "--iterations", "2", "--json", str(path))
    ended = run_job(launcher, 3, collective, *arguments, env={"GRADIENTFLOW_NODE_SIZE": "2", "NETLAB_RATE": "1gbit"})
    assert ended.returncode == 0, ended.stdout
    written = json.loads(path.read_text())
    assert len(written["results"]) == 6
    assert {(result["nodes"], result["wrong"], result["link_share"]) for result in written["results"]} == {(2, 0, None)}
    environment = written["environment"]
    assert (environment["hosts"], environment["ranks_per_host"], environment["link_rate"]) == (1, 3, "1gbit")


@pytest.mark.thorough
@pytest.mark.parametrize("op", ["sum", pytest.param("mean", marks=pytest.mark.slow)])
def test_the_limit_does_the_whole_work(launcher: Launcher, tmp_path: Path, op: str) -> None:
    path = tmp_path / "figures.json"
    options = ("--memory", "pool", "--compare", "limit", "--iterations", "3", "--op", op, "--json", str(path))
    ended = run_job(launcher, 3, "allreduce", "--sizes", "4,1000,3M", *options, env={})
    assert ended.returncode == 0, ended.stdout
    written = json.loads(path.read_text())
    found = [(result["backend"], result["wrong"], result["iterations"]) for result in written["results"]]
    assert found == [("gradientflow", 0, 3), ("limit", 0, 3)] * 3
    assert all(nanoseconds > 0 for nanoseconds in written["environment"]["round_trip_ns"])
    assert "A cache line took" in ended.stdout


@pytest.mark.slow
def test_peers_and_links_across_hosts(start_netlab: Callable[..., Any], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "figures.json"
    arguments = ("bench", "allreduce", "--sizes", "64K", "--wire", "float32,float16", "--memory", "pool")
    options = ("--compare", "mpi,gloo", "--iterations", "3", "--json", str(path))
    command = module_command("gradientflow.cli", [*arguments, *options])
    ended = start_netlab("--hosts", "2", "--rate", "1gbit", "--", *command, env={"NETLAB_RATE": "1gbit"}).finish()
    assert ended.returncode == 0, ended.output
    assert "2 ranks on 2 nodes: 2 hosts with 1 rank each at 1gbit" in ended.stdout
    results = json.loads(path.read_text())["results"]
    assert [(result["backend"], result["wire"], result["wrong"]) for result in results] == [
        *(("gradientflow", "float32", 0), ("gradientflow", "float16", 0), ("mpi", "float32", 0), ("gloo", "float32", 0))
    ]
    assert all(result["link_share"] > 0 for result in results)
