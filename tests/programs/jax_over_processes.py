"""gradientflow.jax in programs that jax.shard_map spreads over processes, and in those where that is forgotten."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import multihost_utils
from jax_support import RANK, SIZE, on_ranks, own, say, spread

import gradientflow.jax as gfj
from gradientflow.errors import ArgumentError

x = spread(np.arange(4.0 * SIZE, dtype=np.float32))
total = np.arange(4.0 * SIZE).reshape(SIZE, 4).sum(0)
assert np.array_equal(own(on_ranks(gfj.allreduce)(x)), total)
with pytest.raises(ArgumentError, match=f"allreduce in a program for {SIZE} devices"):
    jax.jit(gfj.allreduce)(x)

transformation = gfj.average("top_k(ratio=2)")
state = transformation.init(jnp.ones(4, jnp.float32))


def update(gradients: Any, states: Any) -> Any:
    """Update with this rank's state, which is a row of an array over all ranks."""
    own_state = jax.tree.map(lambda row: row[0], states)
    means, new = transformation.update(gradients, own_state)
    return means, jax.tree.map(lambda row: row[None], new)


def over_ranks(array: Any) -> Any:
    return spread(np.broadcast_to(np.asarray(array), (SIZE, *array.shape)))


program, states = on_ranks(update), jax.tree.map(over_ranks, state)
sums = np.zeros(4, np.float32)
for _ in range(4):
    means, states = program(x, states)
    assert np.count_nonzero(own(means)) <= 2 * SIZE
    sums += own(means)
assert np.all(sums <= 4 * total / SIZE)
assert np.any(sums > 0)
with pytest.raises(ArgumentError, match=f"average in a program for {SIZE} devices"):
    jax.jit(transformation.update)(x, transformation.init(jnp.ones(x.shape, x.dtype)))
multihost_utils.sync_global_devices("the end")
say(f"the end of {RANK}")
