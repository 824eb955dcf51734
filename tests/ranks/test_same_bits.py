"""All ranks get the same bits: on every path, in every kind of memory, in every run, at every SIMD level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kernel_data import LEVELS

Run = Callable[..., Any]


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [2, 5])
def test_same_bits_on_all_ranks_and_paths(mpirun: Run, ranks: int) -> None:
    mpirun(ranks, "same_bits", "node")


def test_same_bits_at_the_first_and_the_last_simd_level(mpirun: Run) -> None:
    digests = {}
    for level in (LEVELS[0], "auto"):
        finished = mpirun(3, "same_bits", "node", env={"GRADIENTFLOW_SIMD": level})
        assert finished.line("simd ") == (LEVELS[-1] if level == "auto" else level)
        digests[level] = finished.line("digest ")
    assert len(set(digests.values())) == 1, digests


@pytest.mark.parametrize(
    "ranks",
    [pytest.param(2, marks=pytest.mark.thorough), 3, *(pytest.param(each, marks=pytest.mark.slow) for each in (4, 5))],
)
def test_same_bits_between_nodes_and_in_a_second_run(mpirun: Run, ranks: int) -> None:
    """For every algorithm and wire; the second run, of 3 ranks, is at another SIMD level, which must not matter."""
    digests = {
        level: mpirun(ranks, "same_bits", "nodes", env={"GRADIENTFLOW_SIMD": level}).line("digest ")
        for level in ({"auto", LEVELS[0]} if ranks == 3 else {"auto"})
    }
    assert len(set(digests.values())) == 1, digests
