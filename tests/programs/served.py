"""Strategies on a parameter server in the NumPy loop: against servers and workers in straight lines, states, errors."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import SkipTest

import numpy as np
from loops import make_ready, make_step
from marks import on_ranks
from support import (
    LAYOUTS,
    RANK,
    SIZE,
    flat,
    quick_link,
    raises,
    run_checks,
    same_everywhere,
    scaled,
)
from workers_reference import Floats, Servers, gradient_of, ssd_sgd, ssgd

import gradientflow as gf
from gradientflow.errors import ArgumentError, ArgumentTypeError, MismatchError
from gradientflow.optimizers import LARS, SGD, Adam, LossScale
from gradientflow.strategies import parse_strategy
from gradientflow.training import ArrayLoop

SHAPES = [(40,), (0,), (3, 7), (1,), (2, 300), (5,)]
SIZES = [int(np.prod(shape)) for shape in SHAPES]
START = np.random.default_rng(3).normal(size=sum(SIZES)).astype(np.float32)
RATE, MOMENTUM, DECAY = 0.05, 0.9, 0.01
WAITING = ("ssgd", "asgd", "ssp(2)", "dssp(1, 4)", "elastic_bsp(3)")
DELAYED = "ssd_sgd(k=3, warmup=3)"


def parts_of(flat: Floats) -> list[Floats]:
    parts = np.split(flat, np.cumsum(SIZES)[:-1])
    return [part.reshape(shape).copy() for part, shape in zip(parts, SHAPES, strict=True)]


class Training:
    """A training loop with its optimizer."""

    def __init__(self, comm: gf.Communicator, words: str, dtype: Any = np.float32, **options: Any) -> None:
        rates = {"lr": RATE, "momentum": MOMENTUM, "weight_decay": DECAY}
        rates |= {name: options.pop(name) for name in list(options) if name in rates}
        weights = [part.astype(dtype) for part in parts_of(START)]
        self.loop = ArrayLoop(comm, weights, words, **options)
        self.optimizer = SGD(self.loop, self.loop.weights, **rates)
        self.synchronizer: Any = self.loop.synchronizer

    @property
    def weights(self) -> Floats:
        return flat(self.loop.weights)

    def compute(self, step: int, gradient: Callable[..., Floats] = gradient_of, order: Any = None) -> None:
        """A backward pass, that comes to the tensors in another order on each rank."""
        gradients = parts_of(gradient(RANK, step, self.weights))
        make_ready(self.loop, gradients, np.roll(range(len(SHAPES)), RANK).tolist() if order is None else order)

    def step(self, step: int, gradient: Callable[..., Floats] = gradient_of) -> Floats:
        self.compute(step, gradient)
        self.loop.wait()
        self.optimizer.step()
        return self.weights


@contextmanager
def trained(comm: gf.Communicator, words: str, dtype: Any = np.float32, **options: Any) -> Iterator[Training]:
    training = Training(comm, words, dtype, **options)
    with training.loop:
        yield training


def servers(number: int, inside: bool = True) -> Servers:
    return Servers(START, number, RATE, MOMENTUM, DECAY, inside=inside)


def require_same(found: Floats, wanted: Floats, *what: object) -> None:
    assert np.array_equal(found.view(np.uint32), wanted.view(np.uint32)), (what, np.abs(found - wanted).max())


# ---- the algorithms --------------------------------------------------------------------------------------------------


@on_ranks(1, 2, 3)
def check_ssgd_step_by_step(comm: gf.Communicator) -> None:
    for number in sorted({1, SIZE}):
        expected = ssgd(START, gradient_of, 6, workers=SIZE, servers=servers(number, inside=False))
        with trained(comm, f"ssgd(servers={number})") as training:
            for step, wanted in enumerate(expected):
                require_same(training.step(step), wanted, number, step)
            training.loop.finish()
            require_same(training.weights, expected[-1])


def check_a_learning_rate_that_falls(comm: gf.Communicator) -> None:
    """The rate acts as in PyTorch, and with `dense`; in `ssd_sgd`, unless asked otherwise, as in its paper."""
    for words, inside in (
        ("dense", False),
        ("ssgd", False),
        ("ssgd(optimizer='sgd(rate_in_momentum=True)')", True),
        ("ssd_sgd(1, 8, 'sgd')", True),
        ("ssd_sgd(1, 8, optimizer='sgd')", False),
    ):
        line = servers(1, inside)
        with trained(comm, words) as training:
            for step in range(6):
                line.rate = training.optimizer.lr = RATE * 0.5 ** (step // 2)
                line.apply([gradient_of(rank, step, line.weights) for rank in range(SIZE)])
                found = training.step(step)
                assert np.allclose(found, line.weights, rtol=1e-5, atol=1e-6), (words, step)
            training.loop.finish()


def check_updates_of_adam_are_counted_by_tensor(comm: gf.Communicator) -> None:
    """One that is first used late has the large first steps of Adam then, on servers and with `dense`."""
    found = []
    for words in ("dense", "ssgd(optimizer='adam')"):
        with ArrayLoop(comm, parts_of(START), words) as loop:
            plain = words == "dense"
            optimizer = Adam(loop, loop.weights, 0.01) if plain else SGD(loop, loop.weights, 0.01)
            for step in range(8):
                if plain and step == 5:
                    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
                order = range(len(SHAPES) if step >= 4 else 4)
                make_step(loop, optimizer, parts_of(gradient_of(RANK, step, START)), order)
                if step == 4:
                    assert np.allclose(np.abs(loop.weights[4] - parts_of(START)[4]), 0.01, atol=1e-4)
            loop.finish()
            found.append(flat(loop.weights))
    assert np.allclose(*found, rtol=1e-5, atol=1e-6)


@on_ranks(1, 2, 3)
def check_ssd_sgd_step_by_step(comm: gf.Communicator) -> None:
    """Workers have the weights that they have in straight lines, after every step, and so have the servers."""
    for k, warmup, rule, number, options in (
        (1, 1, "glu", 1, {}),
        (3, 3, "glu", SIZE, {}),
        (5, 5, "glu", SIZE, {"alpha": 1.5, "beta": 0.25}),
        (2, 4, "sgd", 1, {"loc_lr": 0.125}),
        (2, 2, "dc_asgd", SIZE, {"lambda_0": 0.5}),
        (1, 2, "dc_asgd", 1, {}),
        (3, 3, "none", SIZE, {}),
    ):
        arguments = ", ".join(f"{name}={value}" for name, value in options.items())
        words = f"ssd_sgd({k}, {warmup}, {rule!r}, servers={number}, {arguments})"
        local, common = ssd_sgd(
            START,
            gradient_of,
            14,
            workers=SIZE,
            servers=servers(number),
            k=k,
            warmup=warmup,
            rule=rule,
            **options,  # type: ignore[arg-type]
        )
        with trained(comm, words) as training:
            for step, wanted in enumerate(local):
                require_same(training.step(step), wanted[RANK], words, step)
            training.loop.finish()
            require_same(training.weights, common[-1], words)


def check_a_pull_that_comes_while_a_gradient_is_computed(comm: gf.Communicator) -> None:
    """It waits for the local update, however early it comes; so the gradient is that of one set of weights."""
    local, _ = ssd_sgd(START, gradient_of, 8, workers=SIZE, servers=servers(SIZE), k=2, warmup=2)
    with trained(comm, "ssd_sgd(k=2, warmup=2)") as training:
        for step, wanted in enumerate(local):
            before = training.weights
            if step >= 2 and step % 2 == 0 and step > 2:
                until = time.monotonic() + scaled(30)
                make_ready(training.loop, parts_of(gradient_of(RANK, step, before)), [0])
                while not training.synchronizer._pull.done:
                    assert time.monotonic() < until
                require_same(training.weights, before)
                make_ready(training.loop, parts_of(gradient_of(RANK, step, training.weights)), range(1, len(SHAPES)))
                training.loop.wait()
                require_same(training.weights, before)
                training.optimizer.step()
            else:
                training.step(step)
            require_same(training.weights, wanted[RANK], step)
        training.loop.finish()


@on_ranks(1)
def check_one_worker_is_plain_sgd(comm: gf.Communicator) -> None:
    """Bit for bit, at any k: without momentum and weight decay, where the local update is the servers'."""
    if SIZE > 1:
        raise SkipTest("one worker")
    for k in (1, 2, 5):
        plain = START
        with trained(comm, f"ssd_sgd({k}, {k}, 'sgd', loc_lr={RATE})", momentum=0.0, weight_decay=0.0) as training:
            for step in range(12):
                plain = plain - np.float32(RATE) * gradient_of(0, step, plain)
                require_same(training.step(step), plain, k, step)


def check_without_local_updates_gradients_are_one_round_old(comm: gf.Communicator) -> None:
    """With k = 1 it is momentum SGD on the gradients of the weights before."""
    line = servers(1)
    before = now = START
    with trained(comm, "ssd_sgd(1, 1, 'none')") as training:
        for step in range(10):
            line.apply([gradient_of(rank, step, before if step > 1 else now) for rank in range(SIZE)])
            before, now = now, line.weights
            require_same(training.step(step), before if step > 0 else now, step)
        training.loop.finish()
        require_same(training.weights, now)


def check_lars(comm: gf.Communicator) -> None:
    """The servers' local rates are those of the core's optimizer; a rate that nobody would use is refused."""
    found = []
    for words in ("dense", "ssgd(optimizer='lars')", "ssd_sgd(1, 8, 'sgd', optimizer='lars')"):
        with ArrayLoop(comm, parts_of(START), words) as loop:
            optimizer = LARS(loop, loop.weights, RATE, MOMENTUM, DECAY, 0.02)
            for step in range(5):
                make_step(loop, optimizer, parts_of(gradient_of(RANK, step, flat(loop.weights))))
            loop.finish()
            found.append(flat(loop.weights))
    assert np.abs(found[0] - START).max() > 1e-4
    for weights in found[1:]:
        assert np.allclose(weights, found[0], rtol=1e-5, atol=1e-6)
    with ArrayLoop(comm, parts_of(START), "ssgd") as loop, raises(ArgumentError, "optimizer='lars'"):
        LARS(loop, loop.weights, RATE)
    with raises(ArgumentError, "let it be LARS"):
        Training(comm, "ssgd(optimizer='lars')")


def check_adam(comm: gf.Communicator) -> None:
    """The step of Adam in every strategy; a state has all of it, and a run that begins anew has none."""
    rates = {"lr": 0.01, "momentum": 0.0, "weight_decay": DECAY}
    mean: Any = 0.0
    squares: Any = 0.0
    with trained(comm, "ssgd(optimizer='adam')", **rates) as training:
        for again in range(2):
            for step in range(6):
                before = flat(training.loop.weights)
                gradients = [gradient_of(rank, step, before).astype(np.float64) for rank in range(SIZE)]
                g = sum(gradients) / SIZE + DECAY * before
                mean, squares = 0.9 * mean + 0.1 * g, 0.999 * squares + 0.001 * g * g
                corrected = np.sqrt(squares / (1 - 0.999 ** (step + 1))) + 1e-8
                weights = before - 0.01 / (1 - 0.9 ** (step + 1)) * mean / corrected
                found = training.step(step)
                assert np.allclose(found, weights, rtol=1e-4, atol=1e-5), (again, step)
                if step == 2:
                    state, halfway = training.loop.state_dict(), found.copy()
            if not again:
                last, mean, squares = found, 0.0, 0.0
                training.synchronizer.load_state_dict(None)  # begins anew, with these weights
    with trained(comm, "ssgd(optimizer='adam', servers=1)", **rates) as other:
        other.loop.load_state_dict(state)
        require_same(flat(other.loop.weights), halfway)
        for step in range(3, 6):
            other.step(step)
        require_same(other.weights, found)
    assert np.abs(last - START).max() > 1e-3
    for words in ("asgd(", "ssp(2, ", "dssp(1, 4, ", "elastic_bsp(3, ", "ssd_sgd(2, 2, 'sgd', "):
        with trained(comm, f"{words}optimizer='adam')", **rates) as training:
            for step in range(5):
                training.step(step)
            training.loop.finish()
            updates = training.synchronizer.server.state_dict()["updates"]
            assert {int(each) for each, size in zip(updates, SIZES, strict=True) if size} == {
                5 if "ssd" in words else 5 * SIZE
            }
            same_everywhere(training.weights)
    with raises(ArgumentError, "whose momentum is beta1"):
        Training(comm, "ssgd(optimizer='adam')")


# ---- loss scale, and what goes wrong ---------------------------------------------------------------------------------


def check_half_precision_is_trained_in_float32(comm: gf.Communicator) -> None:
    """The servers have the master weights: many steps that are too small for float16 add up."""
    with trained(comm, "ssgd(wire='float32')", np.float16, lr=1e-5, momentum=0.0, weight_decay=0.0) as training:
        before = training.weights
        for step in range(100):
            training.step(step, lambda _rank, _step, weights: np.ones_like(weights))
        wanted = before - np.float32(1e-3)
        assert np.allclose(flat(training.optimizer.masters.values()), wanted, atol=1e-5)
        assert (np.abs(training.weights - wanted) <= np.abs(wanted) * 2**-10 + 1e-6).all()


def check_overflows_of_the_wire_lower_the_loss_scale(comm: gf.Communicator) -> None:
    """A gradient of float32 may be finite until it travels as float16."""

    def large(rank: int, step: int, weights: Floats) -> Floats:
        gradient = gradient_of(rank, step, weights)
        if rank == SIZE - 1 and step == 2:
            gradient[-1] = 40000.0  # which twice is too large
        return gradient

    for words in ("ssgd(wire='float16')", "ssd_sgd(2, 2, 'sgd', wire='float16')"):
        with trained(comm, words, loss_scale=LossScale(2.0)) as training:
            scale = training.loop.loss_scale
            assert scale is not None
            for step in range(6):
                training.step(step, large)
            assert (scale.value, scale.overflows) == (1.0, 1), (words, scale.value)
            training.loop.finish()
            assert np.isfinite(training.weights).all()


@on_ranks(1, 3)
def check_what_does_not_fit(comm: gf.Communicator) -> None:
    if SIZE > 1:
        with raises(MismatchError, "different strategies: strategy is ssd_sgd(k=2, warmup=60) on rank 1 and"):
            ArrayLoop(comm, parts_of(START), f"ssd_sgd({RANK + 1}, 60)")
    with raises(ArgumentTypeError, "float64"):
        Training(comm, "ssgd", np.float64)
    with trained(comm, "ssgd") as training:
        with raises(ArgumentError, "became final twice"):
            training.loop.ready(0)
            training.loop.ready(0)
        training.loop.abandon()
        training.loop.finish()


# ---- states ----------------------------------------------------------------------------------------------------------


@on_ranks(1, 3)
def check_explain(comm: gf.Communicator) -> None:
    with quick_link():
        for words in ("ssd_sgd(k=4, warmup=4)", "ssd_sgd(2, 2, 'none')"):
            found = parse_strategy(words).explain(comm, 100_000, compute_seconds=0.01)
            assert (found.step.own_seconds > 0) == ("k=4" in words)
        pulls = {"ssgd": 1, "ssd_sgd(k=4)": 4}
        sent = [parse_strategy(words).explain(comm, 100_000).step.bytes_sent for words in pulls]
        assert np.isclose(sent[1], sent[0] * (1 + 1 / 4) / 2)


run_checks(LAYOUTS)
