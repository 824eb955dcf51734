"""psum_scatter and all_gather in a loop: each call gets other data, and every result is compared."""

from __future__ import annotations

import time
from types import ModuleType

import numpy as np

from gradientflow.annotations import JsonObject

from .rank import Ranks, part_of


def measure(told: JsonObject) -> JsonObject:
    """Count wrong results."""
    import jax

    lax: ModuleType = jax.lax
    ranks = Ranks()
    scatter = ranks.compiled(lambda x: lax.psum_scatter(x, "ranks", tiled=True))
    gather = ranks.compiled(lambda x: lax.all_gather(x, "ranks", tiled=True))
    rng = np.random.default_rng([told["seed"], 0])
    base = rng.integers(0, 1000, (ranks.size, ranks.size * max(1, told["bytes"] // 8 // ranks.size))).astype(float)
    share = base.shape[1] // ranks.size
    mine = slice(share * ranks.rank, share * (ranks.rank + 1))
    total, wrong = base.sum(axis=0)[mine], {"psum_scatter": 0, "all_gather": 0}
    began = time.monotonic()
    for number in range(told["calls"]):
        scattered = part_of(scatter(ranks.put(base[ranks.rank] + number)))
        wrong["psum_scatter"] += not np.array_equal(scattered, total + ranks.size * number)
        gathered = part_of(gather(ranks.put(base[ranks.rank, mine] - number)))
        parts = np.concatenate([base[rank, share * rank : share * (rank + 1)] for rank in range(ranks.size)])
        wrong["all_gather"] += not np.array_equal(gathered, parts - number)
    everywhere = {name: int(ranks.gather(np.array([count])).sum()) for name, count in wrong.items()}
    return {
        "calls": told["calls"],
        "bytes": base.shape[1] * 8,
        "seconds": time.monotonic() - began,
        "wrong": everywhere,
    }
