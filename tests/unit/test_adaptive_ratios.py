"""The rule by which layers choose how much they send, and the algorithm that it belongs to, in plain numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradientflow.strategies.predict.adaptive import Stage, adaptive_ratio, stages_of
from gradientflow.strategies.predict.call_time import CallTime

from survive.topk_reference import Reference, largest

DENSE, SPARSE = CallTime(1.0, 0.01), CallTime(1.0, 0.1)  # seconds, and seconds for each element


def ratio(
    elements: int | tuple[int, ...], computing: float | None, selecting: float = 0.0, ranks: int = 4, most: float = 100
) -> float:
    each = elements if isinstance(elements, tuple) else (elements,)
    return adaptive_ratio(Stage(each, selecting, computing), DENSE, SPARSE, ranks, most)


@pytest.mark.parametrize(
    ("computing", "selecting", "chosen"),
    [
        (11.0, 0.0, 1),  # dense takes 1 + 1000 * 0.01 = 11 s
        (11.0, 99.0, 1),  # and selects nothing
        (10.9, 0.0, 11),  # 99 entries fit into 9.9 s: 1000 / 99 is more than 10
        (11.0 - 1e-9, 0.0, 10 + 1),  # 99.99 entries
        (10.9, 4.0, 17),  # 59 entries: 1000 / 17 = 58.8
        (3.0, 0.0, 50),
        (2.0, 0.0, 100),  # 10 entries fit
        (1.99, 0.0, 100),  # 10 do not, nor with any ratio
        (0.0, 0.0, 100),
        (3.0, 3.0, 100),  # selecting alone takes all the time
    ],
)
def test_the_smallest_ratio_that_fits(computing: float, selecting: float, chosen: float) -> None:
    assert ratio(1000, computing, selecting) == chosen


def test_the_last_stage_takes_the_largest_ratio() -> None:
    assert ratio(1000, None) == 100
    assert ratio(1, None, most=7.5) == 7.5


def test_from_one_past_the_ranks() -> None:
    """Dense does not fit, and 3 would: but below 8 ranks entries are dearer than all."""
    cheap = CallTime(0.0, 0.001)
    stage = Stage((1000,), 0.0, 0.5)
    assert adaptive_ratio(stage, DENSE, cheap, 2, 100) == 2
    assert adaptive_ratio(stage, DENSE, cheap, 8, 100) == 8
    assert adaptive_ratio(stage, DENSE, cheap, 200, 100) == 100


def test_a_ratio_that_is_no_whole_number_bounds_all() -> None:
    assert ratio(1000, 2.0, most=99.5) == 99.5
    assert ratio(1000, 3.0, most=99.5) == 50
    assert ratio(1000, 0.5, most=1) == 1


def test_layers_of_a_stage_share_a_message() -> None:
    """Each layer sends at least one entry, and the latency is paid once."""
    assert ratio((1000, 1, 1), 2.2) == 100  # 12 entries
    assert ratio((1000, 1, 1), 2.3) == 91  # 13: 11 of the first


@given(
    elements=st.lists(st.integers(0, 5000), min_size=1, max_size=3),
    computing=st.floats(0, 100),
    selecting=st.floats(0, 10),
    ranks=st.integers(1, 9),
    most=st.floats(1, 300),
)
def test_the_rule_in_a_plain_search(
    elements: list[int], computing: float, selecting: float, ranks: int, most: float
) -> None:
    wanted = most
    if DENSE.seconds(sum(elements)) <= computing:
        wanted = 1.0
    else:
        for each in range(max(2, ranks), math.floor(most) + 1):
            if SPARSE.seconds(sum(math.ceil(count / each) for count in elements)) <= computing - selecting:
                wanted = float(each)
                break
    assert ratio(tuple(elements), computing, selecting, ranks, most) == wanted


@pytest.mark.parametrize(
    ("counts", "stages"),
    [
        ([], []),
        ([5], [(0, 1)]),
        ([5, 5], [(0, 2)]),
        ([100], [(0, 1)]),
        ([5, 100, 5, 5, 200, 5], [(0, 2), (2, 6)]),
        ([100, 100, 100], [(0, 1), (1, 2), (2, 3)]),
    ],
)
def test_small_layers_go_with_the_next_large_one(counts: list[int], stages: list[tuple[int, int]]) -> None:
    assert stages_of(counts, 100) == [range(*stage) for stage in stages]


# ---- the reference itself --------------------------------------------------------------------------------------------


def test_equal_magnitudes_go_to_the_lower_index() -> None:
    values = np.array([1, -3, 3, 0, -3, 3], np.float32)
    assert largest(values, 3).tolist() == [1, 2, 4]
    assert largest(values, 9).tolist() == [0, 1, 2, 3, 4, 5]


def test_the_assumption_can_be_broken() -> None:
    """Two ranks whose largest entries cancel: what is left is twice what a random choice would leave."""
    reference = Reference(2, [2], [2.0])
    means = reference.step([[np.float32([10, 1])], [np.float32([-10, 1])]])
    assert reference.deltas == [2.0]
    assert means[0].tolist() == [0, 0]
    assert [residual[0].tolist() for residual in reference.residuals] == [[0, 1], [0, 1]]
    reference.ratios = [1.0]
    assert reference.step([[np.float32([1, 1])]] * 2)[0].tolist() == [1, 2]
    assert reference.deltas == [0.0]


def test_momentum_correction_with_and_without_masking() -> None:
    for masking, velocity in ((True, 0.0), (False, 4.0)):
        reference = Reference(1, [2], [2.0], momentum=0.5, masking=masking)
        reference.step([[np.float32([4, 1])]])
        assert reference.velocities[0][0].tolist() == [velocity, 1]
        (mean,) = reference.step([[np.float32([0, 0])]])
        assert mean.tolist() == ([0, 1.5] if masking else [2, 0])
