"""What a step of an optimizer needs: the averaged gradients of an iteration, once; and what an iteration needs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from loops import array_loop, make_step
from marks import on_ranks
from support import RANK, SIZE, raises, run_checks

import gradientflow as gf
from gradientflow.errors import ArgumentError, NonFiniteError, PeerError

Pool = gf.GradientPool | gf.SparseGradientPool


def pools(comm: gf.Communicator) -> Iterator[Pool]:
    yield gf.GradientPool(comm, [40, 24])
    algorithm = "mpi" if comm.describe()["transport"] == "mpi" else "ring"
    yield gf.GradientPool(comm, [40, 24], algorithm=algorithm, fusion_threshold=0)
    yield gf.GradientPool(comm, [70000, 24], fusion_threshold=0)
    yield gf.SparseGradientPool(comm, [40, 24], density=0.5, momentum=0.5, chunk_size=16)


def average(pool: Pool) -> None:
    for view in pool.views:
        view[...] = RANK + 1
    pool.ready()
    pool.wait()


@on_ranks(1, 3)
def check_a_step_needs_averages(comm: gf.Communicator) -> None:
    """Else each rank would use its own gradients, and the weights drift apart."""
    for pool in pools(comm):
        weights = [np.zeros(shape, np.float32) for shape in pool.shapes]
        optimizer = gf.optimizers.SGD(pool, weights, lr=1.0)
        for view in pool.views:
            view[...] = RANK + 1
        with raises(ArgumentError, "the pool has none: ready and wait come before step"):
            optimizer.step()
        pool.ready(0)
        with raises(ArgumentError, "1 of the 2 tensors of the pool are ready, but not averaged"):
            optimizer.step()
        pool.ready(1)
        with raises(ArgumentError, "2 of the 2 tensors"):
            optimizer.step()
        assert optimizer.steps == 0
        assert not any(weight.any() for weight in weights)
        pool.wait()
        assert optimizer.step()
        assert all((weight == -np.float32((SIZE + 1) / 2)).all() for weight in weights)
        pool.views[0][...] = RANK
        with raises(ArgumentError, "made a step with these gradients already"):
            optimizer.step()
        gf.optimizers.SGD(pool, [np.zeros(shape, np.float32) for shape in pool.shapes], lr=1.0).step()
        average(pool)
        assert optimizer.step()
        assert optimizer.steps == 2


def check_dense_refuses_means_that_are_not_finite_if_asked(comm: gf.Communicator) -> None:
    for dtype in ("float32", "float16", "float64"):
        weights = [np.ones(70, dtype), np.ones(3, dtype)]
        loop = gf.training.ArrayLoop(comm, weights, "dense(nonfinite='raise')")
        for is_bad in (True, False):
            for index, gradient in enumerate(loop.gradients):
                gradient[...] = np.inf if is_bad and index == 1 and RANK == SIZE - 1 else 1
                loop.ready(index)
            if is_bad:
                with raises(NonFiniteError, "the gradient of 1 is not finite once averaged: no weight was"):
                    loop.wait()
                assert not any(gradient.any() for gradient in loop.gradients)
            else:
                loop.wait()
                assert all((gradient == 1).all() for gradient in loop.gradients)
    with raises(ArgumentError, "nonfinite is 'raise' or None, not 'skip'"):
        gf.strategies.Dense(nonfinite="skip")
    with raises(ArgumentError, "leave one of them out"):
        gf.strategies.Dense(nonfinite="raise", share="node")


def check_no_step_after_an_iteration_without_result(comm: gf.Communicator) -> None:
    for pool in pools(comm):
        weights = [np.zeros(shape, np.float32) for shape in pool.shapes]
        optimizer = gf.optimizers.SGD(pool, weights, lr=1.0)
        average(pool)
        pool.ready(0)
        pool.rollback()
        with raises(ArgumentError, "the pool has none"):
            optimizer.step()
        if isinstance(pool, gf.SparseGradientPool):
            for spoil in (pool.zero, lambda pool=pool: pool.set_residuals(pool.residuals)):
                average(pool)
                spoil()
                with raises(ArgumentError, "the pool has none"):
                    optimizer.step()
            copies = [weight.copy() for weight in weights]
            pool.views[0][0] = np.nan
            pool.ready()
            with raises(NonFiniteError, "tensor 0"):
                pool.wait()
            optimizer.step()  # with the gradients of nothing, on all ranks
            assert all(np.array_equal(a, b) for a, b in zip(weights, copies, strict=True))
        average(pool)
        assert optimizer.step()


def check_loss_scale(comm: gf.Communicator) -> None:
    """A step that is refused leaves the scale, and one that was skipped has used its gradients, too."""
    for pool in (gf.GradientPool(comm, [8]), gf.SparseGradientPool(comm, [8], chunk_size=4, skip_nonfinite=True)):
        optimizer = gf.optimizers.SGD(pool, [np.zeros(8, np.float32)], lr=1.0, loss_scale="dynamic")
        assert optimizer.loss_scale is not None
        scale = optimizer.loss_scale.value
        pool.views[0][...] = np.inf
        with raises(ArgumentError, "the pool has none"):
            optimizer.step()
        assert (optimizer.loss_scale.value, optimizer.overflows) == (scale, 0)
        pool.ready()
        pool.wait()
        assert not optimizer.step()
        with raises(ArgumentError, "already"):
            optimizer.step()
        assert (optimizer.loss_scale.value, optimizer.overflows) == (scale / 2, 1)


def check_a_step_without_momentum(comm: gf.Communicator) -> None:
    """It leaves the momentum of the steps before as it is, as PyTorch's does; the next ones go on with that."""
    for make in (gf.optimizers.SGD, gf.optimizers.LARS):
        for pool in (gf.GradientPool(comm, [40]), gf.SparseGradientPool(comm, [40], density=1.0, chunk_size=16)):
            weights = [np.zeros(40, np.float32)]
            optimizer = make(pool, weights, lr=0.5, momentum=0.5)
            weight = velocity = 0.0
            for momentum, gradient in ((0.5, 8.0), (0.5, 8.0), (0.0, 1.0), (0.5, 0.0), (0.5, 0.0)):
                before = optimizer.state_dict()["momentum"][0]
                optimizer.momentum = momentum
                pool.views[0][...] = gradient
                pool.ready()
                pool.wait()
                optimizer.step()
                after = optimizer.state_dict()["momentum"][0]
                assert np.array_equal(before, after) == (momentum == 0), (make, momentum, gradient)
                velocity = momentum * velocity + gradient if momentum else velocity
                weight -= 0.5 * (velocity if momentum else gradient)
                assert make is gf.optimizers.LARS or (weights[0] == weight).all()


@on_ranks(1, 2, 3)
def check_a_tensor_that_no_rank_has(comm: gf.Communicator) -> None:
    """A step in a loop leaves it alone, as PyTorch's does without a gradient; with one on any rank it is changed."""
    for make in (gf.optimizers.SGD, gf.optimizers.LARS, gf.optimizers.AdamW):
        weights = [np.ones(40, np.float32), np.ones(24, np.float32)]
        with gf.training.ArrayLoop(comm, weights, "dense") as loop:
            numbers = {} if make is gf.optimizers.AdamW else {"momentum": 0.5}
            optimizer = make(loop, weights, lr=0.5, weight_decay=0.25, **numbers)
            for step, ready in enumerate(((0, 1), (0, 1) if RANK == SIZE - 1 else (0,), (0,), (0, 1))):
                before, state = [each.copy() for each in weights], optimizer.state_dict()
                make_step(loop, optimizer, order=ready)
                now = optimizer.state_dict()
                stays = [np.array_equal(a, b) for a, b in zip(weights, before, strict=True)]
                assert stays == [False, step == 2], (make, step, stays)
                assert np.array_equal(now["momentum"][1], state["momentum"][1]) == (step == 2)
                assert [loop.has_gradient(index) for index in range(2)] == [True, step != 2]
            assert now.get("updates", [4, 3]) == [4, 3]


@on_ranks(1, 3)
def check_adam(comm: gf.Communicator) -> None:
    """As the papers have it, in float64; on the master weights of those of 16 bits; a state goes on, bit for bit."""
    rng = np.random.default_rng(3)
    with raises(ArgumentError, "SparseGradientPool is for gradients of momentum SGD, and does not go with Adam"):
        gf.optimizers.Adam(gf.SparseGradientPool(comm, [8], chunk_size=4), [np.zeros(8, np.float32)])
    for make, decay, decoupled in ((gf.optimizers.Adam, 0.1, 0.0), (gf.optimizers.AdamW, 0.0, 0.1)):
        pool = gf.GradientPool(comm, [40, 24])
        start = [rng.normal(size=shape) for shape in pool.shapes]
        weights = [start[0].astype(np.float32), start[1].astype(np.float16)]
        settings = {"lr": lambda step: 0.01 * (step + 1), "betas": (0.8, 0.99), "eps": 1e-4, "weight_decay": 0.1}
        optimizer = make(pool, weights, **settings)
        others = [weight.copy() for weight in weights]
        other = make(pool, others, **settings)
        expected, mean, square = np.concatenate([weights[0], weights[1]]).astype(np.float64), 0.0, 0.0
        for step in range(1, 6):
            gradient = rng.normal(size=64).astype(np.float32)
            for view, part in zip(pool.views, np.split(gradient, [40]), strict=True):
                view[...] = part
            pool.ready()
            pool.wait()
            assert optimizer.step()
            g = gradient + decay * expected
            mean, square = 0.8 * mean + 0.2 * g, 0.99 * square + 0.01 * g * g
            expected *= 1 - 0.01 * step * decoupled
            root = np.sqrt(square / (1 - 0.99**step)) + 1e-4
            expected -= 0.01 * step * mean / (1 - 0.8**step) / root
            assert np.allclose(np.concatenate([weights[0], optimizer.masters[1]]), expected, 1e-5, 1e-6)
            assert np.array_equal(weights[1], optimizer.masters[1].astype(np.float16))
            if step > 3:
                assert other.step()
                assert all(np.array_equal(a, b) for a, b in zip(weights, others, strict=True))
            if step == 3:
                others[0][...] = weights[0]
                other.load_state_dict(optimizer.state_dict())
                with raises(ArgumentError, "not the state of SGD"):
                    gf.optimizers.SGD(pool, others, 0.1).load_state_dict(optimizer.state_dict())


@on_ranks(1, 3)
def check_an_iteration_of_nobody(comm: gf.Communicator) -> None:
    """All ranks are told that nothing was averaged; where one rank has something, the others need nothing."""
    for pool in pools(comm):
        average(pool)
        residual = [each.copy() for each in pool.residuals] if isinstance(pool, gf.SparseGradientPool) else []
        iteration = pool.iteration
        optimizer = gf.optimizers.SGD(pool, [np.zeros(shape, np.float32) for shape in pool.shapes], lr=1.0)
        with raises(ArgumentError, "no rank made a tensor of the pool ready before it waited"):
            pool.wait()
        with raises(ArgumentError, "the pool has none"):
            optimizer.step()
        assert pool.iteration == iteration + 1
        assert not pool.memory.any()
        if isinstance(pool, gf.SparseGradientPool):
            assert all(np.array_equal(a, b) for a, b in zip(residual, pool.residuals, strict=True))
        for rank in range(SIZE):
            if rank == RANK:
                pool.views[1][...] = 0  # which is something, too
                pool.ready(1)
            pool.wait()
            assert optimizer.step()


def check_a_forgotten_step_is_named(comm: gf.Communicator) -> None:
    """One rank makes fewer steps than others, or one more."""
    for strategy, is_more in itertools.product(("dense", "csc(chunk_size=4)", "lags"), (False, True)):
        steps = 3 + ((RANK == 0) == is_more)
        with array_loop(comm, strategy, shapes=[(40,), (24,)]) as (training, optimizer):
            for _ in range(3):
                make_step(training, optimizer)
            if steps > 3:
                with raises(PeerError, f"in step 4 of rank {RANK}, rank ", "has closed its "):
                    make_step(training, optimizer)


run_checks(
    [{}, {"progress": "thread"}, {"progress": "caller"}, {"node_size": 1}, {"node_size": 2, "inline_bytes": 0}],
    by_mpi=[check_a_step_needs_averages],
)
