"""Cost of a compiled call of `average` and of `allreduce` at one rank, beside compiled calls that add 1."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gradientflow.annotations import JsonObject

if TYPE_CHECKING:
    import jax

_ROUNDS = 30


def measure(told: JsonObject) -> JsonObject:
    """Time all calls in turns; give the median of each in microseconds, by its name."""
    import jax
    import jax.numpy as jnp

    from gradientflow.jax import allreduce, average

    def step(update: Callable[..., object]) -> tuple[Callable[[], jax.Array], JsonObject]:
        """Make a call that passes a state on, and gives updates in place of gradients."""
        compiled: Callable[..., tuple[jax.Array, object]] = jax.jit(update, donate_argnums=1)
        kept: JsonObject = {}

        def call() -> jax.Array:
            updates, kept["state"] = compiled(value, kept["state"])
            return updates

        return call, kept

    results = []
    for size in told["sizes"]:
        value = jnp.asarray(np.random.default_rng([told["seed"], size]).integers(-9, 9, max(1, size // 4)), jnp.float32)
        calls: dict[str, Callable[[], jax.Array]] = {}
        for strategy in told["strategies"]:
            transformation = average(strategy)
            calls[f"average({strategy!r})"], kept = step(transformation.update)
            kept["state"] = transformation.init(value)
        calls["empty, with a state"], kept = step(lambda gradient, state: (gradient + 1, state + 1))
        kept["state"] = jnp.zeros((), jnp.float32)
        calls |= {f"allreduce, {op}": partial(jax.jit(partial(allreduce, op=op)), value) for op in ("sum", "max")}
        calls["empty"] = partial(jax.jit(lambda x: x + 1), value)
        wrong = {name: int((np.asarray(call()) != value + ("empty" in name)).sum()) for name, call in calls.items()}
        found: dict[str, list[float]] = {name: [] for name in calls}
        each = max(10, int(told["seconds"] / len(calls) / _ROUNDS / 100e-6))
        for number in range(_ROUNDS):
            for name, call in list(calls.items())[:: 1 if number % 2 else -1]:
                for _ in range(each):
                    began = time.perf_counter()
                    call().block_until_ready()
                    found[name].append(time.perf_counter() - began)
        results += [
            {"call": name, "bytes": size, "median_us": float(np.median(times) * 1e6), "wrong": wrong[name]}
            for name, times in found.items()
        ]
    return {"results": results}
