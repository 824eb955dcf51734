"""What every strategy promises, in the loop for arrays: a check for each promise, over one table of strategies."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from loops import make_ready, make_step, whole_numbers
from marks import on_ranks
from strategy_turns import TURNS, with_promise
from support import (
    RANK,
    SIZE,
    WORLD,
    flat,
    quick_link,
    raises,
    require_same_state,
    run_checks,
    same_everywhere,
)
from table_of_strategies import PROMISES, Promise

import gradientflow as gf
from gradientflow.errors import AbandonedError, ArgumentError, MismatchError, NonFiniteError
from gradientflow.optimizers import SGD, Adam, LossScale
from gradientflow.strategies import parse_strategy
from gradientflow.strategies.exchange.residual import ResidualSynchronizer
from gradientflow.training import ArrayLoop

SHAPES = [(40,), (0,), (30, 20), (1,), (300,)]
SIZES = [int(np.prod(shape)) for shape in SHAPES]
START, RATE = 0.5, 0.125
LAST = SIZE - 1

gradients_of = partial(whole_numbers, SHAPES, factor=SIZE)


class Training:
    """A training loop with its optimizer."""

    def __init__(
        self, comm: gf.Communicator, promise: Promise, dtype: Any = np.float32, kind: Any = SGD, **options: Any
    ) -> None:
        rates = {"lr": options.pop("lr", RATE)}
        if kind is SGD:
            rates |= {"momentum": promise.momentum}
        rates |= {name: options.pop(name) for name in ("momentum", "weight_decay") if name in options}
        self.loop = ArrayLoop(comm, [np.full(shape, START, dtype) for shape in SHAPES], promise.words, **options)
        self.optimizer = kind(self.loop, self.loop.weights, **rates)
        self.synchronizer: Any = self.loop.synchronizer

    @property
    def weights(self) -> Any:
        return flat(self.loop.weights)

    def kept(self) -> Iterator[Any]:
        """What the strategy has of its own: residuals, momenta, bases, sums, common weights."""
        for name in ("residuals", "kept", "bases", "common", "velocity", "sums", "pre_weights", "mean_squares"):
            yield from getattr(self.synchronizer, name, None) or ()
        for pool in getattr(self.synchronizer, "pools", ()):
            yield from pool.state_dict().get("velocities", ()) if hasattr(pool, "residuals") else ()
        if hasattr(self.synchronizer, "server"):
            for value in self.synchronizer.server.state_dict().values():
                yield from value if isinstance(value, list) else ()

    def residuals(self) -> Any:
        """What is left of the gradients of all ranks."""
        own = getattr(self.synchronizer, "residuals", None) or [()] * len(SIZES)
        own = [
            np.ravel(each) if np.size(each) == size else np.zeros(size) for each, size in zip(own, SIZES, strict=True)
        ]
        return self.loop.comm.allreduce(flat(own), "sum")

    def expect_sum(self, promise: Promise, steps_of: Mapping[int, Sequence[int]]) -> None:
        """What weights have got and what is kept is what the ranks have had, with a rate of 1 and no momentum."""
        total = sum(
            (flat(gradients_of(rank, step)) for rank, steps in steps_of.items() for step in steps), np.zeros(())
        )
        used = (START - self.weights) / self.optimizer.lr * (SIZE if promise.sums == "mean" else 1)
        assert np.allclose(used + self.residuals(), total, atol=1e-2), promise.words

    def compute(self, step: int, order: Any = None, bad: int = -1, value: float = np.nan) -> None:
        """A backward pass, in which one tensor of the last rank may have a value that is not finite."""
        gradients = gradients_of(RANK, step)
        if bad >= 0 and RANK == LAST:
            gradients[bad].reshape(-1)[SIZES[bad] // 2] = value
        make_ready(self.loop, gradients, order)

    def step(self, step: int, **others: Any) -> Any:
        self.compute(step, **others)
        self.loop.wait()
        self.optimizer.step()
        return self.weights

    def state(self) -> Any:
        return copy.deepcopy((self.weights, self.loop.state_dict(), self.optimizer.state_dict()))

    def load(self, state: Any) -> None:
        self.write(state[0])
        self.loop.load_state_dict(state[1])
        self.optimizer.load_state_dict(state[2])

    def write(self, weights: Any) -> None:
        for weight, part in zip(self.loop.weights, np.split(weights, np.cumsum(SIZES)[:-1]), strict=True):
            weight[...] = part.reshape(weight.shape)

    def finish(self) -> Any:
        self.loop.finish()
        same_everywhere(self.loop.weights)
        assert np.isfinite(self.weights).all()
        return self.weights


@contextmanager
def trained(comm: gf.Communicator, promise: Promise, *arguments: Any, **options: Any) -> Iterator[Training]:
    training = Training(comm, promise, *arguments, **options)
    with training.loop:
        yield training


@on_ranks(1, 2, 3)
def check_training_goes_on_bit_for_bit(comm: gf.Communicator, promise: Promise) -> None:
    """From a state, taken after any step, in a loop that has trained something else, however late ranks are.

    Then a state of another rank, of another model and of nothing is refused, and nothing changes.
    """
    for taken in promise.taken:
        with trained(comm, promise) as one, trained(comm, promise) as other:
            for step in range(taken):
                one.step(step)
            if promise.finished:
                one.finish()
            state = one.state()
            other.step(90)  # which is forgotten
            other.load(state)
            for step in range(taken, taken + 5):
                time.sleep(random.random() * 0.002)
                found, wanted = other.step(step), one.step(step)
                assert promise.finished or np.array_equal(found, wanted), (promise.words, taken, step)
            assert np.array_equal(one.finish(), other.finish()), (promise.words, taken)
            if taken != promise.taken[-1] or not promise.is_same:
                continue
            refuse_states(comm, promise, other, state)


def refuse_states(comm: gf.Communicator, promise: Promise, training: Training, state: Any) -> None:
    before = [training.weights, *map(np.array, training.kept())]
    with ArrayLoop(comm, [np.zeros(40, np.float32)], promise.words) as small:
        for loop, of_other in ((training.loop, small.state_dict()), (small, state[1])):
            with raises(ArgumentError, "another model"):
                loop.load_state_dict(of_other)
    if promise.is_ranked or promise.is_served:
        with raises(ArgumentError, f"not the state of {promise.name}"):
            training.loop.load_state_dict({**state[1], "synchronizer": {}})
    if promise.is_ranked and SIZE > 1:
        with raises(ArgumentError, "rank"):
            training.loop.load_state_dict(WORLD.bcast(state[1]))
    assert all(map(np.array_equal, [training.weights, *training.kept()], before)), promise.words
    training.step(50)
    training.finish()


@on_ranks(1, 2, 3)
def check_consolidated_states(comm: gf.Communicator, promise: Promise) -> None:
    """They are the same on all ranks, and have means of what each rank keeps, also where one has skipped a step."""
    kind = Adam if promise.uneven == "told" or promise.silent else SGD
    for scale in (None, "dynamic"):
        with trained(comm, promise, kind=kind, loss_scale=scale) as training, trained(comm, promise) as other:
            for step in range(6 + RANK * (promise.name == "asgd")):
                training.step(step, **({"bad": 0, "value": np.inf} if scale and step == 2 else {}))
            if (promise.uneven == "finish" and promise.name != "psgd" and not promise.is_same) or promise.finished:
                training.finish()
            own = training.optimizer.state_dict()
            whole = copy.deepcopy(training.loop.consolidated_state_dict())
            state = copy.deepcopy(training.optimizer.consolidated_state_dict())
            require_same_state([whole, state], promise.words)
            for mean, mine in zip(state["momentum"], own["momentum"], strict=True):
                assert np.allclose(mean, comm.allreduce(mine.copy(), "mean"), atol=1e-6), promise.words
            left = training.residuals()
            if not scale:
                other.loop.load_state_dict(whole)
                assert np.allclose(other.residuals(), left, rtol=1e-5, atol=1e-4), promise.words
                if promise.is_served:
                    assert np.array_equal(other.weights, flat(whole["synchronizer"]["server"]["weights"]))
                other.step(20)
                other.finish()
            training.loop.load_state_dict(whole)
            training.optimizer.load_state_dict(state)
            require_same_state(training.optimizer.state_dict(), promise.words)
            training.finish()


@on_ranks(2, 3)
def check_other_numbers_of_ranks(comm: gf.Communicator, promise: Promise) -> None:
    """Where gradients are the same on all ranks, a run goes on the same on more ranks, and on fewer."""
    if SIZE == 1:
        return
    with comm.split(int(RANK > 0)) as part:
        if promise.elsewhere is not None:
            _, expected = go_on(comm, promise, 9)
            for before, after in ((comm, part), (part, comm)):
                _, found = go_on(after, promise, 9, WORLD.bcast(go_on(before, promise, 4)))
                close = np.allclose(found, expected, promise.elsewhere, promise.elsewhere)
                assert close, (promise.words, before.size, after.size)


def go_on(comm: gf.Communicator, promise: Promise, end: int, start: Any = None) -> Any:
    """Train from the beginning, or from state and weights after four iterations, and return both."""
    with trained(comm, promise, lr=1.0, momentum=0.0) as training:
        if start is not None:
            training.write(start[1])
            training.loop.load_state_dict(start[0])
        for step in range(0 if start is None else 4, end):
            draw = np.random.default_rng(step)
            make_step(training.loop, training.optimizer, [draw.standard_normal(shape) for shape in SHAPES])
        return training.loop.consolidated_state_dict(), training.weights


@on_ranks(1, 2, 3)
def check_a_loss_scale_changes_nothing(comm: gf.Communicator, promise: Promise) -> None:
    if (
        promise.is_same and promise.words != "lags(max_ratio=50, warmup=1, monitor=True)"
    ):  # whose ratios are of what is measured
        results = []
        for scale in (None, 256.0):
            with trained(comm, promise, loss_scale=scale) as training:
                for step in range(4):
                    training.step(step)
                results.append([training.weights, *map(np.array, training.kept())])
                training.finish()
        assert all(map(np.array_equal, *results)), promise.words


# ---- gradients that are not finite -----------------------------------------------------------------------------------


def told_of(told: list[str], training: Training, attempt: Callable[[], object]) -> None:
    try:
        attempt()
    except NonFiniteError as error:
        told.append(str(error))
        training.loop.abandon()


def expect_told(comm: gf.Communicator, promise: Promise, told: list[str], name: str, *, alone: bool) -> None:
    assert len(told) == (RANK == LAST or not alone), (promise.words, name, told)
    for text in told:
        assert f"is not finite on rank {LAST}:" in text, (promise.words, text)
        assert f" of {name} is" in text or promise.name == "csc", (promise.words, text)  # chunks of several tensors
    if not alone:
        same_everywhere(np.frombuffer(told[0].encode(), np.uint8))


def expect_finite(training: Training) -> None:
    training.finish()
    assert all(np.isfinite(np.asarray(each)).all() for each in training.kept())


@on_ranks(1, 2, 3)
def check_gradients_that_are_not_finite(comm: gf.Communicator, promise: Promise) -> None:
    """The error names tensor and rank, the iteration changes nothing, and training goes on with good gradients."""
    bad, value = ((0, np.nan), (2, -np.inf))[(PROMISES.index(promise) + SIZE) % 2]
    with trained(comm, promise) as training:
        if promise.told == "none":  # gradients are the optimizer's, as with PyTorch's DistributedDataParallel
            training.step(0, bad=2)
            assert promise.is_own or [np.isnan(each).any() for each in training.loop.weights] == [
                False,
                False,
                True,
                False,
                False,
            ]
            return
        told: list[str] = []
        for step in range(6):
            before = [training.weights, *map(np.array, training.kept())]
            given = {"bad": bad, "value": value} if step == 2 else {}
            told_of(told, training, lambda: training.step(step, **given))  # noqa: B023
            if step == 2 and promise.told == "all" and promise.given_up:
                now = [training.weights, *training.kept()]
                assert all(map(np.array_equal, now, before)), promise.words
        told_of(told, training, training.loop.finish)
        expect_told(comm, promise, told, str(bad), alone=promise.told == "one")
        assert not told or training.loop.strategy.gradients != "mean" or "no weight was changed" in told[0]
        expect_finite(training)


@on_ranks(1, 2, 3)
def check_a_loss_scale(comm: gf.Communicator, promise: Promise) -> None:
    """With one, gradients that are not finite are a step that is skipped, and no error; in 16 bits, too."""
    for dtype in (np.float32, np.float16):
        with trained(comm, promise, dtype, lr=2.0**-10, momentum=0.0, loss_scale=LossScale(64.0)) as training:
            scale: Any = training.loop.loss_scale
            for step in range(6):
                before = training.weights
                training.step(step, **({"bad": 2, "value": np.inf} if step == 2 else {}))
                assert step != 2 or not promise.given_up or np.array_equal(training.weights, before), promise.words
            expect_finite(training)
            is_told = RANK == LAST or promise.told != "one"
            assert (scale.value, scale.overflows) == ((32.0, 1) if is_told else (64.0, 0)), (promise.words, dtype)
            if dtype == np.float16:
                masters = flat([training.optimizer.masters[index] for index in range(len(SHAPES))])
                assert np.array_equal(masters.astype(np.float16), training.weights), promise.words
            elif promise.sums is not None:
                good = [0, 1, 3, 4, 5]
                steps_of = {rank: good if promise.told != "one" or rank == LAST else range(6) for rank in range(SIZE)}
                training.expect_sum(promise, steps_of)


@on_ranks(1, 2, 3)
def check_weights_that_are_not_finite(comm: gf.Communicator, promise: Promise) -> None:
    """Where only weights travel, an optimizer's or those that were set: all ranks are told, and can go on."""
    if promise.uneven != "told" or promise.is_own:
        return
    for bad, part, value in ((2, (0, 0), np.inf), (3, ..., np.nan)):
        with trained(comm, promise, momentum=0.0) as training:
            training.step(0)
            if RANK == LAST:
                training.loop.weights[bad][part] = value
            told: list[str] = []
            for step in range(1, 7):
                told_of(told, training, lambda: training.step(step))  # noqa: B023
            told_of(told, training, training.loop.finish)
            expect_told(comm, promise, told, str(bad), alone=False)
            expect_finite(training)


# ---- ranks that differ -----------------------------------------------------------------------------------------------


@on_ranks(1, 2, 3)
def check_an_iteration_that_a_rank_gives_up(comm: gf.Communicator, promise: Promise) -> None:
    """All drop it, or the rank alone; nothing is lost of what was kept, no loss scale falls, and training goes on."""
    for scale in (None, "dynamic"):
        with trained(comm, promise, lr=RATE, momentum=0.0, loss_scale=scale) as training:
            for step in range(4):
                training.step(step)
            weights, left = training.weights, training.residuals() if promise.given_up else None
            if RANK == LAST:
                training.compute(4, order=(2,))
                training.loop.abandon()
            elif not promise.given_up:
                training.step(4)
            else:
                with raises(promise.given_up, "a rank gave up" if promise.is_served else f"rank {LAST}"):
                    training.compute(4)
                    training.loop.wait()
                training.loop.abandon()
            if promise.given_up:
                assert np.array_equal(training.weights, weights), promise.words
                if promise.sums is not None and SIZE > 1:
                    assert np.allclose(training.residuals(), left, atol=1e-3), promise.words
            if scale:
                assert training.loop.loss_scale.overflows == 0, promise.words  # type: ignore[union-attr]
            if promise.uneven == "told" and RANK == LAST:
                training.step(4)
            for step in range(5, 9):
                training.step(step)
                assert not promise.given_up or same_everywhere(training.loop.weights) is None
            training.finish()
            if promise.sums is not None:
                is_dropped = [promise.given_up or (rank == LAST and promise.uneven != "told") for rank in range(SIZE)]
                steps_of = {
                    rank: [0, 1, 2, 3, *([4] if not dropped else []), 5, 6, 7, 8]
                    for rank, dropped in enumerate(is_dropped)
                }
                training.expect_sum(promise, steps_of)


@on_ranks(3)
def check_giving_up_after_an_iteration_that_has_failed(comm: gf.Communicator, promise: Promise) -> None:
    """Where pools refuse an iteration, the next one that a rank gives up is told to all ranks as ever."""
    with trained(comm, promise, loss_scale=8.0) as training:
        if not isinstance(training.synchronizer, ResidualSynchronizer):
            return
        scale: Any = training.loop.loss_scale
        training.step(0)
        scale.value = 8.0 * 2**RANK
        with raises(MismatchError, "loss scale"):
            training.step(1)
        for _ in range(2):  # first without giving up the iteration that has failed, then after that
            scale.value = 8.0
            if RANK == LAST:
                training.compute(2, order=(2,))
                training.loop.abandon()
            else:
                with raises(AbandonedError, f"rank {LAST}"):
                    training.step(2)
                training.loop.abandon()
            scale.value = 8.0 * 2**RANK
            with raises(MismatchError, "loss scale"):
                training.step(3)
            training.loop.abandon()
        scale.value = 8.0
        training.step(4)
        training.finish()


@on_ranks(1, 2, 3)
def check_other_numbers_of_steps(comm: gf.Communicator, promise: Promise) -> None:
    """What weights have got and what is kept is what all ranks had, to the end; training goes on afterwards."""
    with trained(comm, promise, lr=1.0, momentum=0.0) as training:
        if promise.uneven == "told":
            many = dict.fromkeys(range(SIZE), 6)
        else:
            many = {rank: 1 + 2 * rank for rank in range(SIZE)}
        if promise.uneven == "join":
            with training.loop.join():
                for step in range(many[RANK]):
                    training.step(step)
        else:
            with raises(ArgumentError, f"join() does not go with {promise.name}"), training.loop.join():
                pass
            for step in range(many[RANK]):
                training.step(step)
            training.finish()
        if promise.sums is not None:
            training.expect_sum(promise, {rank: range(steps) for rank, steps in many.items()})
        same_everywhere(training.loop.weights)
        training.step(50)
        training.finish()


@on_ranks(2, 3)
def check_ranks_that_are_out_of_batches_take_part(comm: gf.Communicator, promise: Promise) -> None:
    """In what comes after an iteration that all have dropped: not finite, or given up."""
    if promise.uneven != "join" or promise.told == "none":
        return
    with trained(comm, promise) as training:
        told: list[str] = []
        with training.loop.join():
            for step in range(6 if RANK == LAST else 1):
                if step == 3 and promise.given_up is AbandonedError:
                    training.loop.ready(0)
                    training.loop.abandon()
                told_of(told, training, lambda: training.step(step, bad=2 if step == 2 else -1))  # noqa: B023
        assert len(told) == (RANK == LAST), (promise.words, told)
        expect_finite(training)


@on_ranks(2, 3)
def check_ranks_that_disagree(comm: gf.Communicator, promise: Promise) -> None:
    """Strategies and learning rates that differ: all are told, nothing changes, and training goes on."""
    if SIZE == 1:
        return
    with raises(MismatchError, "strategy is" if not promise.is_served else ""):
        words = promise.words if RANK == LAST else "top_k(ratio=9)"
        ArrayLoop(comm, [np.zeros(shape, np.float32) for shape in SHAPES], words)
    if promise.uneven != "join":
        return
    with trained(comm, promise) as training:
        training.step(0)
        before = [training.weights, *map(np.array, training.kept())]
        training.optimizer.lr = RATE / 2 if RANK == LAST else RATE
        with raises(MismatchError, f"the learning rate is {RATE / 2} on rank {LAST} and {RATE} on rank 0"):
            training.step(1)
        training.loop.abandon()
        training.optimizer.lr = RATE
        assert np.array_equal(training.weights, before[0]), promise.words
        training.step(2)
        training.finish()


# ---- weights ---------------------------------------------------------------------------------------------------------


@on_ranks(1, 2, 3)
def check_tensors_that_no_rank_uses(comm: gf.Communicator, promise: Promise) -> None:
    """Neither momentum nor weight decay moves them: one that is never used, and, but for what is kept, one no more."""
    with trained(comm, promise, weight_decay=0.25) as training:
        for step in range(2):
            training.step(step, order=(0, 1, 2, 4))
        training.finish()
        before = [each.copy() for each in training.loop.weights]
        for step in range(2, 6):
            training.step(step, order=(0, 1, 2))
            assert (training.loop.weights[3] == START).all(), promise.words
            assert promise.remembers or np.array_equal(training.loop.weights[4], before[4]), promise.words
        training.finish()
        moved = [not np.array_equal(a, b) for a, b in zip(training.loop.weights, before, strict=True)]
        assert moved[:4] == [True, False, True, False], (promise.words, moved)
        assert promise.remembers or not moved[4], promise.words
        assert (training.loop.weights[3] == START).all(), promise.words


@on_ranks(1, 2, 3)
def check_weights_of_16_bits(comm: gf.Communicator, promise: Promise) -> None:
    """Those that are written before the first step are what all begin with; masters add up steps that are too small."""
    small = 2.0**-13  # which a weight of 1 in float16 does not notice
    with trained(comm, promise, np.float16, momentum=0.0, lr=0.0) as training:
        if promise.uneven != "join":
            training.write(np.ones(sum(SIZES)))
            with training.loop.common_weights():
                assert (training.weights == 1).all(), promise.words
            if promise.uneven == "told":
                of_state = training.loop.state_dict()["synchronizer"]["weights"]
                assert all((each == 1).all() for each in of_state), promise.words
            training.step(0)
            training.finish()
            assert (training.weights == 1).all(), promise.words
        training.optimizer.lr = small
        for _ in range(8):
            make_step(training.loop, training.optimizer)
        training.finish()
        masters = flat([training.optimizer.masters[index] for index in range(len(SHAPES))])
        assert np.array_equal(masters.astype(np.float16), training.weights), promise.words
        same_everywhere(masters)
        if promise.sums is not None and not promise.is_ranked:
            wanted = (START if promise.uneven == "join" else 1.0) - 8 * small * (SIZE if promise.sums == "sum" else 1)
            assert np.allclose(masters, wanted, rtol=0, atol=1e-5), (promise.words, masters, wanted)
        training.load(training.state())


@on_ranks(1, 2, 3)
def check_common_weights(comm: gf.Communicator, promise: Promise) -> None:
    """Ranks train on weights of their own, and evaluate those of all."""
    with trained(comm, promise) as training:
        differ = 0
        for step in range(5):
            own = training.step(step)
            with training.loop.common_weights():
                differ += not np.array_equal(training.weights, own)
                if (promise.is_same and not promise.silent) or SIZE == 1:
                    same_everywhere(training.loop.weights)
            assert not promise.is_same or np.array_equal(training.weights, own), promise.words
        assert SIZE == 1 or not promise.is_same or (differ > 0) == promise.own, (promise.words, differ)
        training.finish()


# ---- what is to be expected ------------------------------------------------------------------------------------------


@on_ranks(1, 2, 3)
def check_explain(comm: gf.Communicator, promise: Promise) -> None:
    strategy = parse_strategy(promise.words)
    if promise.is_own:
        with raises(ArgumentError, f"{promise.name} does not say what it sends"):
            strategy.explain(comm, 10)
        return
    with quick_link():
        found = strategy.explain(comm, 100_000, compute_seconds=0.01)
    assert found.strategy == strategy.name
    assert f"{found.strategy} on " in str(found), promise.words
    if promise.name != "auto":
        assert (found.step.bytes_sent > 0) == (comm.nodes > 1 and not promise.silent), promise.words
        assert found.step.seconds >= 0.01 + found.step.own_seconds or promise.own, promise.words
        assert promise.compute is None or (found.step.own_seconds > 0) == promise.compute, promise.words


run_checks(TURNS, around=with_promise)
