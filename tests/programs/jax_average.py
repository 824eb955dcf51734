"""gradientflow.jax.average on some ranks: every case, by its name, prints a line once it is right."""

from __future__ import annotations

import gc
import os
import pickle
import sys
import tempfile
import weakref
from typing import Any

os.environ["NPROC"] = "8"  # threads of XLA's, which start calls in another order on each rank

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_cases import case, raises, run_cases
from loops import make_ready

import gradientflow as gf
import gradientflow.jax as gfj

comm = gf.init()
RANK, SIZE = comm.rank, comm.size
STRATEGIES = (
    "dense",
    "dense(wire='bfloat16')",
    "dense(wire='float8_e4m3')",
    "dense(fusion_threshold=64)",
    "csc(density=0.3, chunk_size=32, momentum=0.9)",
    "top_k(ratio=8)",
    "top_k(ratio=8, warmup=3)",
    "lags(ratio=8)",
    "dgc(ratio=8)",
    "random_k(ratio=8)",
    "slgs(ratio=8)",
    "powersgd(rank=2, warmup=9)",
)
SHAPES = {"bias": (7,), "first": (20, 30), "nothing": (0, 3), "second": (5, 8)}


def gradients_of(step: int, rank: int = RANK, dtype: Any = np.float32) -> dict[str, Any]:
    random = np.random.default_rng([step, rank])
    return {name: jnp.asarray(random.standard_normal(shape), dtype) for name, shape in SHAPES.items()}


def same(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def by_array_loop(strategy: str, steps: int, dtype: Any = np.float32) -> list[list[np.ndarray]]:
    """Give what the loop for arrays makes of the same gradients."""
    names = [name for name, shape in SHAPES.items() if np.prod(shape)]
    weights = [np.zeros(SHAPES[name], dtype) for name in names]
    found = []
    with gf.training.ArrayLoop(comm, weights, strategy) as loop:
        for step in range(steps):
            given = gradients_of(step, dtype=dtype)
            make_ready(loop, [given[name] for name in names])
            loop.wait()
            found.append([gradient.copy() for gradient in loop.gradients])
            loop.stepped()
    return found


@case
def same_bits_as_the_array_loop() -> None:
    for strategy in STRATEGIES:
        tx = gfj.average(strategy, comm=comm)
        state = tx.init(gradients_of(0))
        update = jax.jit(tx.update, donate_argnums=(0, 1))
        for step, expected in enumerate(by_array_loop(strategy, 5)):
            means, state = update(gradients_of(step), state)
            assert means["nothing"].shape == (0, 3)
            del means["nothing"]
            assert same(list(means.values()), expected), (strategy, step)


@case
def several_dtypes() -> None:
    for strategy in ("top_k(ratio=1)", "dense"):
        tx = gfj.average(strategy, comm=comm)
        given = {"wide": jnp.full(9, SIZE * 2.0**RANK), "half": jnp.full((3, 3), SIZE * 2.0**RANK, jnp.bfloat16)}
        means, _ = jax.jit(tx.update)(given, tx.init(given))
        expected = 2**SIZE - 1
        for name in given:
            assert means[name].dtype == given[name].dtype
            assert np.array_equal(means[name], np.full(given[name].shape, expected, given[name].dtype)), name


@case
def large_gradients_where_they_are() -> None:
    """From 256 KiB on gradients of dense are not copied; with donated buffers they stay in their places."""
    for strategy in ("dense", "dense(wire='float16')"):
        tx = gfj.average(strategy, comm=comm)
        update = jax.jit(tx.update, donate_argnums=0)
        like = {"large": jnp.zeros((300, 300)), "small": jnp.zeros(3), "half": jnp.zeros(1 << 17, jnp.bfloat16)}
        state = tx.init(like)
        for step in range(3):
            given = jax.tree.map(lambda each, step=step: jnp.full_like(each, SIZE * (RANK + step)), like)
            addresses = {name: each.unsafe_buffer_pointer() for name, each in given.items()}
            means, state = update(given, state)
            for name, mean in means.items():
                assert mean.unsafe_buffer_pointer() == addresses[name], (strategy, name)
                assert np.all(np.asarray(mean, np.float32) == SIZE * ((SIZE - 1) / 2 + step)), (strategy, name)


@case
def dense_under_scan() -> None:
    """Several steps in one program, and one by one with donated buffers; as on one rank with the mean."""
    optimizer = optax.chain(gfj.average(comm=comm), optax.adam(0.1))

    def step(carry: Any, gradients: Any) -> Any:
        weights, state = carry
        updates, state = optimizer.update(gradients, state, weights)
        return (optax.apply_updates(weights, updates), state), None

    weights = gradients_of(100, 0)
    many = [gradients_of(step) for step in range(4)]
    stacked = jax.tree.map(lambda *each: jnp.stack(each), *many)
    scanned = jax.jit(lambda carry: jax.lax.scan(step, carry, stacked)[0])
    before = (weights, optimizer.init(weights))
    once = scanned(before)
    carry = jax.tree.map(jnp.copy, before)
    one_by_one = jax.jit(step, donate_argnums=0)
    for gradients in many:
        carry, _ = one_by_one(carry, gradients)
    assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(*map(jax.tree.leaves, (once, carry)), strict=True))
    alone = optax.adam(0.1)

    @jax.jit
    def step_alone(carry: Any, mean: Any) -> Any:
        weights, state = carry
        updates, state = alone.update(mean, state, weights)
        return optax.apply_updates(weights, updates), state

    carry = weights, alone.init(weights)
    for number in range(4):
        mean = jax.tree.map(lambda *each: sum(each) / SIZE, *[gradients_of(number, rank) for rank in range(SIZE)])
        carry = step_alone(carry, mean)
    expected = carry[0]
    for name in expected:
        assert np.allclose(once[0][name], expected[name], atol=1e-5), name


@case
def in_place_where_donated() -> None:
    tx = gfj.average("top_k(ratio=2)", comm=comm)
    gradients = {"w": jnp.full((100, 100), RANK + 1.0) + 0}
    state = jax.tree.map(jnp.copy, tx.init(gradients))  # JAX may have left arrays of NumPy where they are
    addresses = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves((gradients, state))]
    found = jax.jit(tx.update, donate_argnums=(0, 1))(gradients, state)
    assert [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(found)] == addresses


@case
def restored_from_a_checkpoint() -> None:
    """A run goes on bit for bit from a state that was saved, in another transformation, and from one that is older."""
    for strategy in ("csc(density=0.3, chunk_size=32)", "dgc(ratio=8)", "powersgd(rank=2, warmup=1)", "lags", "dense"):
        tx = gfj.average(strategy, comm=comm)
        state = tx.init(gradients_of(0))
        update = jax.jit(tx.update)
        states, means = [state], []
        for step in range(6):
            mean, state = update(gradients_of(step), state)
            states.append(state)
            means.append(mean)
        again, _ = update(gradients_of(3), states[3])  # the same transformation goes back
        assert same(again, means[3]), strategy
        saved = [pickle.loads(pickle.dumps(jax.device_get(states[3])))]
        if SIZE == 3 or strategy == "dense":
            saved += [by_orbax(states[3]), by_flax(states[3])]
        for state in saved:
            new = gfj.average(strategy, comm=comm)
            update_new = jax.jit(new.update)
            for step in range(3, 6):
                mean, state = update_new(gradients_of(step), state)
                assert same(mean, means[step]), (strategy, step)
        fresh, _ = update(gradients_of(0), tx.init(gradients_of(0)))  # and begins anew
        assert same(fresh, means[0]), strategy


def by_orbax(state: Any) -> Any:
    try:
        import orbax.checkpoint as ocp
    except ImportError:
        return state
    with tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(f"{folder}/rank{RANK}", state)
        checkpointer.wait_until_finished()
        return checkpointer.restore(f"{folder}/rank{RANK}", jax.tree.map(jnp.zeros_like, state))


def by_flax(state: Any) -> Any:
    try:
        from flax import serialization
    except ImportError:
        return state
    return serialization.from_bytes(jax.tree.map(jnp.zeros_like, state), serialization.to_bytes(state))


@case
def around_other_transformations() -> None:
    for strategy in ("dense", "top_k(ratio=4)"):
        tx = gfj.average(strategy, comm=comm)
        weights = gradients_of(100, 0)
        optimizers = {
            "accumulated": optax.MultiSteps(optax.chain(tx, optax.sgd(0.1)), 2),
            "skipped": optax.chain(tx, optax.apply_if_finite(optax.sgd(0.1), 5)),
            "masked": optax.chain(optax.masked(tx, {name: name != "bias" for name in SHAPES}), optax.sgd(0.1)),
            "injected": optax.chain(
                tx, optax.inject_hyperparams(optax.sgd)(learning_rate=lambda step: 0.1 / (step + 1))
            ),
        }
        for name, optimizer in optimizers.items():
            if strategy == "dense" and name in ("skipped", "injected"):  # each is compiled for seconds
                continue
            state = optimizer.init(weights)
            program = jax.jit(optimizer.update)
            for step in range(4):
                updates, state = program(gradients_of(step), state, weights)
            kept = {key: value for key, value in updates.items() if name != "masked" or key != "bias"}
            totals = comm.allgather(np.concatenate([np.ravel(each) for each in kept.values()]))
            assert len({row.tobytes() for row in totals.reshape(SIZE, -1)}) == 1, (strategy, name)


@case
def branches_of_states() -> None:
    """Two states that have seen as many calls are told apart."""
    tx = gfj.average("top_k(ratio=8)", comm=comm)
    update = jax.jit(tx.update)
    _, first = update(gradients_of(0), tx.init(gradients_of(0)))
    expected = update(gradients_of(1), first)[0]
    update(gradients_of(2), tx.init(gradients_of(0)))
    assert same(update(gradients_of(1), first)[0], expected)


def later(x: Any, steps: Any) -> Any:
    """Give x after some work, in pieces that XLA gives to several threads."""
    turned = jax.lax.fori_loop(0, steps, lambda _, each: jnp.sin(each @ each), jnp.ones((200, 200)) * x[0])
    for _ in range(6):
        turned = jnp.sin(turned @ turned)
    return x + 0 * turned[0, 0]


@case
def several_states_in_one_program() -> None:
    """XLA starts their calls in another order on each rank, and each call is given the gradients of its own state."""
    for strategy in ("dense", "csc(density=1, chunk_size=100, momentum=1)"):
        tx = gfj.average(strategy, comm=comm)
        inner = jax.jit(tx.update)  # traced once for all states

        @jax.jit
        def step(given: Any, states: Any, work: Any, update: Any = inner) -> Any:
            return [update(later(*each), state) for *each, state in zip(given, work, states, strict=True)]

        states = [tx.init(jnp.zeros(4000)) for _ in range(2)]
        work = [150 * (place == RANK) for place in range(2)]
        for number in range(8):
            given = [jnp.full(4000, SIZE * float(RANK + number + 1000 * place)) for place in range(2)]
            means, states = zip(*step(given, states, work), strict=True)
            for place, mean in enumerate(means):
                assert np.all(np.asarray(mean) == SIZE * ((SIZE - 1) / 2 + number + 1000 * place)), (strategy, place)


@case
def one_state_for_two_calls() -> None:
    """All ranks raise at once; a state that a loop does not pass on is no mistake."""

    def check(strategy: str, ones: Any) -> None:
        tx = gfj.average(strategy, comm=comm)
        inner, made = jax.jit(tx.update), jax.jit(tx.init)
        twice = jax.jit(lambda one, other: (inner(ones, one), inner(2 * ones, other)))
        first, second = tx.init(ones), tx.init(ones)
        copied = jax.tree.map(jnp.copy, first)
        for pair in ((first, copied), (second, second), [inner(ones, first)[1]] * 2, (made(ones), made(ones))):
            raises("MismatchError: a program gives one state of average", lambda pair=pair: twice(*pair))
        (_, first), (_, second) = twice(first, second)
        assert [int(each.token[0]) for each in (first, second)] == [1, 1]

    if SIZE > 1:
        check("dense", jnp.ones(400))
        check("dense", jnp.ones((300, 300)))
    check("top_k(ratio=1)", jnp.ones(400))
    optimizer = optax.MultiSteps(gfj.average("top_k(ratio=1)", comm=comm), 2)
    scanned = jax.jit(lambda kept, many: jax.lax.scan(lambda kept, x: optimizer.update(x, kept)[::-1], kept, many))
    assert jnp.allclose(jnp.sum(scanned(optimizer.init(jnp.ones(9)), jnp.ones((4, 9)))[1], 0), 2)


@case
def shapes_on_one_rank() -> None:
    """Rank 0 alone asks for the shapes of a state: that makes none."""
    tx, given = gfj.average("dense", comm=comm), jnp.full(40, float(RANK))
    if RANK == 0:
        jax.eval_shape(tx.init, given)
    state = tx.init(given)
    assert int(state.token[4]) == 1
    assert np.all(np.asarray(jax.jit(tx.update)(given, state)[0]) == (SIZE - 1) / 2)


@case
def states_made_in_another_order() -> None:
    """Rank 0 has made a state more: it calls with number 3, all others with number 2."""
    if SIZE > 1:
        with gf.init(config=gf.Config(timeout=1)) as other:
            tx = gfj.average("top_k(ratio=8)", comm=other)
            state = [tx.init(jnp.ones(400)) for _ in range(2 + (RANK == 0))][-1]
            said = "has come with that of number 2 only" if RANK == SIZE - 1 else "CommunicationTimeoutError"
            raises(said, lambda: tx.update(jnp.ones(400), state))
            comm.barrier()


@case
def numbers_of_python() -> None:
    tx = gfj.average("top_k(ratio=1)", comm=comm)
    means, _ = jax.jit(tx.update)({"a": jnp.float32(SIZE), "none": None}, tx.init({"a": 1.0, "none": None}))
    assert means == {"a": SIZE, "none": None}


@case
def without_jit() -> None:
    tx = gfj.average("top_k(ratio=1)", comm=comm)
    with jax.disable_jit():
        means, _ = tx.update({"a": jnp.full(3, SIZE * 2.0**RANK)}, tx.init({"a": jnp.ones(3)}))
        total = gfj.allreduce(jnp.ones(3), "max", comm=comm)
    assert means["a"].tolist() == [2**SIZE - 1] * 3
    assert total.tolist() == [1] * 3


@case
def not_finite() -> None:
    bad = gradients_of(0)
    if RANK == 0:
        bad["first"] = bad["first"].at[0, 0].set(np.nan)
    skipping = optax.chain(gfj.average(comm=comm), optax.apply_if_finite(optax.sgd(0.1), 5))
    updates, state = jax.jit(skipping.update)(bad, skipping.init(bad))
    assert not any(np.any(each) for each in jax.tree.leaves(updates))
    assert int(state[1].total_notfinite) == 1
    tx = gfj.average("top_k(ratio=4)", comm=comm)
    update = jax.jit(tx.update)
    state = tx.init(bad)
    raises("NonFiniteError: the gradient of ['first']", lambda: update(bad, state))
    means, _ = update(gradients_of(0), state)
    assert same(means, jax.jit(gfj.average("top_k(ratio=4)", comm=comm).update)(gradients_of(0), state)[0])


@case
def mistakes() -> None:
    for strategy in ("local_sgd", "ssgd"):
        raises("writes weights itself", lambda strategy=strategy: gfj.average(strategy))
    raises("only gradientflow.torch shares weights", lambda: gfj.average("dense(share='node')"))
    tx = gfj.average("top_k(ratio=4)", comm=comm)
    state = tx.init(gradients_of(0))
    other = {"first": jnp.ones((20, 31))}
    raises("that of other gradients", lambda: jax.jit(tx.update)(other, state))
    raises("gets the state of its init", lambda: tx.update(gradients_of(0), ()))
    raises("that of other gradients", lambda: tx.update(gradients_of(0), gfj.AverageState(())))
    raises("int32", lambda: tx.init({"a": jnp.ones(3, jnp.int32)}))
    raises("has no derivative", lambda: jax.grad(lambda g: tx.update(g, state)[0]["first"].sum())(gradients_of(0)))
    batched = jax.tree.map(lambda each: each[None], gradients_of(0))
    raises("not for jax.vmap", lambda: jax.vmap(lambda g: tx.update(g, state)[0])(batched))
    second = gfj.average("top_k(ratio=4)", comm=comm)

    def two(gradients: Any) -> Any:
        return tx.update(gradients, state), second.update(gradients, state)

    raises("two transformations of gradientflow.jax.average", lambda: jax.jit(two)(gradients_of(0)))
    many = jax.vmap(tx.init)(batched)
    raises("that of other gradients", lambda: tx.update(gradients_of(0), many))
    if SIZE > 1:
        dense = gfj.average(comm=comm)
        state = dense.init(gradients_of(0))
        raises("that of other gradients", lambda: jax.jit(dense.update)(other, state))
        ahead = state._replace(token=state.token.at[0].add(RANK))
        raises("states of different calls", lambda: jax.jit(dense.update)(gradients_of(0), ahead))
        fresh = second.init(gradients_of(0))
        ahead = fresh._replace(token=fresh.token.at[0].add(RANK))
        raises("states of different calls", lambda: second.update(gradients_of(0), ahead))
        assert same(second.update(gradients_of(1), fresh)[0], tx.update(gradients_of(1), tx.init(gradients_of(1)))[0])
        large = {"large": jnp.ones((300, 300))}
        state = dense.init(large)
        ahead = state._replace(token=state.token.at[0].add(RANK))
        raises("in call 1", lambda: jax.jit(dense.update)(large, ahead))
        assert same(jax.jit(dense.update)(large, state)[0], large)
        means, _ = jax.jit(dense.update)(other, dense.init(other))
        assert same(means, other)
        for strategy in ("dense", "top_k(ratio=4)"):
            pair = [gfj.average(strategy, comm=comm), gfj.average(strategy, comm=comm)]
            mine = pair[RANK == 1]
            raises("call different transformations", lambda mine=mine: mine.update(other, mine.init(other)))
        mine = gfj.average("lags" if RANK == 1 else "dense", comm=comm)
        said = "strategy is lags on rank 1 and dense on rank 0"
        raises(said, lambda: mine.update(other, mine.init(other)))
    assert jax.jit(dense.update if SIZE > 1 else tx.update)({}, tx.init({}))[0] == {}


@case
def closed() -> None:
    for strategy in ("dense", "top_k(ratio=2)"):
        if strategy == "dense" and SIZE == 1:
            continue
        part = comm.split(0)
        tx = gfj.average(strategy, comm=part)
        update = jax.jit(tx.update)
        _, state = update(gradients_of(0), tx.init(gradients_of(0)))
        if RANK == SIZE - 1:
            part.close()
        what = "ClosedError" if RANK == SIZE - 1 else f"PeerError: rank {SIZE - 1}"
        raises(what, lambda update=update, state=state: update(gradients_of(0), state))
        comm.barrier()
        part.close()


@case
def a_new_state_leaves_the_timeline_alone() -> None:
    """What is made to find out the shapes of a state is no rank 0 of the job."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GRADIENTFLOW_TIMELINE"] = f"{folder}/trace.json"
        gfj.average("top_k(ratio=2)", comm=comm).init(gradients_of(0))
        del os.environ["GRADIENTFLOW_TIMELINE"]
        assert not os.listdir(folder)


@case
def closed_after_the_programs_under_way() -> None:
    """JAX goes on before programs have run; a communicator that is closed waits for the calls that they make."""
    for in_program in ("average", "allreduce"):
        with gf.init() as other:
            tx = gfj.average("csc(density=1, chunk_size=64)", comm=other)

            def step(
                total: Any, state: Any, given: Any, which: str = in_program, part: Any = other, tx: Any = tx
            ) -> Any:
                if which == "average":
                    given, state = tx.update(given, state)
                else:
                    given = gfj.allreduce(given, "mean", comm=part)
                return total + given, state

            compiled = jax.jit(step)
            total, state = jnp.zeros(4000), tx.init(jnp.zeros(4000))
            for number in range(60):
                total, state = compiled(total, state, jnp.full(4000, SIZE * (RANK + float(number))))
        assert np.all(np.asarray(total) == SIZE * (60 * (SIZE - 1) / 2 + 60 * 59 / 2)), in_program


@case
def freed_with_its_programs() -> None:
    tx = gfj.average("top_k(ratio=2)", comm=comm)
    update = jax.jit(tx.update)
    update(gradients_of(0), tx.init(gradients_of(0)))
    made = [each for each in gc.get_objects() if type(each).__name__ == "LayoutExchanges" and hasattr(each, "states")]
    left = weakref.ref(max(made, key=lambda each: each.number))
    del tx, update, made
    jax.clear_caches()
    gc.collect()
    assert left() is None


if __name__ == "__main__":
    run_cases(RANK)
    last = gfj.average("top_k(ratio=2)", comm=comm)
    big = jnp.ones((600, 600))
    update = jax.jit(lambda g, state: last.update(jnp.tanh(g @ g), state))
    states = [last.init(big), last.init(big)]
    for _ in range(4):  # under way when the program ends, and on some ranks still to begin
        states = [update(big, state)[1] for state in states]
    print(f"the end of {RANK}", flush=True)
    sys.exit()
