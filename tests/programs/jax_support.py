"""What the JAX programs share: the start of the job, checks one after the other, and arrays over all ranks."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from typing import Any
from unittest import SkipTest

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # fast code takes longer to compile

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.typing import NDArray
from saying import say, tell  # noqa: F401

Array = NDArray[Any]

jax.config.update("jax_enable_x64", True)
jax.distributed.initialize()

RANK, SIZE = jax.process_index(), jax.process_count()
MESH = Mesh(np.array(jax.devices()), ("ranks",))


def spread(array: Array) -> jax.Array:
    """Make an array of which every rank has a part, along the first dimension."""
    return jax.make_array_from_callback(array.shape, NamedSharding(MESH, P("ranks")), lambda index: array[index])


def own(array: jax.Array) -> Array:
    """Return this rank's part of an array."""
    return np.asarray(array.addressable_shards[0].data)


def on_ranks(function: Any, spread_result: bool = True) -> Any:
    """Compile a function that every rank calls with its part, and in which it may speak to the others."""
    result = P("ranks") if spread_result else P()
    return jax.jit(
        jax.shard_map(function, mesh=MESH, in_specs=P("ranks"), out_specs=result, check_vma=False),
    )


def run_checks() -> None:
    """Run the checks of the program that are asked for, or all; the first that fails on a rank ends the job."""
    program = vars(sys.modules["__main__"])
    checks = {name: each for name, each in program.items() if name.startswith("check_") and inspect.isfunction(each)}
    for name in os.environ["CHECKS"].split(",") if "CHECKS" in os.environ else checks:
        skipped = ""
        tell(RANK, begun=name)
        try:
            checks[name]()
        except SkipTest as reason:
            skipped = str(reason)
        except BaseException:
            failure = f"rank {RANK} of {SIZE}: {traceback.format_exc()}"
            print(failure, file=sys.stderr, flush=True)
            tell(RANK, ended=name, failure=failure, skipped="")
            os._exit(1)  # at its usual end JAX would wait for the others
        multihost_utils.sync_global_devices(name)
        tell(RANK, ended=name, failure="", skipped=skipped)
