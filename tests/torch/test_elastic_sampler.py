"""A DataLoader whose batches are dealt anew when ranks are lost or come."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from survival_groups import STEPS
from survivors import Fate, run_ranks
from torch.utils.data import DataLoader

import gradientflow as gf
import gradientflow.torch as gft
from gradientflow.errors import ArgumentError, ArgumentTypeError
from gradientflow.training import Deal, Membership

Command = Callable[[str | Path], list[str]]


@pytest.mark.parametrize(
    "options",
    [("0",), pytest.param(("2", "persist"), marks=pytest.mark.thorough), pytest.param(("2",), marks=pytest.mark.slow)],
)
def test_a_rank_dies_and_comes_back(process_command: Command, tmp_path: Path, options: Sequence[str]) -> None:
    """Each sample was used as often as if nothing had happened: in no step twice, in none left out."""
    run_ranks(process_command("torch_dealt"), 3, tmp_path, json.dumps([Fate(1, 7)]), *options, restart=True)
    left = {path.name: json.loads(path.read_text()) for path in tmp_path.glob("left.*")}
    assert sorted(left) == ["left.0.0", "left.1.1", "left.2.0"]
    sizes = left["left.0.0"]["sizes"]
    assert (all(sizes), sizes[6], sizes[7], sizes[-1]) == (True, 3, 2, 3)
    deal = Deal(100, 9, 4)
    uses = np.bincount(np.concatenate([deal.batch(step) for step in range(STEPS)]), minlength=100)
    for found in left.values():
        assert np.round(found["uses"], 3).tolist() == uses.tolist()


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=20))
def test_the_batch_is_that_of_the_step_and_the_ranks(changes: list[tuple[bool, int, int]]) -> None:
    """Whether the step was dropped, and whoever the ranks are then."""
    optimizer = Mock(spec=gft.DistributedOptimizer)
    total = sum(goes_on for goes_on, _, _ in changes) + 1

    def steps(_: int) -> Iterator[int]:
        number = 0
        for goes_on, size, rank in changes:
            optimizer.membership = Membership(rank % size, size)
            yield number
            number += goes_on

    optimizer.steps = steps
    sampler = gft.ElasticSampler(range(20), optimizer, batch_size=6, seed=2)
    loader = DataLoader(range(20), batch_sampler=sampler)  # type: ignore[arg-type,var-annotated]
    deal, met = Deal(20, 6, 2), 0
    for step, samples in sampler.steps(loader, total):
        now = optimizer.membership
        assert samples.tolist() == deal.part(step, now.rank, now.size).tolist()
        met += 1
    assert met == len(changes)


def test_what_does_not_go_together_is_refused() -> None:
    model = torch.nn.Linear(3, 2)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ArgumentTypeError, match="the optimizer is a SGD: what is needed is a DistributedOptimizer"):
        gft.ElasticSampler(8, inner, batch_size=2)
    with gf.init(transport="tcp") as comm, gft.DistributedOptimizer(inner, model, comm) as optimizer:
        with pytest.raises(ArgumentError, match="a batch of 9 samples is more than there are: 8"):
            gft.ElasticSampler(range(8), optimizer, batch_size=9)
        sampler = gft.ElasticSampler(range(8), optimizer, batch_size=4, shuffle=False)
        loader = DataLoader(range(8), batch_sampler=sampler)  # type: ignore[arg-type,var-annotated]
        found = [(step, samples.tolist()) for step, samples in sampler.steps(loader, 3)]
        assert found == [(0, [0, 1, 2, 3]), (1, [4, 5, 6, 7]), (2, [0, 1, 2, 3])]
        with pytest.raises(ArgumentError, match=r"iterated over by sampler.steps\(loader, total\)"):
            next(iter(loader))
        with pytest.raises(ArgumentError, match="the loader has another sampler"):
            sampler.steps(DataLoader(range(8)), 3)  # type: ignore[arg-type]
