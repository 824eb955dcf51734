"""Methods that exchange weights every few steps, and PowerSGD: the algorithms in straight lines, states, ends."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from loops import array_loop, make_ready, make_step
from marks import on_ranks
from support import LAYOUTS, RANK, SIZE, flat, quick_link, raises, run_checks, same_everywhere

import gradientflow as gf
from gradientflow.errors import MismatchError, NonFiniteError
from gradientflow.optimizers import SGD
from gradientflow.strategies import parse_strategy
from gradientflow.strategies.methods.sparse_loco import decode, encode
from gradientflow.training import ArrayLoop

SHAPES = [(40,), (0,), (30, 20), (1,), (5000,)]
ALL = (
    "local_sgd(period=3)",
    "local_sgd(period=4, delay=2)",
    "diloco(period=4, outer_rate=0.5)",
    "diloco(period=4, nesterov=False)",
    "diloco(period=6, fragments=3, delay=1, mixing=0.25)",
    "sparse_loco(period=3)",
    "powersgd(rank=2, warmup=2)",
    "psgd",
)


def gradients_of(rank: int, step: int) -> list[Any]:
    random = np.random.default_rng([rank, step])
    return [random.standard_normal(shape).astype(np.float32) for shape in SHAPES]


trained = partial(array_loop, shapes=SHAPES, start=0.5, lr=0.125)


def step(training: ArrayLoop, optimizer: SGD, number: int) -> None:
    make_step(training, optimizer, gradients_of(RANK, number))


def check_arrays_are_kept_where_ranks_change(comm: gf.Communicator) -> None:
    """All wait for each other there: none of the size of the model is made."""
    for words in ("local_sgd(period=3)", "diloco(period=4, outer_rate=0.5)"):
        with trained(comm, words) as (training, optimizer):
            step(training, optimizer, 0)
            before: Any = training.synchronizer
            bound: Any = before.strategy.bind(comm, before.layout)
            bound.check_complete()
            assert bound._common is None
            before.close()
            bound.take_over(before)
            assert all(mine is theirs for mine, theirs in zip(bound.common, before.common, strict=True))
            assert bound.gradients[0].ctypes.data == before.gradients[0].ctypes.data
            bound.close()


def check_a_state_that_is_read_within_the_first_step(comm: gf.Communicator) -> None:
    """It is that before the step, and the common weights stay as they are."""
    for words in ALL[:-2]:
        found = []
        for looks in (False, True):
            with trained(comm, words) as (training, optimizer):
                for number in range(7):
                    make_ready(training, gradients_of(RANK, number))
                    training.wait()
                    if looks and number == 0:
                        training.weights[0][...] -= training.gradients[0]
                        common = training.state_dict()["synchronizer"]["common"]
                        assert all((each == 0.5).all() for each in common)
                        training.weights[0][...] += training.gradients[0]
                        with training.common_weights():
                            assert all((each == 0.5).all() for each in training.weights)
                    optimizer.step()
                found.append(flat(training.synchronizer.common))
        same_everywhere(found[1])


# ---- the algorithms --------------------------------------------------------------------------------------------------


@on_ranks(1, 2, 3)
def check_local_sgd(comm: gf.Communicator) -> None:
    with trained(comm, "local_sgd(period=3)") as (training, optimizer):
        weights = np.full((SIZE, sum(map(np.size, training.weights))), 0.5)
        for number in range(7):
            for rank in range(SIZE):
                weights[rank] -= 0.125 * flat(gradients_of(rank, number))
            if number % 3 == 2:
                weights[:] = weights.mean(axis=0)
            step(training, optimizer, number)
            assert np.allclose(flat(training.weights), weights[RANK], atol=1e-6), number
        training.finish()
        same_everywhere(training.weights)
        assert np.allclose(flat(training.weights), weights.mean(axis=0), atol=1e-6)
        before = flat(training.weights)
        training.finish()
        assert np.array_equal(flat(training.weights), before)


@on_ranks(1, 3)
def check_diloco(comm: gf.Communicator) -> None:
    """Nesterov's momentum and the plain one, at once."""
    for nesterov in (True, False):
        words = f"diloco(period=2, outer_rate=0.5, outer_momentum=0.75, nesterov={nesterov})"
        with trained(comm, words) as (training, optimizer):
            common = np.full(sum(map(np.size, training.weights)), 0.5)
            weights, velocity = np.tile(common, (SIZE, 1)), np.zeros_like(common)
            for number in range(8):
                for rank in range(SIZE):
                    weights[rank] -= 0.125 * flat(gradients_of(rank, number))
                if number % 2:
                    difference = (common - weights).mean(axis=0)
                    velocity = 0.75 * velocity + difference
                    common = common - 0.5 * (difference + 0.75 * velocity if nesterov else velocity)
                    weights[:] = common
                step(training, optimizer, number)
                assert np.allclose(flat(training.weights), weights[RANK], atol=1e-5), (nesterov, number)


@on_ranks(1, 3)
def check_streaming_diloco(comm: gf.Communicator) -> None:
    """Fragments take turns, and what has travelled is mixed in later."""
    period, fragments, delay, own = 6, 3, 2, 0.25
    words = f"diloco({period}, 0.5, 0.0, fragments={fragments}, delay={delay}, mixing={own})"
    with trained(comm, words) as (training, optimizer):
        synchronizer: Any = training.synchronizer
        parts = synchronizer._parts
        assert sorted(index for part in parts for index in part) == list(range(len(SHAPES)))
        common = [np.full(shape, 0.5) for shape in SHAPES]
        weights = [[each.copy() for each in common] for _ in range(SIZE)]
        travelling: dict[int, tuple[int, Any]] = {}
        for number in range(20):
            now = number + 1
            for rank in range(SIZE):
                for weight, gradient in zip(weights[rank], gradients_of(rank, number), strict=True):
                    weight -= 0.125 * gradient
            for fragment, part in enumerate(parts):
                if fragment in travelling and travelling[fragment][0] == now:
                    for index, mean in zip(part, travelling.pop(fragment)[1], strict=True):
                        common[index] = common[index] - 0.5 * mean
                        for mine in weights:
                            mine[index] = own * mine[index] + (1 - own) * common[index]
                if (now - fragment * period // fragments) % period == 0:
                    means = [np.mean([common[i] - mine[i] for mine in weights], axis=0) for i in part]
                    travelling[fragment] = (now + delay, means)
            step(training, optimizer, number)
            assert np.allclose(flat(training.weights), flat(weights[RANK]), atol=1e-5), number
        training.finish()
        same_everywhere(training.weights)


@on_ranks(1, 3)
def check_sparse_loco(comm: gf.Communicator) -> None:
    with trained(comm, "sparse_loco(period=2, outer_rate=0.5, decay=0.75)") as (training, optimizer):
        common = [np.full(int(np.prod(shape)), 0.5, np.float32) for shape in SHAPES]
        weights = [[each.copy() for each in common] for _ in range(SIZE)]
        kept = [[np.zeros_like(each) for each in common] for _ in range(SIZE)]
        for number in range(6):
            for rank in range(SIZE):
                for weight, gradient in zip(weights[rank], gradients_of(rank, number), strict=True):
                    weight -= np.float32(0.125) * gradient.reshape(-1)
            if number % 2:
                for index, shared in enumerate(common):
                    total = np.zeros_like(shared)
                    for rank in range(SIZE):
                        left = kept[rank][index]
                        left *= np.float32(0.75)
                        left += shared - weights[rank][index]
                        sent = decode(encode(left), left.size)
                        assert np.count_nonzero(sent) <= 64 * -(-left.size // 4096)
                        left -= sent
                        total += sent
                    shared -= 0.5 * total / SIZE
                    for rank in range(SIZE):
                        weights[rank][index] = shared.copy()
            step(training, optimizer, number)
            assert np.allclose(flat(training.weights), flat(weights[RANK]), atol=1e-5), number
        for mine, theirs in zip(training.synchronizer.residuals, kept[RANK], strict=True):  # type: ignore[attr-defined]
            assert np.allclose(mine, theirs, atol=1e-5)


@on_ranks(1, 2, 3)
def check_powersgd(comm: gf.Communicator) -> None:
    """Only the matrix is approximated, and what the product lacks of its mean comes later."""
    with trained(comm, "powersgd(rank=3, warmup=1)") as (training, optimizer):
        base = training.synchronizer.bases[2].astype(np.float64)  # type: ignore[attr-defined]
        residuals = np.zeros((SIZE, 30, 20))
        for number in range(5):
            everyone = [gradients_of(rank, number) for rank in range(SIZE)]
            wanted = [np.mean([mine[index] for mine in everyone], axis=0) for index in range(len(SHAPES))]
            if number >= 1:
                residuals += [mine[2] for mine in everyone]
                left = np.linalg.qr(np.mean(residuals @ base, axis=0))[0]
                base = np.mean(residuals.transpose(0, 2, 1) @ left, axis=0)
                wanted[2] = left @ base.T
                residuals -= wanted[2]
            step(training, optimizer, number)
            assert np.allclose(flat(training.gradients), flat(wanted), atol=1e-5), number
            same_everywhere(training.gradients)


def check_powersgd_loses_nothing_by_rounding(comm: gf.Communicator) -> None:
    """What was used of the matrix and the mean of what is kept are the mean of its gradients."""
    used = {}
    for wire in (None, "float16"):
        strategy = gf.strategies.PowerSGD(rank=3, warmup=0, wire=wire)
        with trained(comm, strategy) as (training, optimizer):
            used[wire], wanted = np.zeros((30, 20)), np.zeros((30, 20))
            for number in range(6):
                step(training, optimizer, number)
                same_everywhere(training.gradients)
                used[wire] += training.gradients[2]
                wanted += np.mean([gradients_of(rank, number)[2] for rank in range(SIZE)], axis=0)
            kept = comm.allreduce(np.array(training.synchronizer.residuals[2], np.float64), "mean")
            assert np.allclose(used[wire] + kept, wanted, atol=1e-4), wire
    assert np.array_equal(used[None], used["float16"]) == (comm.nodes == 1)


def check_products_that_are_not_finite(comm: gf.Communicator) -> None:
    """Of finite gradients of all ranks, in PowerSGD."""
    with ArrayLoop(comm, [np.ones((64, 64), np.float32)], "powersgd(rank=1, warmup=0)") as training:
        optimizer = SGD(training, training.weights, lr=0.01)
        training.gradients[0][...] = 3e38
        with raises(NonFiniteError, "gradient of 0", "once averaged"), np.errstate(all="ignore"):
            training.ready(0)
            training.wait()
        training.gradients[0][...] = 1
        training.ready(0)
        training.wait()
        optimizer.step()
        synchronizer: Any = training.synchronizer
        assert np.isfinite(flat([*training.weights, *synchronizer.residuals, *synchronizer.bases])).all()
        same_everywhere(training.weights)


def check_weights_that_are_not_finite_in_the_end(comm: gf.Communicator) -> None:
    with trained(comm, "psgd") as (training, optimizer):
        step(training, optimizer, 0)
        if RANK == SIZE - 1:
            training.weights[2][0, 0] = np.nan
        before = flat(training.weights)
        with raises(NonFiniteError, f"value of 2 is not finite on rank {SIZE - 1}", "no weight was changed"):
            training.finish()
        assert np.array_equal(flat(training.weights), before, equal_nan=True)
        np.nan_to_num(training.weights[2], copy=False)
        training.finish()
        same_everywhere(training.weights)


# ---- what is to be told -----------------------------------------------------------------------------------------


def check_ranks_with_different_steps_are_told(comm: gf.Communicator) -> None:
    if SIZE == 1:
        return
    with trained(comm, "local_sgd(period=4)") as (training, optimizer):
        for number in range(3 + (RANK == 0)):
            if number == 3:
                with raises(MismatchError, "after step"):
                    step(training, optimizer, number)
            else:
                step(training, optimizer, number)
        if RANK:
            with raises(MismatchError, "after step"):
                training.finish()


# ---- what is to be expected ------------------------------------------------------------------------------------------


@on_ranks(1, 3)
def check_explain(comm: gf.Communicator) -> None:
    """A view of each method's traffic, with costs as measured."""
    with quick_link():
        for words in ("local_sgd(period=10)", "diloco(period=20, fragments=4, delay=2)", "sparse_loco(period=10)"):
            found = parse_strategy(words).explain(comm, 100_000, compute_seconds=0.01)
            assert found.step.seconds >= found.compute_seconds + found.step.own_seconds
            assert 5 * found.step.bytes_sent <= found.dense.bytes_sent
        with trained(comm, "powersgd(rank=2)") as (training, _):
            found = training.explain(compute_seconds=0.01)
            assert found.parameters == sum(map(np.size, training.weights))
            assert found.step.own_seconds > 0
            assert found.step.bytes_sent < found.dense.bytes_sent or comm.nodes == 1
        found = parse_strategy("powersgd").explain(comm, 3 * 1024**2 + 5)
        assert found.parameters == 3 * 1024**2 + 5
        assert found.step.bytes_sent < found.dense.bytes_sent / 50 or comm.nodes == 1
        found = parse_strategy("psgd").explain(comm, 100_000, compute_seconds=0.01)
        assert found.step.seconds == 0.01
        assert found.step.bytes_sent == 0


run_checks(LAYOUTS)
