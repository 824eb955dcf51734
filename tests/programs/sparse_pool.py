"""The sparse gradient pool: the algorithm in straight lines, nothing lost, the same choice, and what may go wrong."""

from __future__ import annotations

import hashlib
import math
import time
import warnings
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any
from unittest import mock

import numpy as np
from marks import on_ranks
from support import RANK, SIZE, WORLD, in_threads, quick_link, raises, run_checks

import gradientflow as gf
from gradientflow import machine_load
from gradientflow.errors import (
    ArgumentError,
    ArgumentTypeError,
    ClosedError,
    CommunicationTimeoutError,
    MismatchError,
    NonFiniteError,
)
from gradientflow.model.timing import median_seconds_of
from gradientflow.strategies import CSC

from survive.top_chunks_reference import StraightLine

SHAPES: list[Any] = [(3, 5), (7,), (0,), (40,), (2, 30)]
FINE = {"float32": 64, "float16": 4, "bfloat16": 1}  # so large that some of them, added up over all ranks, are exact


def starts(pool: gf.SparseGradientPool) -> list[tuple[int, int]]:
    """Return where each tensor begins and ends, in elements."""
    item = 4 if pool.dtype == "float32" else 2
    return [
        (offset // item, offset // item + math.prod(shape))
        for offset, shape in zip(pool.offsets, pool.shapes, strict=True)
    ]


def elements(pool: gf.SparseGradientPool) -> int:
    return pool.nbytes // (4 if pool.dtype == "float32" else 2)


def draw(pool: gf.SparseGradientPool, seed: Sequence[int], largest: int = 9) -> np.ndarray:
    """Draw gradients of all ranks: multiples of the number of ranks, so that means are exact. The padding is zero."""
    gradients = np.zeros((SIZE, elements(pool)), np.float32)
    random = np.random.default_rng(seed)
    for begin, end in starts(pool):
        gradients[:, begin:end] = SIZE * random.integers(-largest, largest + 1, (SIZE, end - begin))
    return gradients


def write(pool: gf.SparseGradientPool, gradients: np.ndarray) -> None:
    for view, (begin, end) in zip(pool.views, starts(pool), strict=True):
        view[...] = gradients[RANK, begin:end].reshape(view.shape)


def flat(pool: gf.SparseGradientPool) -> np.ndarray:
    """Return all gradients in memory as float32, with the padding."""
    if pool.dtype == "bfloat16":
        return (pool.memory.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return pool.memory.view(pool.dtype).astype(np.float32)


def flat_residuals(pool: gf.SparseGradientPool) -> np.ndarray:
    result = np.zeros(elements(pool), np.float32)
    for residual, (begin, end) in zip(pool.residuals, starts(pool), strict=True):
        result[begin:end] = residual.ravel()
    return result


@on_ranks(1, 2, 3)
def check_straight_line(comm: gf.Communicator) -> None:
    """Everything after every step, bit by bit: gradients, residuals, norms, the choice, weights."""
    for momentum, chunk_size, threshold in ((0.5, 8, 0), (1.0, 33, 256), (0.0, 16, math.inf), (0.5, 1000, 0)):
        pool = gf.SparseGradientPool(
            comm, SHAPES, "float32", 0.3, momentum, chunk_size, extra=2, fusion_threshold=threshold
        )
        reference = StraightLine(elements(pool), chunk_size, momentum, SIZE)
        weights = [np.ones(shape, np.float32) for shape in pool.shapes]
        optimizer = gf.optimizers.SGD(pool, weights, lr=lambda t: 0.5 / (1 + t), momentum=0.5, weight_decay=0.25)
        assert pool.important.all()
        assert pool.spans.tolist() == [[0, elements(pool)]]
        for step in range(8):
            gradients = draw(pool, [chunk_size, step])
            write(pool, gradients)
            pool.extra[:] = RANK, step
            order = np.random.default_rng([step, RANK]).permutation(len(SHAPES) + 1).tolist()
            missing = order.pop() if step % 3 == 2 else None  # which counts as zeros, on this rank
            for index in order:
                pool.ready(index)
            numbers = np.array([[rank, step] for rank in range(SIZE)], np.float64)
            for rank in range(SIZE):
                theirs = np.random.default_rng([step, rank]).permutation(len(SHAPES) + 1).tolist()[-1]
                if step % 3 == 2 and theirs < len(SHAPES):
                    gradients[rank, slice(*starts(pool)[theirs])] = 0
                elif step % 3 == 2:
                    numbers[rank] = 0
            assert pool.ready_count == len(SHAPES) + (missing is None)
            pool.wait()
            optimizer.step()
            used = reference.iterate(gradients, 0.3)
            reference.step(used, 0.5 / (1 + step), 0.5, 0.25)
            assert np.array_equal(flat(pool), used), (momentum, chunk_size, step)
            assert np.array_equal(flat_residuals(pool), reference.residuals[RANK])
            assert pool.sent.tolist() == reference.sent
            assert np.allclose(pool.norms, reference.norms, rtol=1e-6)
            assert pool.important.tolist() == reference.important
            assert pool.extra.tolist() == (numbers.sum(axis=0) / SIZE).tolist()
            for weight, (begin, end) in zip(weights, starts(pool), strict=True):
                assert np.array_equal(weight.ravel(), reference.weights[begin:end])
            covered = [element for begin, end in pool.spans for element in range(begin, end)]
            wanted = [
                element
                for chunk in reference.sent
                for element in range(reference.edges[chunk], reference.edges[chunk + 1])
            ]
            assert covered == wanted
            assert pool.iteration == step + 1
            pool.zero()
            assert not pool.memory.any()
        pool.close()


@on_ranks(1, 3)
def check_nothing_is_lost(comm: gf.Communicator) -> None:
    """With a momentum of 1, what was sent and the residuals are what was put in: exactly, for random pools."""
    random = np.random.default_rng(SIZE)
    for case in range(12):
        shapes = [tuple(random.integers(0, 30, random.integers(1, 3)).tolist()) for _ in range(random.integers(1, 6))]
        dtype = ["float32", "float32", "float16", "bfloat16"][case % 4]
        pool = gf.SparseGradientPool(
            comm, shapes, dtype, float(random.uniform(0.01, 1)), 1.0, int(random.integers(1, 50))
        )
        put_in, sent = np.zeros(elements(pool)), np.zeros(elements(pool))
        for step in range(6):
            gradients = draw(pool, [case, step], FINE[dtype])
            if dtype == "bfloat16":
                for view, (begin, end) in zip(bits_of(pool), starts(pool), strict=True):
                    view[...] = (gradients[RANK, begin:end].view(np.uint32) >> 16).astype(np.uint16)
            else:
                write(pool, gradients)
            pool.ready()
            pool.wait()
            put_in += gradients.sum(axis=0)
            sent += SIZE * flat(pool).astype(np.float64)
            residual = comm.allreduce(flat_residuals(pool).astype(np.float64), "sum")
            assert np.array_equal(sent + residual, put_in), (case, step)
            pool.zero()
        pool.close()


def bits_of(pool: gf.SparseGradientPool) -> list[np.ndarray]:
    memory = pool.memory.view(np.uint16)
    return [memory[begin:end] for begin, end in starts(pool)]


def check_the_same_choice(comm: gf.Communicator, steps: int = 300) -> None:
    """Many steps with hardly any different norms: all ranks choose the same, and end with the same bits."""
    pool = gf.SparseGradientPool(comm, [100, 60], density=0.15, momentum=0.9, chunk_size=4)
    weights = [np.zeros(shape, np.float32) for shape in pool.shapes]
    optimizer = gf.optimizers.SGD(pool, weights, lr=0.01, momentum=0.9)
    random = np.random.default_rng(RANK)
    memory = pool.memory.view(np.float32)
    chosen = hashlib.sha256()
    for step in range(steps):
        kind = step % 4
        if kind == 0:
            memory[:160] = 1.0  # all norms are equal
        elif kind == 1:
            memory[:160] = random.integers(-1, 2, 160)
        elif kind == 2:
            memory[:160] = np.float32(1.0) + (random.integers(0, 2, 160) * np.float32(2**-23))  # nearly
        pool.ready()
        pool.wait()
        optimizer.step()
        chosen.update(pool.important.tobytes())
    chosen.update(np.concatenate(weights).tobytes())
    everybody = comm.allgather(np.frombuffer(chosen.digest(), np.uint8))
    assert (everybody == everybody[0]).all()
    assert all(np.isfinite(weight).all() for weight in weights)


def check_the_same_choice_of_many(comm: gf.Communicator) -> None:
    check_the_same_choice(comm, 10_000 if SIZE == 3 else 1000)


def check_ties(comm: gf.Communicator) -> None:
    """Of equal norms the lower index wins."""
    pool = gf.SparseGradientPool(comm, [160], density=0.2, momentum=1.0, chunk_size=16)
    pool.views[0][...] = 1
    pool.ready()
    pool.wait()
    assert pool.important.tolist() == [True, True] + [False] * 8
    pool.zero()
    pool.views[0][...] = 0
    pool.ready()
    pool.wait()
    assert pool.important.tolist() == [True, True] + [False] * 8  # now all norms are zero


def check_densities(comm: gf.Communicator) -> None:
    """A schedule, the warm-up of the strategy, and a number that was computed with a rounding error."""
    pool = gf.SparseGradientPool(comm, [20 * 16], density=lambda t: 1.0 if t < 2 else 1 - 0.85, chunk_size=16)
    sent = []
    for _ in range(4):
        pool.ready()
        pool.wait()
        sent.append(len(pool.sent))
    assert sent == [20, 20, 3, 3]
    strategy = CSC(density=0.15, warmup=4, chunk_size=16, momentum=0.9)
    assert [strategy.density_at(t) for t in (0, 4, 100)] == [1.0, 0.15, 0.15]
    pool = strategy.make_pool(comm, [20 * 16])
    assert pool.momentum == np.float32(0.9)
    sent = []
    for _ in range(6):
        pool.ready()
        pool.wait()
        sent.append(len(pool.sent))
    assert sent == [20, 16, 12, 8, 3, 3]  # 1 - 0.85 t / 4, rounded up


@on_ranks(1, 3)
def check_not_finite(comm: gf.Communicator) -> None:
    """An infinite or NaN gradient is told on all ranks, with rank and tensor, and changes nothing."""
    culprit = SIZE - 1
    for chunk_size, bad, momentum in ((8, np.nan, 0.5), (1000, np.inf, 0.5), (16, -np.inf, 0.0)):
        pool = gf.SparseGradientPool(comm, SHAPES, density=0.2, momentum=momentum, chunk_size=chunk_size)
        weights = [np.ones(shape, np.float32) for shape in pool.shapes]
        optimizer = gf.optimizers.SGD(pool, weights, lr=0.5)
        for step in range(5):
            write(pool, draw(pool, [step]))
            is_bad = step in (0, 2, 3)
            if is_bad and culprit == RANK:
                pool.views[3][11] = bad
            before, important = flat_residuals(pool), pool.important
            copies = [weight.copy() for weight in weights]
            pool.ready()
            if not is_bad:
                pool.wait()
                optimizer.step()
                pool.zero()
                continue
            with raises(NonFiniteError, f"on rank {culprit}"):
                pool.wait()
            assert pool.overflowed
            assert pool.nonfinite_tensors is not None
            rank, tensors = pool.nonfinite_tensors
            assert rank == culprit
            assert 3 in tensors
            assert len(tensors) == 1 or momentum == 0
            assert not pool.memory.any()
            assert len(pool.spans) == 0
            optimizer.step()
            assert np.array_equal(flat_residuals(pool), before)
            assert np.array_equal(pool.important, important)
            assert all(np.array_equal(a, b) for a, b in zip(weights, copies, strict=True))
        pool.skip_nonfinite = True
        write(pool, draw(pool, [5]))
        pool.views[3][11] = bad
        pool.ready()
        pool.wait()
        assert pool.overflowed
        assert pool.nonfinite_tensors is None  # nobody has looked for it
    pool = gf.SparseGradientPool(comm, [64], "float16", density=1.0)
    if SIZE > 1:  # finite everywhere, and too large to be stored as a mean of what was added up
        pool.views[0][...] = 60000
        pool.ready()
        pool.wait()
        assert np.isfinite(flat(pool)).all()


@on_ranks(1, 2, 3)
def check_loss_scale(comm: gf.Communicator) -> None:
    """Scaled gradients give what unscaled ones do, and a step that overflows is as if it had not been."""
    runs = []
    for scale in (None, gf.optimizers.LossScale(2.0**10, growth_interval=3)):
        for dtype in ("float32", "float16"):
            if scale is None and dtype == "float16":
                continue
            pool = gf.SparseGradientPool(
                comm, [100, 30], dtype, density=0.3, momentum=0.5, chunk_size=8, skip_nonfinite=scale is not None
            )
            weights = [np.ones(shape, np.float32) for shape in pool.shapes]
            own = None if scale is None else gf.optimizers.LossScale(2.0**10, growth_interval=3)
            optimizer = gf.optimizers.SGD(pool, weights, lr=0.125, momentum=0.5, loss_scale=own)
            for step in range(8):
                gradients = draw(pool, [step], 4)
                factor = 1.0 if own is None else own.value
                write(pool, gradients * factor)
                if own is not None and step in (3, 4) and step % SIZE == RANK:
                    pool.views[1][3] = np.nan
                if own is None and step in (3, 4):
                    pool.memory[:] = 0
                    continue
                pool.ready()
                pool.wait()
                assert optimizer.step() == (own is None or step not in (3, 4))
                pool.zero()
            runs.append(np.concatenate(weights))
            if own is not None:
                assert optimizer.overflows == 2
                assert own.value == 2.0**10  # doubled after three steps, halved twice, doubled after three more
    assert np.array_equal(runs[0], runs[1])
    if SIZE & (SIZE - 1) == 0:
        assert np.array_equal(runs[0], runs[2])
    everybody = comm.allgather(runs[2])
    assert (everybody == everybody[0]).all()
    pool = gf.SparseGradientPool(comm, [8])
    with raises(ArgumentError, "power of two"):
        pool.loss_scale = 3.0
    with raises(ArgumentError, "skip_nonfinite"):
        gf.optimizers.SGD(pool, [np.zeros(8, np.float32)], 0.1, loss_scale="dynamic")


def check_master_weights(comm: gf.Communicator) -> None:
    """Weights of 16 bits are what the float32 ones round to; small steps are not lost."""
    pool = gf.SparseGradientPool(comm, [64], "float16", density=0.5, chunk_size=16)
    weights = [np.ones(64, np.float16)]
    optimizer = gf.optimizers.SGD(pool, weights, lr=2.0**-14)
    for _ in range(32):
        pool.views[0][...] = 1
        pool.ready()
        pool.wait()
        optimizer.step()
        pool.zero()
    master = optimizer.state_dict()["master"][0]
    assert np.array_equal(weights[0], master.astype(np.float16))
    assert (master < 1).all()
    assert (weights[0] < 1).any()


def check_threads(comm: gf.Communicator) -> None:
    """Tensors become ready in several threads at once."""
    pool = gf.SparseGradientPool(comm, [50] * 40, density=0.3, momentum=1.0, chunk_size=37, fusion_threshold=512)
    total = np.zeros(elements(pool))
    sent = np.zeros(elements(pool))
    for step in range(10):
        gradients = draw(pool, [step, 7], 64)
        write(pool, gradients)
        in_threads(lambda first: [pool.ready(i) for i in range(first, 40, 4)], range(4))
        pool.wait()
        total += gradients.sum(axis=0)
        sent += SIZE * flat(pool).astype(np.float64)
        pool.zero()
    residual = comm.allreduce(flat_residuals(pool).astype(np.float64), "sum")
    assert np.array_equal(sent + residual, total)


def check_timeout(comm: gf.Communicator) -> None:
    """A wait that ends too early can be repeated; the others do not notice."""
    pool = gf.SparseGradientPool(comm, SHAPES, density=0.4, momentum=0.5, chunk_size=8)
    reference = StraightLine(elements(pool), 8, 0.5, SIZE)
    for step in range(3):
        gradients = draw(pool, [step, 3])
        write(pool, gradients)
        pool.ready()
        if RANK == 0 and SIZE > 1:
            with raises(CommunicationTimeoutError, "it goes on"):
                pool.wait(0.01)
            WORLD.Barrier()
            pool.wait(30)
        else:
            WORLD.Barrier()
            pool.wait()
        assert np.array_equal(flat(pool), reference.iterate(gradients, 0.4))
        assert np.array_equal(flat_residuals(pool), reference.residuals[RANK])
    with raises(ArgumentError, "not a number"):
        pool.wait(math.nan)


@on_ranks(1, 3)
def check_rolling_back(comm: gf.Communicator) -> None:
    """Residuals are as before an iteration that is rolled back: sent chunks and others, under way or at its end."""
    pool = gf.SparseGradientPool(comm, [16] * 4, density=0.5, momentum=0.5, chunk_size=16)
    pool.rollback()  # there is nothing yet
    for step in range(6):
        kept = flat_residuals(pool)
        for index, view in enumerate(pool.views):
            view[...] = 1 + RANK + 4 * index + step
        if step % 2:
            pool.ready(2)
            pool.ready(3)
        else:
            pool.ready()
            pool.wait()
            assert step == 0 or not np.array_equal(flat_residuals(pool), kept)
        pool.rollback()
        assert np.array_equal(flat_residuals(pool), kept)
        assert not pool.memory.any()
        with raises(ArgumentError, "averaged"):
            pool.update()
        for view in pool.views:
            view[...] = RANK + step
        pool.ready()
        pool.wait()
        kept = flat_residuals(pool)
        pool.zero()
        pool.rollback()  # a step has used it
        assert np.array_equal(flat_residuals(pool), kept)


@on_ranks(1, 3)
def check_abandon(comm: gf.Communicator) -> None:
    """A rank gives up: the others get zeros for what it has not sent, it holds on to the rest, and all go on alike."""
    pool = gf.SparseGradientPool(comm, [16, 16, 16, 16], density=0.5, momentum=1.0, chunk_size=16)
    pool.rollback()  # nothing has begun
    assert pool.iteration == 0
    for view in pool.views:
        view[...] = 1
    pool.ready()
    pool.wait()
    pool.zero()
    assert pool.important.tolist() == [True, True, False, False]
    for view in pool.views:
        view[...] = 2
    pool.ready()
    pool.wait()
    pool.zero()
    assert pool.important.tolist() == [True, True, False, False]
    for view in pool.views:
        view[...] = 4
    if RANK == 0 and SIZE > 1:
        pool.views[2][0] = np.nan  # of which who gives up hears nothing
        pool.ready(2)
        with raises(NonFiniteError, "tensor 2"):
            pool.wait()
    elif SIZE > 1:
        pool.ready(1)
        pool.rollback()
    for view in pool.views:
        view[...] = 4
    gives_up = RANK == SIZE - 1
    pool.ready(0)
    if gives_up:
        pool.ready(2)
        pool.rollback()
        assert not pool.memory.any()
        assert len(pool.spans) == 0
        assert [residual.max() for residual in pool.residuals] == [0, 0, 2, 2]
    else:
        pool.ready()
        pool.wait()
        assert (pool.views[0] == 4).all()
        assert np.allclose(pool.views[1], 4 * (SIZE - 1) / SIZE)
        assert [residual.max() for residual in pool.residuals] == [0, 0, 6, 6]
    everybody = comm.allgather(pool.important.astype(np.uint8))
    assert (everybody == everybody[0]).all()
    pool.zero()
    pool.ready()
    pool.wait()
    assert pool.iteration == 4 + (SIZE > 1)


@on_ranks(1, 3)
def check_state(comm: gf.Communicator) -> None:
    """A run that is saved and loaded goes on as one that is not; the sum of the residuals is the same on any ranks."""

    def make() -> tuple[gf.SparseGradientPool, list[np.ndarray], gf.optimizers.SGD]:
        pool = gf.SparseGradientPool(comm, SHAPES, density=0.3, momentum=0.5, chunk_size=16)
        weights = [np.ones(shape, np.float32) for shape in pool.shapes]
        return pool, weights, gf.optimizers.SGD(pool, weights, lr=0.25, momentum=0.5)

    def train(pool: gf.SparseGradientPool, optimizer: gf.optimizers.SGD, steps: range) -> None:
        for step in steps:
            write(pool, draw(pool, [step, 99]))
            pool.ready()
            pool.wait()
            optimizer.step()
            pool.zero()

    pool, weights, optimizer = make()
    train(pool, optimizer, range(4))
    saved, steps, copies = pool.state_dict(), optimizer.state_dict(), [weight.copy() for weight in weights]
    consolidated = pool.consolidated_state_dict()
    train(pool, optimizer, range(4, 8))

    other, others, resumed = make()
    for weight, copy in zip(others, copies, strict=True):
        weight[...] = copy
    other.load_state_dict(saved)
    resumed.load_state_dict(steps)
    assert other.iteration == 4
    train(other, resumed, range(4, 8))
    assert all(np.array_equal(a, b) for a, b in zip(weights, others, strict=True))
    assert np.array_equal(flat_residuals(pool), flat_residuals(other))

    third, _, _ = make()
    third.load_state_dict(consolidated)
    means = [total / np.float32(SIZE) for total in consolidated["residuals"]]
    assert all(np.array_equal(a, b) for a, b in zip(third.residuals, means, strict=True))

    if SIZE > 1:  # onto one rank, and what another rank's state, or another number's, gives
        alone = comm.split(RANK, 0)
        single = gf.SparseGradientPool(alone, SHAPES, density=0.3, momentum=0.5, chunk_size=16)
        single.load_state_dict(consolidated)
        assert all(np.array_equal(a, b) for a, b in zip(single.residuals, means, strict=True))
        with raises(ArgumentError, "consolidated_state_dict"):
            single.load_state_dict(saved)
        with raises(ArgumentError, f"rank {(RANK + 1) % SIZE} of {SIZE}"):
            other.load_state_dict({**saved, "rank": (RANK + 1) % SIZE})
    stranger = gf.SparseGradientPool(comm, [5, 6], chunk_size=4)
    with raises(ArgumentError, "another model"):
        stranger.load_state_dict(saved)
    with raises(ArgumentError, "not the state"):
        stranger.load_state_dict({"residuals": []})
    finer = gf.SparseGradientPool(comm, SHAPES, density=0.3, momentum=0.5, chunk_size=4)
    finer.load_state_dict(saved)
    assert finer.important.all()  # other chunks than those that were chosen
    with raises(ArgumentError, "sizes"):
        gf.optimizers.SGD(stranger, [np.zeros(5, np.float32), np.zeros(6, np.float32)], 0.1).load_state_dict(steps)
    if SIZE > 1:  # states that would make the ranks send different chunks
        with raises(MismatchError, "states of sparse gradient pools"):
            other.load_state_dict({**saved, "iteration": 4 + (RANK == 0)})
    with raises(ArgumentError, "not finite"):
        other.load_state_dict(
            {**saved, "residuals": [residual + np.float32(np.nan) for residual in saved["residuals"]]}
        )
    with raises(ArgumentTypeError, "dictionary"):
        other.load_state_dict(None)  # type: ignore[arg-type]
    scalar = gf.SparseGradientPool(comm, [(), 3], momentum=1.0, chunk_size=1)
    scalar.load_state_dict(scalar.consolidated_state_dict())
    pool.ready(0)
    with raises(ArgumentError, "between iterations"):
        pool.load_state_dict(saved)
    pool.wait()


@on_ranks(1, 3)
def check_states_that_are_refused(comm: gf.Communicator) -> None:
    """Before anything is changed; and where it is collective, on all ranks."""
    pool = gf.SparseGradientPool(comm, [30, 40], chunk_size=16, density=0.5, momentum=1.0)
    for view in pool.views:
        view[...] = RANK + 1
    pool.ready()
    pool.wait()
    pool.set_residuals([np.full(30, 2.0), np.full(40, 3, np.int64)])
    saved = pool.state_dict()
    ones, nan, large, inf = np.ones(40), np.full(30, np.nan), np.full(30, 1e300), np.full(30, -np.inf)
    bad: list[tuple[Any, type[Exception], str]] = [
        ([np.ones(40), np.ones(30)], ArgumentError, "another model: it has tensors of shapes (40,), (30,), this pool"),
        ([np.ones(60), ones], ArgumentError, "another model"),
        ([np.ones((5, 6)), ones], ArgumentError, "another model"),
        ([np.ones(1), np.ones(1)], ArgumentError, "another model"),
        ([np.ones(30)], ArgumentError, "another model"),
        ([], ArgumentError, "another model"),
        ([nan, ones], ArgumentError, "of tensor 0 has numbers that are not finite in float32"),
        ([large, ones], ArgumentError, "of tensor 0 has numbers that are not finite in float32"),
        ([inf, ones], ArgumentError, "not finite"),
        ([np.ones(30, complex), ones], ArgumentTypeError, "of tensor 0 is an array of numbers, not of complex128"),
        (["x" * 30, ones], ArgumentTypeError, "an array of numbers"),
        ([[[1], [2, 3]], ones], ArgumentTypeError, "not an array"),
        (None, ArgumentTypeError, "a sequence of arrays"),
        (3, ArgumentTypeError, "a sequence of arrays"),
    ]
    last = RANK == SIZE - 1
    for residual, kind, words in bad:
        with raises(kind, words):
            pool.set_residuals(residual)
        with raises(kind, words):
            pool.load_state_dict({**saved, "residuals": residual})
        if last:
            with raises(kind, words):
                pool.load_state_dict({**saved, "residuals": residual})
        else:  # a good state, and another rank's is not
            with raises(MismatchError, "states of sparse gradient pools", words[:30]):
                pool.load_state_dict({**saved, "iteration": 7, "residuals": [np.zeros(30), np.zeros(40)]})
        assert pool.iteration == 1
        assert [float(each.max()) for each in pool.residuals] == [2.0, 3.0]
    others: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"important": [0, 2]}, ArgumentError, "a row of True and False"),
        ({"important": "yes"}, ArgumentTypeError, "important"),
        ({"iteration": 1.5}, ArgumentTypeError, "iteration"),
        ({"iteration": -1}, ArgumentError, "iteration"),
        ({"chunk_size": "16"}, ArgumentTypeError, "chunk_size"),
        ({"ranks": 77}, ArgumentError, "of 77"),
    ]
    for change, kind, words in others:
        with raises(kind, words):
            pool.load_state_dict({**saved, **change})
    pool.ready(0)
    with raises(ArgumentError, "between iterations"):
        pool.set_residuals(saved["residuals"])
    pool.wait()
    if SIZE > 1:  # one rank is in the middle of an iteration
        if last:
            pool.ready(0)
            with raises(ArgumentError, "between iterations"):
                pool.load_state_dict(saved)
            pool.rollback()
        else:
            with raises(MismatchError, "between iterations"):
                pool.load_state_dict(saved)
            pool.wait()
    pool.load_state_dict(saved)
    assert pool.iteration == 1
    weights = [np.zeros(20, np.float32), np.zeros(20, np.float16)]  # of two dtypes, so in two pools
    with gf.training.ArrayLoop(comm, weights, CSC(density=0.5, momentum=0.5)) as training:
        kept = training.state_dict()
        half = {**kept["synchronizer"]["pools"]["float16"], "residuals": [np.full(20, np.nan)]}
        wrong = {
            **kept,
            "synchronizer": {**kept["synchronizer"], "pools": {**kept["synchronizer"]["pools"], "float16": half}},
        }
        with raises(ArgumentError, "not finite", "" if last else f"rank {SIZE - 1}: "):
            training.load_state_dict(wrong if last else kept)
        training.load_state_dict(kept)


def check_settings_that_differ(comm: gf.Communicator) -> None:
    if SIZE == 1:
        return
    last = RANK == SIZE - 1
    with raises(MismatchError, "first iteration 7"):
        gf.SparseGradientPool(comm, [64], chunk_size=16, first_iteration=7 if last else 0)
    for skip in (False, True):
        pool = gf.SparseGradientPool(comm, [64], chunk_size=16, density=0.25, momentum=1.0, skip_nonfinite=skip)
        pool.views[0][...] = 1
        pool.ready()
        pool.wait()
        residual = pool.residuals[0].copy()
        pool.loss_scale = 2.0**-3 if last else 4.0
        for value in (1.0, np.inf if last else 1.0):
            pool.views[0][...] = value
            pool.ready()
            with raises(MismatchError, "loss scale 4", f"rank {SIZE - 1}: loss scale 0.125"):
                pool.wait()
            assert not pool.memory.any()
            assert np.array_equal(residual, pool.residuals[0])
        pool.loss_scale = 4.0
        pool.views[0][...] = 4.0
        pool.ready()
        pool.wait()
        assert pool.views[0].max() == 4.0
        assert pool.iteration == 4


def check_bad_input(comm: gf.Communicator) -> None:
    for density in (0, -0.1, 1.0001, math.nan, math.inf):
        with raises(ArgumentError, "above 0 and at most 1"):
            gf.SparseGradientPool(comm, [10], density=density)
        with raises(ArgumentError, "above 0 and at most 1"):
            CSC(density=density)
    with raises(ArgumentTypeError, "density"):
        gf.SparseGradientPool(comm, [10], density="0.1")
    for chunk_size in (0, -4):
        with raises(ArgumentError, "chunk_size"):
            gf.SparseGradientPool(comm, [10], chunk_size=chunk_size)
        with raises(ArgumentError, "chunk_size"):
            CSC(chunk_size=chunk_size)
    for momentum in (-0.1, 1.5, math.nan):
        with raises(ArgumentError, "from 0 to 1"):
            gf.SparseGradientPool(comm, [10], momentum=momentum)
    with raises(ArgumentTypeError, "float64"):
        gf.SparseGradientPool(comm, [10], "float64")
    with raises(ArgumentError, "warmup"):
        CSC(warmup=-1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for strategy, momentum in ((CSC(), 0.0), (CSC(correction=False), 0.9)):
            training = gf.training.ArrayLoop(comm, [np.zeros(10, np.float32)], strategy)
            gf.optimizers.SGD(training, training.weights, lr=0.1, momentum=momentum)
    assert [str(each.message) for each in caught if "lost" in str(each.message)] == [str(caught[0].message)]
    pool = gf.SparseGradientPool(comm, [10, 20], extra=1)
    with raises(ArgumentError, "not in the pool"):
        pool.ready(3)
    pool.ready(-1)
    with raises(ArgumentError, "already ready"):
        pool.ready(2)
    with raises(ArgumentError, "between iterations"):
        pool.zero()
    pool.wait()
    if SIZE > 1:
        with raises(MismatchError, "sparse gradient pools"):
            gf.SparseGradientPool(comm, [10], chunk_size=4 + (RANK == 0))
        unequal = gf.SparseGradientPool(comm, [100], density=lambda t: 0.5 if RANK else 0.25, chunk_size=4)
        with raises(MismatchError, "densities"):
            unequal.wait()
        unequal.close()
    pool.close()
    with raises(ClosedError, "closed"):
        pool.ready(0)
    with raises(ClosedError, "closed"):
        pool.wait()


@on_ranks(1, 3)
def check_empty(comm: gf.Communicator) -> None:
    pool = gf.SparseGradientPool(comm, [0, (0, 3)], extra=1)
    pool.extra[0] = RANK
    pool.ready()
    pool.wait()
    assert pool.extra[0] == (SIZE - 1) / 2
    none = gf.SparseGradientPool(comm, [])
    none.wait()
    assert none.chunks == 0


@on_ranks(1, 3)
def check_explain(comm: gf.Communicator) -> None:
    """It says what is sent, and says "none" where there is no gain."""
    with quick_link():
        found = CSC(density=0.1, chunk_size=1000).explain(comm, 1_000_000, compute_seconds=10.0)
        assert found.parameters == 1_000_000
        assert found.gain <= 1.02
        assert "none" in str(found)
        if comm.nodes == 1:
            assert found.step.bytes_sent == found.dense.bytes_sent == 0
        else:
            assert 0.1 * found.dense.bytes_sent < found.step.bytes_sent < 0.11 * found.dense.bytes_sent
        whole, half = (
            gf.strategies.Dense(wire=wire).explain(comm, 100_000).step.bytes_sent for wire in (None, "float16")
        )
        assert np.isclose(half, whole / 2, rtol=0.01)
        narrow = gf.strategies.Dense().explain(comm, 100_000, dtype="bfloat16")
        assert np.isclose(narrow.step.bytes_sent, whole / 2, rtol=0.01)
        assert narrow.dense.bytes_sent == whole
    with raises(ArgumentError, "parameters"):
        CSC().explain(comm, -1)


def check_explain_on_a_busy_machine(comm: gf.Communicator) -> None:
    """It says so, on all ranks, where others were busy beside one of them; and calls that are measured take turns."""
    for others in (0.0, 1e6 * (RANK == SIZE - 1)):
        is_busy = bool(comm.allreduce(np.array([others]), "max")[0])
        seconds = chain([(0.0, 0.0, 0.0)], repeat((others, 0.0, 0.0)))
        with quick_link(), mock.patch.object(machine_load, "_processor_seconds", side_effect=seconds):
            found = gf.strategies.Dense().explain(comm, 1000)
        assert ("processors busy" in found.remark) == is_busy, found.remark
        assert ("\n  remark:          Others kept" in str(found)) == is_busy, found
    made: list[int] = []
    assert len(median_seconds_of(comm, [lambda: made.append(0), lambda: made.append(1)])) == 2
    assert made == [0, 1] * (len(made) // 2)
    assert len(made) >= 2 * 6
    assert (comm.allgather(np.array([len(made)])) == len(made)).all()


def check_lars(comm: gf.Communicator) -> None:
    """Against the textbook, with the gradients that were sent."""
    rng = np.random.default_rng(3)
    for pool in (
        gf.GradientPool(comm, [50, 20, 8]),
        gf.SparseGradientPool(comm, [50, 20, 8], density=0.4, momentum=0.9, chunk_size=16),
    ):
        weights = [rng.normal(size=shape).astype(np.float32) for shape in pool.shapes]
        weights[2][...] = 0  # whose norm is zero: a local rate of 1
        comm.broadcast(weights[0])
        comm.broadcast(weights[1])
        copies = [weight.astype(np.float64) for weight in weights]
        velocity = [np.zeros(shape) for shape in pool.shapes]
        rate = gf.optimizers.LinearWarmup(0.5, 4)
        optimizer = gf.optimizers.LARS(pool, weights, rate, momentum=0.9, weight_decay=0.01, trust=0.02)
        for step in range(6):
            for view in pool.views:
                view[...] = np.random.default_rng([step, RANK, view.size]).normal(size=view.shape)
            pool.ready()
            pool.wait()
            optimizer.step()
            for index, view in enumerate(pool.views):
                g, w = view.astype(np.float64), copies[index]
                norms = np.linalg.norm(w), np.linalg.norm(g)
                local = 0.02 * norms[0] / (norms[1] + 0.01 * norms[0]) if norms[0] and norms[1] else 1.0
                sent = np.ones(view.shape, bool)
                if isinstance(pool, gf.SparseGradientPool):
                    begin = pool.offsets[index] // 4
                    reached = {e for first, end in pool.spans for e in range(first, end)}
                    sent = np.array([begin + e in reached for e in range(view.size)])
                moved = 0.9 * velocity[index] + rate(step) * local * (g + 0.01 * w)
                velocity[index] = np.where(sent, moved, velocity[index])
                copies[index] = np.where(sent, w - velocity[index], w)
                assert np.allclose(weights[index], copies[index], rtol=2e-5, atol=1e-6), (step, index)
            if isinstance(pool, gf.SparseGradientPool):
                pool.zero()


def check_chunks_end_with_the_last_tensor(comm: gf.Communicator) -> None:
    """What pads its memory is no chunk, nor part of one."""
    for counts, dtype, chunk_size, chunks in (
        ([1000], "float32", 100, 10),
        ([1000, 0], "float16", 100, 10),
        ([32, 1000], "float16", 258, 4),
        ([1000], "float32", 5000, 1),
        ([0, 1], "float32", 1, 1),
        ([0], "float32", 100, 0),
    ):
        pool = gf.SparseGradientPool(comm, counts, dtype, 0.5, 1.0, chunk_size)
        assert len(pool.important) == chunks, (counts, chunk_size)
        for step in range(3):
            for view in pool.views:
                view[...] = RANK + step
            pool.ready()
            pool.wait()
            assert all(end <= elements(pool) for _, end in pool.spans.tolist())
            if step == 0:  # which sends everything
                assert all((view == (SIZE - 1) / 2).all() for view in pool.views)
                assert pool.spans.tolist() == ([[0, elements(pool)]] if chunks else [])
            pool.zero()
        pool.load_state_dict(pool.state_dict())
        pool.close()


def check_lars_at_the_ends_of_float32(comm: gf.Communicator) -> None:
    """Norms whose squares overflow, or vanish, in float32."""
    for weight, gradient in ((1e20, 1.0), (1.0, 1e-25), (1e-25, 1.0), (2e37, 2e37), (1e-44, 1e-44), (1e20, 1e-25)):
        pool = gf.GradientPool(comm, [100, 5000])
        weights = [np.full(shape, weight, np.float32) for shape in pool.shapes]
        first = float(weights[0][0])
        optimizer = gf.optimizers.LARS(pool, weights, lr=0.25, momentum=0.0, trust=0.5)
        for view in pool.views:
            view[...] = gradient
        pool.ready()
        pool.wait()
        optimizer.step()
        step = min(0.125 * first / gradient, float(np.finfo(np.float32).max)) * gradient
        for each in weights:
            assert np.allclose(each, first - step, rtol=1e-5, atol=3e-45), (weight, gradient, each[0])
        pool.close()


@on_ranks(1, 3)
def check_dense_sgd(comm: gf.Communicator) -> None:
    """As PyTorch's, the learning rate outside the momentum; and schedules of it."""
    pool = gf.GradientPool(comm, [(6, 5), 7])
    weights = [np.ones(shape, np.float32) for shape in pool.shapes]
    copies = [weight.copy() for weight in weights]
    velocity = [np.zeros(shape, np.float32) for shape in pool.shapes]
    optimizer = gf.optimizers.SGD(pool, weights, lr=lambda t: 0.5 / (t + 1), momentum=0.5, weight_decay=0.125)
    for step in range(5):
        for view in pool.views:
            view[...] = RANK + step
        pool.ready()
        pool.wait()
        optimizer.step()
        for index, view in enumerate(pool.views):
            direction = view + np.float32(0.125) * copies[index]
            velocity[index] = np.float32(0.5) * velocity[index] + direction
            copies[index] -= np.float32(0.5 / (step + 1)) * velocity[index]
            assert np.array_equal(weights[index], copies[index])
    sparse = CSC(density=0.5, chunk_size=8, correction=False).make_pool(comm, [32])
    weight = np.ones(32, np.float32)
    everywhere = gf.optimizers.SGD(sparse, [weight], lr=0.5, momentum=0.5, correction=False)
    for step in range(3):  # what was not sent counts as zero, and the momentum goes on
        sparse.views[0][...] = np.repeat([4, 3, 2, 1], 8) if step else 1
        sparse.ready()
        sparse.wait()
        everywhere.step()
        sparse.zero()
    assert sparse.residuals[0].max() == 0
    assert weight[::8].tolist() == [1 - 0.5 * total for total in (1 + 4.5 + 6.25, 1 + 3.5 + 4.75, 1.75, 1.75)]
    with raises(ArgumentError, "2 tensors"):
        gf.optimizers.SGD(pool, weights[:1], 0.1)
    with raises(ArgumentError, "elements"):
        gf.optimizers.SGD(pool, [weights[0], np.zeros(8, np.float32)], 0.1)
    with raises(ArgumentTypeError, "float64"):
        gf.optimizers.SGD(pool, [weights[0], np.zeros(7)], 0.1)
    with raises(ArgumentError, "learning rate"):
        gf.optimizers.SGD(pool, weights, -1.0)
    with raises(ArgumentError, "momentum"):
        gf.optimizers.SGD(pool, weights, 0.1, momentum=-1)


def check_time_is_told(comm: gf.Communicator) -> None:
    pool = gf.SparseGradientPool(comm, [100_000], chunk_size=1000)
    begin = time.perf_counter()
    pool.ready()
    pool.wait()
    assert 0 < pool.bookkeeping_seconds < time.perf_counter() - begin
    assert len(pool.reports) > 1
    assert sum(report.nbytes for report in pool.reports[:-1]) >= 400_000


run_checks(
    [{}, {"progress": "thread", "inline_bytes": 0, "streaming_bytes": 1}, {"node_size": 1}],
    once=[check_the_same_choice_of_many],
)
