"""Chunks of csc in small models."""

from __future__ import annotations

import numpy as np

import gradientflow as gf
from gradientflow.strategies import CSC


def test_a_small_model_is_not_sent_whole() -> None:
    """Nor is a state with the chunks of large models refused."""
    with gf.init(transport="tcp") as comm:
        large, small = CSC(chunk_size=32768).make_pool(comm, [(140, 140), (400,)]), CSC().make_pool(comm, [20_000])
        for pool in (large, small, small):
            for index, view in enumerate(pool.views):
                view[...] = np.arange(view.size).reshape(view.shape)
                pool.ready(index)
            pool.wait()
        assert (large.chunks, small.chunk_size, len(small.sent)) == (1, 256, 8)
        state = large.state_dict()
        other = CSC().make_pool(comm, [(140, 140), (400,)])
        other.load_state_dict(state)
        assert other.important.all()


def test_chunks_of_large_models_are_as_ever() -> None:
    assert CSC().chunk_size_for(1_400_000) == 32768
    assert CSC(density=0.01).chunk_size_for(1_400_000) == 2048
    assert CSC(density=[1.0, 0.1].__getitem__).chunk_size_for(100) == 32768  # not asked about later iterations
    assert CSC(chunk_size=32768).chunk_size_for(10) == 32768
    assert CSC().chunk_size_for(10) == 64
