"""Which tensors of a gradient pool travel together."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradientflow import _core

core: Any = _core

SIZES = st.lists(st.one_of(st.just(0), st.integers(0, 300), st.integers(0, 2**40)), max_size=60)
THRESHOLDS = st.one_of(st.integers(0, 1000), st.integers(0, 2**64 - 1))


@given(sizes=SIZES, threshold=THRESHOLDS)
def test_ranges_cover_all_tensors_and_are_as_short_as_they_may_be(sizes: list[int], threshold: int) -> None:
    ranges = core.fuse(sizes, threshold)
    assert [i for first, end in ranges for i in range(first, end)] == (list(range(len(sizes))) if any(sizes) else [])
    for first, end in ranges:
        assert sum(sizes[first:end]) > 0
    for first, end in ranges[:-1]:
        assert sum(sizes[first:end]) >= threshold
        assert sum(sizes[first : end - 1]) < max(threshold, 1)
    if ranges and sum(sizes[slice(*ranges[-1])]) >= threshold:  # nothing is waited for but tensors without elements
        first, end = ranges[-1]
        while sizes[end - 1] == 0:
            end -= 1
        assert sum(sizes[first : end - 1]) < max(threshold, 1)


@pytest.mark.parametrize(
    ("sizes", "threshold", "ranges"),
    [
        ([], 0, []),
        ([0, 0], 0, []),
        ([5], 0, [(0, 1)]),
        ([5, 5, 5], 0, [(0, 1), (1, 2), (2, 3)]),
        ([5, 5, 5], 10, [(0, 2), (2, 3)]),
        ([5, 5, 5], 11, [(0, 3)]),
        ([5, 0, 5, 0], 5, [(0, 1), (1, 4)]),
        ([0, 20, 1, 1], 8, [(0, 2), (2, 4)]),
        ([1, 1, 1], 2**64 - 1, [(0, 3)]),
    ],
)
def test_ranges_of_small_pools(sizes: list[int], threshold: int, ranges: list[tuple[int, int]]) -> None:
    assert core.fuse(sizes, threshold) == ranges


@pytest.mark.parametrize(
    ("size", "nodes", "threshold"),
    [
        (0, 2, 2**18),
        (300_000, 2, 2**18),
        (2**24, 2, 2**20),
        (2**24, 8, 2**20),
        (2**40, 2, 2**22),
        (300_000, 1, 2**23),
    ],
)
def test_thresholds_follow_from_the_bytes_between_nodes(size: int, nodes: int, threshold: int) -> None:
    assert core.selector.automatic_threshold(size, nodes) == threshold
