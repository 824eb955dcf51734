"""A rank of a job: measures as told, with the library that has its turn, and prints its findings."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from gradientflow.launch import jax_variables

from ..core.job_turns import MARK

if TYPE_CHECKING:
    import jax

    Compiled = Callable[[jax.Array], jax.Array]

Array = np.ndarray


def main() -> None:
    """Measure as the job is told."""
    told = json.loads(sys.argv[1])
    if told["contestant"] == "gloo":
        os.environ["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] = "gloo"
    os.environ.update(jax_variables(os.environ))  # read by JAX on import
    figures = importlib.import_module(f"{__package__}.{told['measure']}").measure(told)
    if os.environ["RANK"] == "0":
        print(f"{MARK}{json.dumps(figures)}", flush=True)


class Ranks:
    """JAX's processes, whose collectives are gloo's or ours."""

    def __init__(self) -> None:
        import jax

        self._jax: ModuleType = jax
        self._jax.config.update("jax_enable_x64", True)
        jax.distributed.initialize()
        self.implementation: str = self._jax.config.jax_cpu_collectives_implementation
        self.rank, self.size = jax.process_index(), jax.process_count()
        sharding = self._jax.sharding
        self._mesh = sharding.Mesh(np.array(jax.devices()), ("ranks",))
        self._spread, self._whole = sharding.PartitionSpec("ranks"), sharding.PartitionSpec()
        self._sharding = sharding.NamedSharding(self._mesh, self._spread)

    def put(self, own: Array) -> jax.Array:
        """Make an array in which `own` is this rank's part."""
        shape = (self.size * own.shape[0], *own.shape[1:])
        parts = [self._jax.device_put(own)]
        made: jax.Array = self._jax.make_array_from_single_device_arrays(shape, self._sharding, parts)
        return made

    def compiled(self, function: Callable[[jax.Array], object], *, whole: bool = False) -> Compiled:
        """Compile a function of each rank's part; a result that is `whole` is equal on all ranks."""
        specs = {"in_specs": self._spread, "out_specs": self._whole if whole else self._spread}
        found: Compiled = self._jax.jit(self._jax.shard_map(function, mesh=self._mesh, check_vma=False, **specs))
        return found

    def gather(self, own: Array) -> Array:
        """Return an array of each rank, stacked."""
        from jax.experimental import multihost_utils

        gathered: Array = np.asarray(multihost_utils.process_allgather(own)).reshape(self.size, *own.shape)
        return gathered

    def times(self, call: Compiled, inputs: Sequence[jax.Array], seconds: float, least: int) -> Array:
        """Time successive calls, each with another input; give the times of the slowest rank."""
        for value in inputs:
            call(value).block_until_ready()
        began = time.perf_counter()
        for value in inputs:
            call(value).block_until_ready()
        each = (time.perf_counter() - began) / len(inputs)
        calls = int(max(least, min(10_000, seconds / self.gather(np.array([each])).max())))
        found = np.empty(calls)
        for number in range(calls):
            value = inputs[number % len(inputs)]
            began = time.perf_counter()
            call(value).block_until_ready()
            found[number] = time.perf_counter() - began
        slowest: Array = self.gather(found).max(axis=0)
        return slowest


def part_of(array: jax.Array) -> Array:
    """Return this rank's part of an array."""
    return np.asarray(array.addressable_shards[0].data)
