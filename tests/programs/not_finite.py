"""Gradients that are infinite or NaN on one rank, under every strategy: who is told, and that nothing keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle, product
from typing import Any
from unittest import SkipTest

import numpy as np
from support import RANK, SIZE, raises, run_checks

import gradientflow as gf
from gradientflow.errors import NonFiniteError
from gradientflow.optimizers import SGD
from gradientflow.training import ArrayLoop

SHAPES = [(40,), (64, 64), (0,), (50, 30), (7,)]
CULPRIT = SIZE - 1
STEPS, BAD = 7, 2  # of them the one with a gradient that is not finite

TOGETHER = (  # all ranks are told
    "csc(density=0.5, chunk_size=64, momentum=1.0)",
    "top_k(ratio=4)",
    "random_k(ratio=4)",
    "lags(ratio=4)",
    "slgs(ratio=4)",
    "dgc(ratio=4)",
    "powersgd(rank=1, warmup=0)",
    "powersgd(rank=1, warmup=5)",
    "ssgd",
    "ssd_sgd(k=1, warmup=1, local_update='sgd')",
    "ssd_sgd(k=2, warmup=2)",
    "ssd_sgd(k=2, warmup=2, local_update='dc_asgd')",
)
EXCHANGED = (  # weights; of gradients only the rank is told that has it
    "local_sgd(period=1)",
    "local_sgd(period=3, delay=1)",
    "diloco(period=2)",
    "diloco(period=3, fragments=2, delay=1, mixing=0.25)",
    "sparse_loco(period=1, decay=1.0)",
    "sparse_loco(period=2)",
)
ALONE = (*EXCHANGED, "psgd", "hpsgd", "asgd", "ssp(3)", "dssp(1, 3)", "elastic_bsp(4)")


def gradient_of(index: int, step: int) -> Any:
    return np.random.default_rng([RANK, index, step]).standard_normal(SHAPES[index]).astype(np.float32)


def kept_by(synchronizer: Any) -> Iterator[Any]:
    """What a strategy has of its own: residuals, momenta, bases, sums, common weights."""
    names = ("residuals", "kept", "bases", "common", "velocity", "sums", "pre_weights", "mean_squares")
    for name in names:
        yield from getattr(synchronizer, name, None) or ()
    for pool in getattr(synchronizer, "pools", ()):
        yield from pool.state_dict().get("velocities", ()) if hasattr(pool, "residuals") else ()
    if hasattr(synchronizer, "server"):
        state = synchronizer.server.state_dict()
        for value in state.values():
            yield from value if isinstance(value, list) else ()


def told_of(told: list[str], attempt: Callable[[], object], give_up: Callable[[], object]) -> None:
    try:
        attempt()
    except NonFiniteError as error:
        told.append(str(error))
        give_up()


def expect_told(comm: gf.Communicator, words: str, told: list[str], name: str, alone: bool) -> None:
    assert len(told) == (RANK == CULPRIT or not alone), (words, name, told)
    for text in told:
        assert f"is not finite on rank {CULPRIT}:" in text, (words, text)
        assert f" of {name} is" in text or words.startswith("csc"), (words, text)  # chunks may have several tensors
    if not alone:
        mine = np.frombuffer(told[0].encode(), np.uint8)
        assert (comm.broadcast(mine.copy()) == mine).all(), "the same on all ranks"


def expect_clean(comm: gf.Communicator, words: str, weights: Any, synchronizer: Any) -> None:
    for array in [*weights, *kept_by(synchronizer)]:
        assert np.isfinite(np.asarray(array)).all(), words
    mine = np.concatenate([np.asarray(weight).reshape(-1) for weight in weights])
    assert (comm.allgather(mine).reshape(SIZE, -1) == mine).all(), words


# ---- in the loop for arrays ------------------------------------------------------------------------------------------


def train(training: ArrayLoop, optimizer: SGD, step: int, bad: int, value: float) -> None:
    for index, gradient in enumerate(training.gradients):
        gradient[...] = (training.loss_scale.value if training.loss_scale else 1) * gradient_of(index, step)
        if step == BAD and RANK == CULPRIT and index == bad:
            gradient.reshape(-1)[gradient.size // 2] = value
        training.ready(index)
    training.wait()
    optimizer.step()


def check_arrays(comm: gf.Communicator) -> None:
    """The error names tensor and rank; training goes on with good gradients, and what is kept is finite."""
    for words, (bad, value) in product(TOGETHER + ALONE, ((0, np.nan), (3, -np.inf))):
        with ArrayLoop(comm, [np.ones(shape, np.float32) for shape in SHAPES], words) as training:
            optimizer = SGD(training, training.weights, lr=0.01)
            told: list[str] = []
            for step in range(STEPS):
                told_of(told, lambda: train(training, optimizer, step, bad, value), training.abandon)  # noqa: B023
            told_of(told, training.finish, training.abandon)
            expect_told(comm, words, told, str(bad), words in ALONE)
            if told and training.strategy.gradients == "mean":
                assert "no weight was changed" in told[0]
            training.finish()
            expect_clean(comm, words, training.weights, training.synchronizer)


def check_nothing_is_changed(comm: gf.Communicator) -> None:
    """Neither weights nor what is kept, by the iteration that fails."""
    for words in ("top_k(ratio=4)", "powersgd(rank=1, warmup=0)", "powersgd(rank=1, warmup=5)", "ssgd"):
        with ArrayLoop(comm, [np.ones(shape, np.float32) for shape in SHAPES], words) as training:
            optimizer = SGD(training, training.weights, lr=0.01, momentum=0.5)
            for step in range(BAD):
                train(training, optimizer, step, 0, np.nan)
            before = [np.array(each) for each in [*training.weights, *kept_by(training.synchronizer)]]
            with raises(NonFiniteError, "gradient of 3", f"rank {CULPRIT}"):
                train(training, optimizer, BAD, 3, np.nan)
            assert all(map(np.array_equal, [*training.weights, *kept_by(training.synchronizer)], before)), words
            train(training, optimizer, BAD + 1, 0, np.nan)
            assert not all(map(np.array_equal, training.weights, before)), words
            training.finish()


def check_a_loss_scale(comm: gf.Communicator) -> None:
    """With one, gradients that are not finite are a step that is skipped, and no error."""
    for words in TOGETHER + ALONE:
        weights = [np.ones(shape, np.float32) for shape in SHAPES]
        with ArrayLoop(comm, weights, words, loss_scale="dynamic") as training:
            optimizer = SGD(training, training.weights, lr=0.01)
            for step in range(STEPS):
                train(training, optimizer, step, 3, np.inf)
            training.finish()
            assert training.loss_scale is not None
            is_told = RANK == CULPRIT or words in TOGETHER
            assert training.loss_scale.overflows == is_told, words
            expect_clean(comm, words, training.weights, training.synchronizer)


def check_once_averaged(comm: gf.Communicator) -> None:
    """Finite gradients of all ranks whose products, or sums, are not."""
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
        expect_clean(comm, "powersgd", training.weights, training.synchronizer)
    with ArrayLoop(comm, [np.ones(64, np.float32)], "hpsgd") as training:
        optimizer = SGD(training, training.weights, lr=0.0)
        training.synchronizer.round_is_running = lambda: True  # type: ignore[attr-defined]
        told: list[str] = []
        for _ in range(2):  # of one round

            def one() -> None:
                training.gradients[0][...] = 3e38
                training.ready(0)
                training.wait()
                optimizer.step()

            told_of(told, one, training.abandon)
        assert len(told) == 1
        assert f"gradient of 0 is not finite on rank {RANK}: this rank goes back" in told[0]
        del training.synchronizer.round_is_running  # type: ignore[attr-defined]
        training.gradients[0][...] = 1
        training.ready(0)
        training.wait()
        optimizer.step()
        training.finish()
        expect_clean(comm, "hpsgd", training.weights, training.synchronizer)


def check_rounded(_: gf.Communicator) -> None:
    """Sums that are finite, and are not once they are rounded for the way to other nodes: all drop the round."""
    with (
        gf.init(config=gf.Config(node_size="1")) as comm,
        ArrayLoop(comm, [np.ones(64, np.float32)], "hpsgd(wire='float16')") as training,
    ):
        optimizer = SGD(training, training.weights, lr=0.01)
        told: list[str] = []

        def one(gradient: float) -> None:
            training.gradients[0][...] = gradient
            training.ready(0)
            training.wait()
            optimizer.step()

        for gradient in (1e6, 1.0, 1.0):
            told_of(told, lambda: one(gradient), training.abandon)  # noqa: B023
        told_of(told, training.finish, training.abandon)
        assert len(told) == 1
        assert "gradient of 0 in round 1 is not finite once averaged" in told[0]
        training.finish()
        expect_clean(comm, "hpsgd", training.weights, training.synchronizer)
        assert training.weights[0][0] > -10


def check_weights_that_are_not_finite(comm: gf.Communicator) -> None:
    """Where only weights travel, an optimizer's or those that were set: all ranks are told, and can go on."""
    for words, (bad, part, value) in product(EXCHANGED, ((3, (0, 0), np.inf), (4, ..., np.nan))):
        with ArrayLoop(comm, [np.ones(shape, np.float32) for shape in SHAPES], words) as training:
            optimizer = SGD(training, training.weights, lr=0.01)
            train(training, optimizer, 0, 0, np.nan)
            if RANK == CULPRIT:
                training.weights[bad][part] = value
            told: list[str] = []
            for step in range(BAD + 1, STEPS):
                told_of(told, lambda: train(training, optimizer, step, 0, 1.0), training.abandon)  # noqa: B023
            expect_told(comm, words, told, str(bad), alone=False)
            training.finish()
            expect_clean(comm, words, training.weights, training.synchronizer)
    with ArrayLoop(comm, [np.ones(shape, np.float32) for shape in SHAPES], "psgd") as training:
        optimizer = SGD(training, training.weights, lr=0.01)
        for step in range(BAD):
            train(training, optimizer, step, 3, np.nan)
        if RANK == CULPRIT:
            training.weights[3][0, 0] = np.nan
        before = [weight.copy() for weight in training.weights]
        with raises(NonFiniteError, f"value of 3 is not finite on rank {CULPRIT}", "no weight was changed"):
            training.finish()
        assert all(np.array_equal(*each, equal_nan=True) for each in zip(training.weights, before, strict=True))
        np.nan_to_num(training.weights[3], copy=False)
        training.finish()
        expect_clean(comm, "psgd", training.weights, training.synchronizer)


def check_uneven_batches(comm: gf.Communicator) -> None:
    """Ranks that are out of batches take part in what comes after an iteration that all have dropped."""
    for words in ("csc(density=0.5, chunk_size=64, momentum=1.0)", "top_k(ratio=4)", "powersgd(rank=1, warmup=0)"):
        with ArrayLoop(comm, [np.ones(shape, np.float32) for shape in SHAPES], words) as training:
            optimizer = SGD(training, training.weights, lr=0.01)
            told: list[str] = []
            with training.join():
                for step in range(STEPS if RANK == CULPRIT else 1):
                    if step == BAD + 1 and not words.startswith("powersgd"):
                        training.ready(0)
                        training.abandon()
                    told_of(told, lambda: train(training, optimizer, step, 3, np.nan), training.abandon)  # noqa: B023
            assert len(told) == (RANK == CULPRIT), (words, told)
            expect_clean(comm, words, training.weights, training.synchronizer)


def check_without_memory(comm: gf.Communicator) -> None:
    """What keeps nothing leaves gradients to the optimizer, as PyTorch's DistributedDataParallel does."""
    for words in ("dense", "auto"):
        with ArrayLoop(comm, [np.ones(shape, np.float32) for shape in SHAPES], words) as training:
            optimizer = SGD(training, training.weights, lr=0.01)
            for step in range(BAD + 1):
                train(training, optimizer, step, 3, np.nan)
            assert [np.isnan(weight).any() for weight in training.weights] == [False] * 3 + [True, False]


# ---- in PyTorch ------------------------------------------------------------------------------------------------------


def check_pytorch(comm: gf.Communicator) -> None:
    """The same with the optimizer for PyTorch: the error comes out of `backward` or `step`."""
    try:
        import torch

        import gradientflow.torch as gft
    except ImportError:
        raise SkipTest("needs torch") from None

    for words, bad in zip(TOGETHER + ALONE, cycle(("0.bias", "1.weight", "2.weight")), strict=False):
        torch.manual_seed(1)
        model = torch.nn.Sequential(*(torch.nn.Linear(30, 30) for _ in range(3)))
        parameter = dict(model.named_parameters())[bad]
        kind = torch.optim.Adam if words in (*EXCHANGED, "psgd") else torch.optim.SGD  # what it keeps is finite, too
        inner = kind(model.parameters(), lr=0.01)
        told: list[str] = []
        with gft.DistributedOptimizer(inner, model, comm, strategy=words) as optimizer:

            def one(step: int) -> None:
                generator = torch.Generator().manual_seed(STEPS * RANK + step)
                loss = model(torch.randn(4, 30, generator=generator)).square().mean()  # noqa: B023
                if step == BAD and RANK == CULPRIT:
                    loss = loss + parameter.sum() * float("nan")  # noqa: B023
                loss.backward()
                optimizer.step()

            for step in range(STEPS):
                optimizer.zero_grad()
                told_of(told, lambda: one(step), optimizer.zero_grad)  # noqa: B023
            told_of(told, optimizer.finish, optimizer.zero_grad)
            expect_told(comm, words, told, bad, words in ALONE)
            optimizer.finish()
            weights = [each.detach().numpy() for each in model.parameters()]
            expect_clean(comm, words, weights, optimizer.synchronizer)


run_checks()
