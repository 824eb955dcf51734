"""How samples are dealt to ranks: all of a batch, none twice, and the same for everybody who asks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradientflow.errors import ArgumentError, ArgumentTypeError
from gradientflow.training import Deal

shapes = st.integers(1, 60).flatmap(lambda batch: st.tuples(st.integers(batch, 200), st.just(batch)))
seeds = st.integers(0, 2**40)


@given(shapes, seeds, st.booleans(), st.data())
def test_the_parts_of_a_step_make_up_its_batch(
    shape: tuple[int, int], seed: int, shuffle: bool, data: st.DataObject
) -> None:
    """Whoever the ranks were before; and a rank that has just come, and has a deal of its own, gets what is left."""
    deal = Deal(*shape, seed, shuffle)
    for step, size in enumerate(data.draw(st.lists(st.integers(1, shape[1]), max_size=12), "sizes")):
        newcomer = Deal(*shape, seed, shuffle)
        parts = [deal.part(step, rank, size) for rank in range(size - 1)] + [newcomer.part(step, size - 1, size)]
        assert sorted(np.concatenate(parts)) == sorted(deal.batch(step))
        assert len(deal.batch(step)) == shape[1]
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(shapes, seeds, st.booleans(), st.integers(0, 2**40))
def test_no_sample_comes_twice_in_an_epoch(shape: tuple[int, int], seed: int, shuffle: bool, epoch: int) -> None:
    samples, batch = shape
    deal, number = Deal(*shape, seed, shuffle), samples // batch
    dealt = np.concatenate([deal.batch(step) for step in range(epoch * number, (epoch + 1) * number)])
    assert len(set(dealt)) == number * batch
    assert set(dealt) <= set(range(samples))
    if not shuffle:
        assert dealt.tolist() == list(range(number * batch))


def test_orders_differ_between_epochs_and_seeds() -> None:
    orders = {tuple(Deal(100, 100, seed).batch(step)) for seed in range(3) for step in range(3)}
    assert len(orders) == 9


def test_a_batch_that_is_changed_does_not_change_the_next() -> None:
    deal = Deal(6, 6, shuffle=False)
    deal.batch(0)[:] = 0
    assert deal.batch(1).tolist() == [0, 1, 2, 3, 4, 5]


def test_what_cannot_be_dealt_is_refused() -> None:
    with pytest.raises(ArgumentError, match="a batch of 11 samples is more than there are: 10"):
        Deal(10, 11)
    with pytest.raises(ArgumentError, match="batch_size is 1 or more"):
        Deal(10, 0)
    with pytest.raises(ArgumentTypeError, match="seed is a whole number"):
        Deal(10, 2, 0.5)  # type: ignore[arg-type]
    deal = Deal(10, 2)
    assert len(deal.part(0, 1, 2)) == 1
    with pytest.raises(ArgumentError, match="a batch of 2 samples is too small for 3 ranks: each needs one"):
        deal.part(0, 0, 3)
    with pytest.raises(ArgumentError, match="rank is 0 or more, and at most 1, not 2"):
        deal.part(0, 2, 2)
