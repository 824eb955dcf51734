"""Methods that exchange weights every few steps, and PowerSGD."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradientflow.errors import ArgumentError
from gradientflow.strategies import parse_strategy
from gradientflow.strategies.exchange.periodic import _fragments
from gradientflow.strategies.methods.sparse_loco import BLOCK_BYTES, decode, encode


@pytest.mark.checks("local_methods")
@pytest.mark.parametrize("ranks", [*(pytest.param(ranks, marks=pytest.mark.thorough) for ranks in (1, 2)), 3])
def test_local_methods(check: Callable[..., Any], ranks: int) -> None:
    check(ranks, timeout=100)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("local_sgd(period=0)", "period is 1 or more"),
        ("local_sgd(period=4, delay=4)", "delay is below period, 4, not 4"),
        ("diloco(period=4, fragments=5)", "fragments is at most period, 4, not 5"),
        ("diloco(mixing=1.0)", "mixing is from 0 to below 1, not 1.0"),
        ("diloco(outer_rate=-1.0)", "outer_rate is above 0, not -1.0"),
        ("diloco(outer_momentum=1.0)", "outer_momentum is from 0 to below 1"),
        ("diloco(wire='float64')", "wire is one of float32, float16, bfloat16, float8_e4m3, not 'float64'"),
        ("sparse_loco(decay=1.5)", "decay is from 0 to 1, not 1.5"),
        ("powersgd(rank=0)", "rank is 1 or more"),
        ("powersgd(wire='int8')", "wire is one of float32, float16, bfloat16, float8_e4m3, not 'int8'"),
    ],
)
def test_bad_arguments_are_refused(words: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        parse_strategy(words)


@given(st.integers(0, 9000), st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_the_largest_of_each_block_arrive(count: int, seed: int) -> None:
    """Each within a quarter of the largest, with its sign; and nothing else."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(count).astype(np.float32) * random.integers(0, 2, count)
    sent = encode(values)
    assert sent.nbytes == BLOCK_BYTES * -(-count // 4096)
    found = decode(sent, count)
    for begin in range(0, count, 4096):
        block, arrived = values[begin : begin + 4096], found[begin : begin + 4096]
        chosen = np.argsort(-np.abs(block), kind="stable")[:64]
        scale = np.abs(block).max(initial=0)
        assert np.abs(arrived[chosen] - block[chosen]).max(initial=0) <= scale / 4 * (1 + 1e-6)
        rest = np.ones(block.size, bool)
        rest[chosen] = False
        assert not arrived[rest].any()


def test_fourteen_bits_for_an_entry() -> None:
    assert (BLOCK_BYTES - 4) * 8 == 14 * 64


@given(st.lists(st.integers(0, 1000), max_size=30), st.integers(1, 8))
def test_fragments_are_all_tensors_in_their_order(counts: list[int], number: int) -> None:
    parts = _fragments(counts, number)
    assert len(parts) == number
    assert [index for part in parts for index in part] == list(range(len(counts)))
