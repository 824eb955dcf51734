"""An unchanged program of JAX in which something is wrong: jax_faults.py kill|raise|devices|part|alone|differ."""

from __future__ import annotations

import os
import signal
import sys
import time

import jax
import numpy as np

what = sys.argv[1]
if what == "devices":
    jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize()
if what == "alone":
    os.environ["GRADIENTFLOW_RANK"] = "-1"  # by which the ranks are to meet when JAX starts its collectives

from jax import lax  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

rank = jax.process_index()
devices = jax.devices()[:2] if what == "part" else jax.devices()
mesh = Mesh(np.array(devices), ("x",))
ones = np.ones((len(devices), 1000), np.float32)
total = jax.jit(jax.shard_map(lambda v: lax.psum(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))
began = time.monotonic()
if what != "part" or rank < 2:
    x = jax.make_array_from_callback(ones.shape, NamedSharding(mesh, P("x")), lambda index: ones[index])
    try:
        for call in range(20):
            if rank == 1 and call == 5:
                if what == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if what == "raise":
                    raise RuntimeError("of the program")
            began = time.monotonic()
            np.asarray(total(x[:, : 700 if what == "differ" and call == 5 and rank == 1 else 1000]))
    except jax.errors.JaxRuntimeError as error:
        seconds = time.monotonic() - began
        sys.stdout.write(f"rank {rank} after {seconds:.2f} s: {error}\n")
        sys.stdout.flush()
        if what in ("alone", "devices", "differ", "part"):
            jax.distributed.shutdown()  # the end of rank 0 would end all ranks
        os._exit(3)  # JAX would wait for the others
