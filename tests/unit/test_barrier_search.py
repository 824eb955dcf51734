"""When the next barrier of ElasticBSP falls: every search against brute force."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradientflow.bench.core.native import load_barriers
from gradientflow.bench.zipline.plan import ALGORITHMS, EXACT
from gradientflow.bench.zipline.session import draw_times, smallest_spread
from gradientflow.errors import ArgumentError, ArgumentTypeError

find: Any = load_barriers().find_barrier


def brute_force(times: Any) -> tuple[float, float]:
    """Try every choice of one push of each worker: the smallest spread, and the earliest barrier that has it."""
    return min((max(chosen) - min(chosen), max(chosen)) for chosen in itertools.product(*np.asarray(times).tolist()))


def rows(number: Any, workers: int, lookahead: int) -> Any:
    row = st.lists(number, min_size=lookahead, max_size=lookahead).map(sorted)
    return st.lists(row, min_size=workers, max_size=workers)


def instances(number: Any) -> Any:
    sizes = st.tuples(st.integers(1, 5), st.integers(1, 4))
    return sizes.flatmap(lambda size: rows(number, *size))


@pytest.mark.parametrize("algorithm", EXACT)
@given(times=st.one_of(instances(st.integers(0, 6).map(float)), instances(st.floats(-1e6, 1e6))))
def test_exact_searches_find_the_smallest_spread_and_the_earliest_barrier(algorithm: str, times: Any) -> None:
    """Small whole numbers tie often."""
    spread, barrier, pushes = find(np.array(times), algorithm)
    assert (spread, barrier) == brute_force(times)
    assert pushes == [sum(each <= barrier for each in row) for row in times]


@pytest.mark.parametrize("algorithm", ["grid_scan", "full_grid_scan"])
@given(times=instances(st.integers(0, 6).map(float)))
def test_grid_scans_find_a_solution(algorithm: str, times: Any) -> None:
    spread, barrier, pushes = find(np.array(times), algorithm)
    chosen = [row[push - 1] for row, push in zip(times, pushes, strict=True)]
    assert (max(chosen) - min(chosen), max(chosen)) == (spread, barrier)
    assert spread >= brute_force(times)[0]


@pytest.mark.parametrize(("workers", "lookahead"), [(2, 500), (7, 40), (60, 15), (300, 30)])
@pytest.mark.parametrize("seed", range(5))
def test_exact_searches_agree_on_instances_like_the_thesis(workers: int, lookahead: int, seed: int) -> None:
    times = draw_times(workers, lookahead, np.random.default_rng(seed))
    found = [find(times, algorithm) for algorithm in EXACT]
    assert found[0][:2] == smallest_spread(times)
    assert all(each == found[0] for each in found)


@pytest.mark.parametrize(
    "times",
    [
        [[0.0] * 50] * 40,  # all at once
        [[1e300 * push for push in range(8)], [1.0] * 8],  # almost all in one slab of time
        [[float(push) for push in range(100)], [1e9 + push for push in range(100)]],  # a gap
        [[2.0**push for push in range(-40, 40)], [3.0**push for push in range(-40, 40)]],
        [[5e-324 * push for push in range(1, 9)], [5e-324 * push for push in range(3, 11)]],  # no room between them
        [[-1e308, 1e308], [0.0, 1e308]],  # further apart than a number can say
    ],
)
def test_unusual_times(times: Any) -> None:
    best = smallest_spread(np.array(times))
    assert [find(np.array(times), algorithm)[:2] for algorithm in EXACT] == [best] * len(EXACT)


@given(times=instances(st.floats(0, 1e3)))
def test_the_reference_of_the_benchmark_is_right(times: Any) -> None:
    assert smallest_spread(np.array(times)) == brute_force(times)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("times", [np.zeros((0, 3)), np.zeros((3, 0)), np.zeros(3), [[1.0, 0.0]], [[0.0, np.nan]]])
def test_what_is_no_prediction_is_refused(algorithm: str, times: Any) -> None:
    with pytest.raises(ArgumentError, match="predicted times"):
        find(np.array(times), algorithm)


def test_times_of_another_type_or_order_are_refused() -> None:
    times = np.arange(6.0).reshape(2, 3)
    for wrong in (times.astype(np.float32), times.T):
        with pytest.raises(ArgumentTypeError, match="contiguous array of float64"):
            find(wrong, EXACT[0])
