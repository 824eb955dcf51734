"""The index arithmetic of the collectives: blocks, slices and pieces cover everything once, in order."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from native import collective as partition

COUNTS = st.one_of(st.integers(0, 300), st.integers(0, 2**48))
PARTS = st.integers(1, 40)
GRAINS = st.sampled_from([1, 8, 16, 32, 64, 7])


def check_cover(ranges: list[tuple[int, int]], begin: int, end: int) -> None:
    """The ranges follow each other without a gap, from begin to end."""
    assert ranges[0][0] == begin
    assert ranges[-1][1] == end
    for (_, left_end), (right_begin, _) in itertools.pairwise(ranges):
        assert left_end == right_begin
    assert all(first <= last for first, last in ranges)


@given(count=COUNTS, parts=PARTS)
def test_blocks_cover_everything_and_the_first_ones_have_one_more(count: int, parts: int) -> None:
    blocks = [partition.block(count, parts, index) for index in range(parts)]
    check_cover(blocks, 0, count)
    sizes = [end - begin for begin, end in blocks]
    extra = count % parts
    assert sizes == [count // parts + 1] * extra + [count // parts] * (parts - extra)


def test_blocks_of_small_counts() -> None:
    assert [partition.block(0, 3, i) for i in range(3)] == [(0, 0)] * 3
    assert [partition.block(2, 3, i) for i in range(3)] == [(0, 1), (1, 2), (2, 2)]
    assert [partition.block(7, 3, i) for i in range(3)] == [(0, 3), (3, 5), (5, 7)]
    assert partition.block(5, 1, 0) == (0, 5)


@given(count=COUNTS, parts=PARTS, grain=GRAINS)
def test_slices_cover_everything_with_borders_at_the_grain(count: int, parts: int, grain: int) -> None:
    slices = [partition.slice(count, parts, index, grain) for index in range(parts)]
    check_cover(slices, 0, count)
    for begin, end in slices:
        assert begin % grain == 0 or begin == count
        assert end % grain == 0 or end == count
    sizes = [end - begin for begin, end in slices]
    assert max(sizes) - min(sizes) <= 2 * grain - 1  # a grain, and what the last one lacks
    assert max(sizes) <= -(-count // (grain * parts)) * grain
    assert sizes[0] == max(sizes)


@given(count=COUNTS, parts=PARTS)
def test_slices_of_grain_one_are_blocks(count: int, parts: int) -> None:
    for index in range(parts):
        assert partition.slice(count, parts, index, 1) == partition.block(count, parts, index)


@given(begin=st.integers(0, 1000), size=st.integers(0, 2000), length=st.integers(1, 500))
def test_pieces_cover_a_range_and_are_empty_past_its_end(begin: int, size: int, length: int) -> None:
    whole = (begin, begin + size)
    number = partition.pieces(size, length)
    assert number == -(-size // length)
    cut = [partition.piece(whole, length, index) for index in range(number)]
    if cut:
        check_cover(cut, *whole)
        assert all(last - first == length for first, last in cut[:-1])
        assert 0 < cut[-1][1] - cut[-1][0] <= length
    for index in (number, number + 1, number + 1000):
        first, last = partition.piece(whole, length, index)
        assert first == last == begin + size


@given(count=COUNTS, parts=PARTS, length=st.integers(1, 10**6))
def test_the_first_block_needs_the_most_pieces(count: int, parts: int, length: int) -> None:
    """Staged reduce_scatter takes as many steps as the first block needs; no other block may need more."""
    needed = [
        partition.pieces(end - begin, length) for begin, end in (partition.block(count, parts, i) for i in range(parts))
    ]
    assert max(needed) == needed[0]
