"""gradientflow.jax.allreduce on some ranks: every case, by its name, prints a line once it is right."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any

# The second device is for what is refused; the other flags let XLA compile sooner.
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=2"
    " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax_cases import case, raises, run_cases

import gradientflow as gf
import gradientflow.jax as gfj

comm = gf.init(config=gf.Config(dump="auto"))
RANK, SIZE = comm.rank, comm.size
reduce = partial(gfj.allreduce, comm=comm)


def of_rank(rank: int, shape: tuple[int, ...] = (5, 7), dtype: Any = np.float32) -> Any:
    """Give small whole numbers, from 1 on, that differ between ranks."""
    return (np.arange(np.prod(shape)).reshape(shape) * (rank + 2) % 5 + 1).astype(dtype)


def of_all(op: str, shape: tuple[int, ...] = (5, 7), dtype: Any = np.float32) -> Any:
    """Give what an allreduce of `of_rank` is."""
    arrays = np.array([of_rank(rank, shape, np.float64) for rank in range(SIZE)])
    return getattr(np, op)(arrays, axis=0).astype(dtype)


@case
def dtypes_and_ops() -> None:
    dtypes = ("float32", "float16", "bfloat16", "int32", "int8", "uint8")
    ops = [(dtype, op) for dtype in dtypes for op in ("sum", "mean", "max", "min", "prod")]
    ops = [(dtype, op) for dtype, op in ops if op != "mean" or ("float" in dtype and SIZE != 3)]  # a third is not exact
    given = {dtype: jnp.asarray(of_rank(RANK, dtype=jnp.dtype(dtype))) for dtype in dtypes}
    found = jax.jit(lambda given: {(dtype, op): reduce(given[dtype], op) for dtype, op in ops})(given)
    for (dtype, op), result in found.items():
        assert result.dtype == dtype
        assert np.array_equal(np.asarray(result), of_all(op, dtype=jnp.dtype(dtype))), (dtype, op)
    assert np.array_equal(reduce(given["float32"], "prod"), of_all("prod"))
    flags = jnp.arange(SIZE) == RANK
    assert bool(reduce(flags, "max").all())
    assert bool(reduce(flags, "min").any()) == (SIZE == 1)
    raises("sum of bool is not served", lambda: reduce(flags))
    raises("sum of complex64 is not served", lambda: reduce(jnp.ones(2, jnp.complex64)))
    raises("mean of int32", lambda: reduce(jnp.ones(2, jnp.int32), "mean"))
    raises("op is one of", lambda: reduce(jnp.ones(2), "and"))


@case
def trees_wires_and_nothing() -> None:
    tree = {"a": jnp.full(3, RANK + 1.0), "b": (jnp.int32(RANK), jnp.zeros((0, 2)))}
    found = jax.jit(reduce)(tree)
    assert found["a"].tolist() == [SIZE * (SIZE + 1) / 2] * 3
    assert int(found["b"][0]) == SIZE * (SIZE - 1) // 2
    assert found["b"][1].shape == (0, 2)
    for wire in ("float16", "float8_e4m3"):
        assert jax.jit(partial(reduce, wire=wire))(jnp.full(4, RANK + 1.0)).tolist() == [SIZE * (SIZE + 1) / 2] * 4
    raises("wire is one of float32, float16, bfloat16, float8_e4m3, not 'int8'", lambda: reduce(1.0, wire="int8"))
    raises("wire 'float16' goes with float32", lambda: reduce(jnp.ones(2, jnp.int32), wire="float16"))


@case
def recorded_lines() -> None:
    largest = jax.jit(partial(reduce, op="max"))
    for _ in range(2):
        largest(jnp.ones(2))
        jax.effects_barrier()
        largest(jnp.ones(3))
        jax.effects_barrier()
    first = recorded_lines.__code__.co_firstlineno + 4
    if SIZE > 1:
        assert [call["line"] for call in gf.recorder.calls(4)] == 2 * [first, first + 2]


@case
def derivatives() -> None:
    x = jnp.asarray(of_rank(RANK))
    factor = RANK + 1.0
    for op, expected in (("sum", SIZE * (SIZE + 1) / 2), ("mean", (SIZE + 1) / 2)):
        gradient = jax.jit(jax.grad(lambda x, op=op: (factor * reduce(x, op)).sum()))(x)
        assert np.array_equal(gradient, np.full(x.shape, expected, np.float32)), op
        value, tangent = jax.jvp(lambda x, op=op: reduce(x, op), (x,), (jnp.full_like(x, factor),))
        assert np.array_equal(value, of_all(op)) or SIZE == 3
        assert np.array_equal(tangent, np.full(x.shape, expected, np.float32)), op
        hessian = jax.jit(jax.hessian(lambda x, op=op: (reduce(x, op) ** 2).sum()))(jnp.ones(2))
        assert np.array_equal(hessian, 2 * np.eye(2) * (SIZE**2 if op == "sum" else 1)), op
    raises("has derivatives for sum and mean, not for max", lambda: jax.grad(lambda x: reduce(x, "max").sum())(x))


@case
def control_flow() -> None:
    x = jnp.asarray(of_rank(RANK))
    total = of_all("sum")
    assert np.array_equal(jax.vmap(reduce)(x), total)
    assert np.array_equal(jax.vmap(reduce, in_axes=1, out_axes=1)(x), total)
    assert np.array_equal(jax.jit(lambda x: jax.lax.map(reduce, x))(x), total)
    carry, sums = jax.jit(lambda x: jax.lax.scan(lambda c, row: (c + 1, reduce(row) + c), 0, x))(x)
    assert int(carry) == 5
    assert np.array_equal(sums, total + np.arange(5)[:, None])
    looped = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda i, x: reduce(x) / SIZE, x))(x)
    assert np.allclose(looped, total / SIZE)
    chosen = jax.jit(lambda p, x: jax.lax.cond(p, reduce, lambda x: x, x))
    assert np.array_equal(chosen(True, x), total)
    assert np.array_equal(chosen(False, x), x)
    last = jax.jit(lambda x: jax.lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, reduce(s[1])), (0, x)))(x)
    assert np.array_equal(last[1], total * SIZE)


@case
def saved_by_remat() -> None:
    @jax.checkpoint
    def layer(carry: Any, _: Any) -> Any:
        return jnp.sin(reduce(jnp.sin(carry), "mean")), carry.sum()

    def loss(x: Any, rematerialised: bool) -> Any:
        body = layer if rematerialised else layer.__wrapped__
        return jax.lax.scan(body, x, None, length=3)[1].sum()

    x = jnp.linspace(0, 1 + RANK, 6)
    kept, again = (jax.jit(jax.grad(loss), static_argnums=1)(x, each) for each in (False, True))
    assert np.allclose(kept, again, rtol=1e-6)


@case
def inside_of_shard_map() -> None:
    mesh = Mesh(np.array(jax.local_devices()[:1]), "own")
    spec = PartitionSpec("own")
    mapped = getattr(jax, "shard_map", None)
    if mapped is None:
        from jax.experimental.shard_map import shard_map as mapped
    x = jnp.asarray(of_rank(RANK))
    found = jax.jit(mapped(reduce, mesh=mesh, in_specs=spec, out_specs=spec))(x)
    assert np.array_equal(found, of_all("sum"))


@case
def independent_calls_in_order() -> None:
    """The ranks compare labels, which differ: an order that differs between ranks is an error."""

    @jax.jit
    def many(x: Any) -> Any:
        sums = []
        for number in range(20):
            work = x
            for _ in range((number * 7 + RANK * 3) % 5):
                work = jnp.tanh(work @ work.T) @ work
            sums.append(reduce(x * number + 0 * work, label=f"call {number}"))
        return sums

    x = jnp.asarray(of_rank(RANK))
    for _ in range(5):
        for number, found in enumerate(many(x)):
            assert np.array_equal(found, of_all("sum") * number)


@case
def in_place_where_donated() -> None:
    x = jnp.asarray(np.full(100_000, RANK + 1, np.float32)) + 0
    address = x.unsafe_buffer_pointer()
    found = jax.jit(partial(reduce, op="max"), donate_argnums=0)(x)
    assert found.unsafe_buffer_pointer() == address
    assert float(found[-1]) == SIZE
    kept = jnp.full(1000, RANK + 1.0)
    assert float(reduce(kept, "max")[0]) == SIZE
    assert float(kept[0]) == RANK + 1


@case
def swapped_calls() -> None:
    """Calls of one shape that are made in different orders are an error, and the calls after it are served."""
    if SIZE > 1:
        names = ["a", "b"] if RANK == 0 else ["b", "a"]
        raises("MismatchError", lambda: jax.jit(lambda x: [reduce(x, label=name) for name in names])(jnp.ones(3)))
        gfj.forget_failed_calls()
    assert jax.jit(reduce)(jnp.ones(3)).tolist() == [SIZE] * 3


@case
def refused() -> None:
    devices = jax.local_devices()
    mesh = Mesh(np.array(devices), "own")
    sharded = jax.device_put(jnp.ones(4), NamedSharding(mesh, PartitionSpec("own")))
    largest = partial(reduce, op="max")
    raises("in a program for 2 devices", lambda: jax.jit(largest)(sharded))
    oldest = jax.__version_info__ < (0, 8)  # its pmap refuses by itself
    of_pmap = "not supported in `pmap`" if oldest else "in a program for 2 devices"
    raises(of_pmap, lambda: jax.pmap(largest)(jnp.ones((2, 3))))
    transformation = gfj.average("top_k(ratio=2)", comm=comm)
    state = transformation.init(jnp.ones(4))
    both = jax.jit(lambda x, state: (transformation.update(x, state), largest(x)))
    raises("allreduce and average in one program", lambda: both(jnp.ones(4), state))


@case
def closed() -> None:
    part = comm.split(0)
    program = jax.jit(lambda x: gfj.allreduce(x, "max", comm=part))
    assert program(jnp.ones(2)).tolist() == [1, 1]
    part.close()
    raises("ClosedError", lambda: program(jnp.ones(2)))
    gfj.forget_failed_calls()
    raises("the communicator is closed", lambda: gfj.allreduce(jnp.ones(2), comm=part))


if __name__ == "__main__":
    run_cases(RANK)
    slow = jax.jit(lambda x: reduce(jnp.tanh(x @ x) * 0 + 1, "max"))
    slow(jnp.ones((600, 600)))  # still under way when the program ends
    print(f"the end of {RANK}", flush=True)
    sys.exit()
