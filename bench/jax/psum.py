"""psum in shard_map, as in any program, beside a compiled call without communication."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from gradientflow.annotations import JsonObject

from .rank import Array, Ranks, part_of

if TYPE_CHECKING:
    import jax

_INPUTS = 4
_LEAST = 8

Values = Callable[[int, int], Array]  # takes a seed and a rank


def measure(told: JsonObject) -> JsonObject:
    """Verify and time each size; give median, minimum and 95th percentile in microseconds, and wrong elements."""
    import jax

    lax: ModuleType = jax.lax
    ranks = Ranks()
    call = ranks.compiled(lambda x: lax.psum(x, "ranks"), whole=True)
    empty = ranks.compiled(lambda x: x + 1)
    results = []
    for size in told["sizes"]:
        count = max(1, size // 4)

        def values(seed: int, rank: int, count: int = count) -> Array:
            return np.random.default_rng([seed, rank]).integers(-1000, 1000, (1, count)).astype(np.float32)

        inputs = [ranks.put(values(told["seed"] + number, ranks.rank)) for number in range(_INPUTS)]

        def verify(number: int, inputs: list[jax.Array] = inputs, values: Values = values) -> int:
            expected = sum(values(told["seed"] + number, rank) for rank in range(ranks.size))
            return int((part_of(call(inputs[number])) != expected).sum())

        wrong = sum(map(verify, range(_INPUTS)))
        times = ranks.times(call, inputs, told["seconds"], _LEAST) * 1e6
        wrong += verify(len(times) % _INPUTS)
        beside = ranks.times(empty, inputs, told["seconds"] / 4, _LEAST) * 1e6
        results.append(
            {
                "bytes": size,
                "median_us": float(np.median(times)),
                "min_us": float(times.min()),
                "p95_us": float(np.quantile(times, 0.95)),
                "empty_us": float(np.median(beside)),
                "calls": len(times),
                "wrong": int(ranks.gather(np.array([wrong])).sum()),
            }
        )
    return {"implementation": ranks.implementation, "results": results}
