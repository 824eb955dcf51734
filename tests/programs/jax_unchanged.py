"""An unchanged program of JAX: every collective and dtype, groups, loops and training, against NumPy or one process."""

from __future__ import annotations

import operator
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import Any
from unittest import SkipTest

import gradientflow as gf

BEFORE = gf.init()  # a communicator of the program's own, made before JAX's

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.experimental import multihost_utils  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from jax_support import MESH, RANK, SIZE, own, run_checks, spread  # noqa: E402
from marks import on_ranks  # noqa: E402

RANKS = range(SIZE)
RING = [(rank, (rank + 1) % SIZE) for rank in RANKS]
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
COMPLEX = ("complex64", "complex128")
NUMBERS = (*INTEGERS, "bfloat16", "float32", "float64", *COMPLEX)
TOLERANCES = {"bfloat16": 0.05, "float32": 1e-5, "complex64": 1e-5, "float64": 1e-12, "complex128": 1e-12}

Parts = list[Any]  # of an array, by rank


def mapped_over(call: Callable[..., Any], *parts: Parts, mesh: Mesh = MESH) -> Any:
    """Return this rank's results of a function that calls collectives over the ranks."""
    axes = P(mesh.axis_names)
    mapped = jax.jit(jax.shard_map(call, mesh=mesh, in_specs=axes, out_specs=axes, check_vma=False))
    return jax.tree.map(own, mapped(*(spread(np.concatenate(each)) for each in parts)))


def same(got: Any, want: Any, tolerance: float = 0.0, what: str = "") -> None:
    """Check dtype, shape and numbers; with a tolerance of 0, all bits but those of NaN."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape), what
    wide: Any = {"c": np.complex128, "f": np.float64, "V": np.float64}.get(want.dtype.kind, want.dtype)
    np.testing.assert_allclose(got.astype(wide), want.astype(wide), tolerance, tolerance, err_msg=what)


def folded(call: Callable[[Any, Any], Any], parts: Parts) -> Any:
    """Fold the parts; integers wrap around."""
    with np.errstate(over="ignore"):
        return reduce(call, parts).astype(parts[0].dtype)


def draw(dtype: str, rows: int) -> Parts:
    """Draw numbers of a dtype, the same on all ranks; integers from its whole range."""
    rng, kind = np.random.default_rng(rows), jnp.dtype(dtype)
    if dtype == "bool":
        return [rng.random((rows, 3)) > 0.5 for _ in RANKS]
    if dtype in INTEGERS:
        limits = np.iinfo(kind)
        return [rng.integers(limits.min, limits.max, (rows, 3), kind, endpoint=True) for _ in RANKS]
    imaginary = 1j if dtype in COMPLEX else 0
    return [(rng.normal(size=(rows, 3)) + imaginary * rng.normal(size=(rows, 3))).astype(kind) for _ in RANKS]


@on_ranks(1, 2, 3)
def check_gathering_exchanging_and_passing_on() -> None:
    dtypes = ("bool", *NUMBERS)
    parts = [draw(dtype, 2 * SIZE) for dtype in dtypes]

    def call(*arrays: Any) -> Any:
        return [
            (
                lax.all_gather(array, "ranks", tiled=True),
                lax.all_to_all(array, "ranks", 0, 0, tiled=True),
                lax.ppermute(array, "ranks", RING),
            )
            for array in arrays
        ]

    for dtype, given, (gathered, exchanged, passed) in zip(dtypes, parts, mapped_over(call, *parts), strict=True):
        same(gathered, np.concatenate(given), what=f"all_gather {dtype}")
        same(exchanged, np.concatenate([np.split(part, SIZE)[RANK] for part in given]), what=f"all_to_all {dtype}")
        same(passed, given[RANK - 1], what=f"ppermute {dtype}")


@on_ranks(1, 2, 3)
def check_sums() -> None:
    parts = [draw(dtype, 2 * SIZE) for dtype in NUMBERS]

    def call(*arrays: Any) -> Any:
        return [(lax.psum(array, "ranks"), lax.psum_scatter(array, "ranks", tiled=True)) for array in arrays]

    for dtype, given, (total, block) in zip(NUMBERS, parts, mapped_over(call, *parts), strict=True):
        want, tolerance = folded(operator.add, given), TOLERANCES.get(dtype, 0.0)
        same(total, want, tolerance, f"psum {dtype}")
        same(block, np.split(want, SIZE)[RANK], tolerance, f"psum_scatter {dtype}")


@on_ranks(2, 3)
def check_largest_and_smallest() -> None:
    dtypes = [dtype for dtype in NUMBERS if dtype not in COMPLEX]
    parts = [draw(dtype, 2) for dtype in dtypes]

    def call(*arrays: Any) -> Any:
        return [(lax.pmax(array, "ranks"), lax.pmin(array, "ranks")) for array in arrays]

    for dtype, given, (most, least) in zip(dtypes, parts, mapped_over(call, *parts), strict=True):
        same(most, folded(np.maximum, given), what=f"pmax {dtype}")
        same(least, folded(np.minimum, given), what=f"pmin {dtype}")


def check_what_jit_divides_by_itself() -> None:
    """Products, any and all, which have no collective of their own in jax.lax."""
    dtypes = [dtype for dtype in NUMBERS if dtype != "bfloat16"]  # which XLA rounds after each factor
    parts, truths = [draw(dtype, 1) for dtype in dtypes], draw("bool", 1)

    @jax.jit
    def call(truth: Any, *arrays: Any) -> Any:
        return jnp.any(truth, 0), jnp.all(truth, 0), [jnp.prod(array, 0, dtype=array.dtype) for array in arrays]

    some, every, products = jax.tree.map(own, call(*(spread(np.concatenate(each)) for each in (truths, *parts))))
    same(some, np.any(truths, 0)[0])
    same(every, np.all(truths, 0)[0])
    for dtype, given, product in zip(dtypes, parts, products, strict=True):
        same(product, folded(operator.mul, given)[0], 10 * TOLERANCES.get(dtype, 0.0), f"prod {dtype}")


@on_ranks(1, 3)
def check_special_values_and_counts() -> None:
    last = np.array([[1.0, -np.inf, np.nan, 0.0]], np.float32)
    odd = [np.ones_like(last) if rank < SIZE - 1 else last for rank in RANKS]
    few = [[np.full((1, count), rank + 40000, np.uint16) for rank in RANKS] for count in (0, 1, 7)]

    def call(array: Any, *counts: Any) -> Any:
        extremes = lax.pmax(array, "ranks"), lax.pmin(array, "ranks")
        return extremes, [(lax.psum(each, "ranks") * jnp.uint16(2)).sum(1, dtype="uint16") for each in counts]

    (most, least), totals = mapped_over(call, odd, *few)
    same(most, folded(np.maximum, odd), what="pmax of NaN")
    same(least, folded(np.minimum, odd), what="pmin of NaN")
    for given, total in zip(few, totals, strict=True):
        same(total, (2 * folded(operator.add, given)).sum(1, dtype=np.uint16), what=f"psum of {given[0].size} uint16")


@on_ranks(2, 3)
def check_large_arrays() -> None:
    """Cyclic messages that are longer than what a connection holds, and a reduction in several pieces."""
    parts = [np.full((SIZE, 1 << 18), rank, np.float64) for rank in RANKS]
    pieces = [np.random.default_rng(rank).integers(0, 1 << 16, (1, 1234567), np.uint16) for rank in RANKS]
    back = [(to, of) for of, to in RING]

    def call(array: Any, piece: Any) -> Any:
        passed = lax.ppermute(array, "ranks", RING), lax.ppermute(array, "ranks", back)
        sums = lax.psum(piece, "ranks"), lax.pmax(piece, "ranks")
        return passed, lax.all_to_all(array, "ranks", 0, 0, tiled=True), sums

    (forth, back_again), exchanged, (total, most) = mapped_over(call, parts, pieces)
    same(forth, parts[RANK - 1])
    same(back_again, parts[(RANK + 1) % SIZE])
    same(exchanged, np.concatenate([part[:1] for part in parts]))
    same(total, folded(operator.add, pieces))
    same(most, folded(np.maximum, pieces))


def check_a_message_to_one_rank() -> None:
    parts = [np.full((1, 4), rank + 1.0) for rank in RANKS]
    found = mapped_over(lambda array: lax.ppermute(array, "ranks", [(0, SIZE - 1)]), parts)
    same(found, parts[0] if RANK == SIZE - 1 else np.zeros((1, 4)))


@on_ranks(2, 3)
def check_groups() -> None:
    if SIZE % 2:
        raise SkipTest("needs an even number of ranks")
    parts = draw("int64", 2)
    pairs = [[rank, rank + 1] for rank in RANKS if rank % 2 == 0]
    halves = [list(RANKS)[::2], list(RANKS)[1::2]]

    def call(array: Any) -> Any:
        total = lax.psum(array, "ranks", axis_index_groups=pairs)
        return total, lax.all_gather(array, "ranks", axis_index_groups=halves, tiled=True)

    total, gathered = mapped_over(call, parts)
    first = RANK // 2 * 2
    same(total, parts[first] + parts[first + 1])
    same(gathered, np.concatenate(parts[RANK % 2 :: 2]))


def check_a_mesh_of_two_axes() -> None:
    if SIZE % 2:
        raise SkipTest("needs an even number of ranks")
    parts, columns = draw("int64", 2), SIZE // 2
    square = Mesh(np.array(jax.devices()).reshape(2, columns), ("row", "column"))

    def call(array: Any) -> Any:
        sums = [lax.psum(array, axes) for axes in ("row", "column", ("row", "column"))]
        return sums, lax.ppermute(array, "row", [(0, 1), (1, 0)])

    (over_rows, over_columns, over_all), passed = mapped_over(call, parts, mesh=square)
    same(over_rows, folded(operator.add, [parts[rank] for rank in RANKS if rank % columns == RANK % columns]))
    same(over_columns, folded(operator.add, [parts[rank] for rank in RANKS if rank // columns == RANK // columns]))
    same(over_all, folded(operator.add, parts))
    same(passed, parts[(RANK + columns) % SIZE])


@on_ranks(2, 3)
def check_calls_in_a_loop() -> None:
    """Each with other numbers; and many that are dispatched before the first result is looked at."""
    parts = [np.random.default_rng(rank).integers(0, 1000, (SIZE, 5000)).astype(np.float64) for rank in RANKS]

    def call(array: Any) -> Any:
        return lax.psum_scatter(array, "ranks", tiled=True), lax.all_gather(array[:1], "ranks", tiled=True)

    mapped = jax.jit(jax.shard_map(call, mesh=MESH, in_specs=P("ranks"), out_specs=P("ranks"), check_vma=False))
    arrays, more = spread(np.concatenate(parts)), jax.jit(lambda array: array + 1)
    block, firsts = np.split(folded(operator.add, parts), SIZE)[RANK], np.concatenate([part[:1] for part in parts])
    wrong = 0
    for k in range(300):
        scattered, gathered = mapped(arrays)
        wrong += not np.array_equal(own(scattered), block + k * SIZE)
        wrong += not np.array_equal(own(gathered), firsts + k)
        arrays = more(arrays)
    assert wrong == 0
    ahead = [mapped(spread(np.concatenate(parts) * k))[0] for k in range(30)]
    assert [np.array_equal(own(scattered), block * k) for k, scattered in enumerate(ahead)] == [True] * 30


@on_ranks(1, 3)
def check_donated_arrays() -> None:
    """Whose memory the result may take."""
    for dtype in ("float32", "uint16", "complex64"):
        parts = [np.full((1, 50000), rank + 1, dtype) for rank in RANKS]
        mapped = jax.shard_map(lambda v: lax.psum(v, "ranks"), mesh=MESH, in_specs=P("ranks"), out_specs=P("ranks"))
        donating, array = jax.jit(mapped, donate_argnums=0), spread(np.concatenate(parts))
        for _ in range(3):
            array = donating(array)
        same(own(array), folded(operator.add, parts) * np.array(SIZE**2, dtype), what=dtype)


@on_ranks(1, 2, 3)
def check_training() -> None:
    """Data parallel under jit, against the same steps in one process."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(24 * SIZE, 8)), rng.normal(size=(24 * SIZE, 2))
    start = [rng.normal(size=shape) / 4 for shape in ((8, 16), (16,), (16, 2), (2,))]

    def loss(weights: Any, x: Any, y: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ weights[0] + weights[1]) @ weights[2] + weights[3] - y) ** 2)

    @jax.jit
    def step(weights: Any, momentum: Any, x: Any, y: Any) -> Any:
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, jax.grad(loss)(weights, x, y))
        return jax.tree.map(lambda w, m: w - 0.05 * m, weights, momentum), momentum

    def train(weights: Any, x: Any, y: Any) -> Any:
        momentum = jax.tree.map(jnp.zeros_like, weights)
        for _ in range(50):
            weights, momentum = step(weights, momentum, x, y)
        return np.concatenate([own(each).ravel() for each in weights])

    everywhere = NamedSharding(MESH, P())
    weights = [jax.make_array_from_callback(each.shape, everywhere, lambda at, each=each: each[at]) for each in start]
    together = train(weights, spread(x), spread(y))
    same(together, train([jnp.asarray(each) for each in start], x, y), 1e-12)
    for other in multihost_utils.process_allgather(together).reshape(SIZE, -1):
        same(other, together)


@on_ranks(2, 3)
def check_communicators_beside() -> None:
    after = gf.init()
    for communicator in (BEFORE, after):
        array = np.full(1000, 1.0 + RANK)
        communicator.allreduce(array)
        same(array, np.full(1000, SIZE * (SIZE + 1) / 2))
    after.close()


@on_ranks(2, 3)
def check_a_thread_beside() -> None:
    """One thread runs programs of JAX while another one uses the program's own communicator."""
    total = jax.jit(jax.shard_map(lambda v: lax.psum(v, "ranks"), mesh=MESH, in_specs=P("ranks"), out_specs=P("ranks")))
    array = spread(np.ones((SIZE, 3000), np.float32))
    with ThreadPoolExecutor(1) as pool:
        sums = pool.submit(lambda: [float(own(total(array)).sum()) for _ in range(100)])
        for _ in range(100):
            numbers = np.ones(500)
            BEFORE.allreduce(numbers)
            same(numbers, np.full(500, float(SIZE)))
        assert sums.result() == [3000.0 * SIZE] * 100


run_checks()
BEFORE.close()
