"""Strategies of a user's own: the examples of the documentation, in the NumPy loop and in PyTorch, and bad ones."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np
from loops import make_ready, make_step, whole_numbers
from marks import on_ranks
from support import LAYOUTS, RANK, SIZE, raises, require_same_state, run_checks, same_everywhere

import gradientflow as gf
from gradientflow.errors import AbandonedError, ArgumentError, ArgumentTypeError, MismatchError, PeerError
from gradientflow.optimizers import SGD
from gradientflow.strategies import (
    ArraySynchronizer,
    Dense,
    Layout,
    Strategy,
    SurvivableArrays,
    parse_strategies,
    parse_strategy,
)
from gradientflow.training import ArrayLoop

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
SIGN, TOP_K, LOCAL = f"{EXAMPLES}/sign_sgd.py:SignSGD", f"{EXAMPLES}/top_k.py:TopK", f"{EXAMPLES}/local_sgd.py:LocalSGD"
SHAPES = [(40,), (0,), (3, 7), (1,)]

gradients_of = partial(whole_numbers, SHAPES)


def weights() -> list[Any]:
    return [np.zeros(shape, np.float32) for shape in SHAPES]


def run(training: ArrayLoop, step: int, order: Any = None) -> None:
    make_ready(training, gradients_of(RANK, step), order)
    training.wait()


# ---- the examples ----------------------------------------------------------------------------------------------------


@on_ranks(1, 2, 3)
def check_sign_sgd(comm: gf.Communicator) -> None:
    """Ranks whose gradients come in different orders, and one without some of them."""
    with ArrayLoop(comm, weights(), f"{SIGN}(scale=0.5)") as training:
        assert training.strategy.settings == {"scale": 0.5}
        optimizer = SGD(training, training.weights, lr=1.0)
        for step in range(4):
            run(training, step, (0, 1, 2, 3) if RANK % 2 else (3, 0, 2, 1))
            votes = [sum(np.sign(gradients_of(rank, step)[i]) for rank in range(SIZE)) for i in range(4)]
            for gradient, vote in zip(training.gradients, votes, strict=True):
                assert np.array_equal(gradient, 0.5 * np.sign(vote))
            before = [weight.copy() for weight in training.weights]
            optimizer.step()
            for weight, old, vote in zip(training.weights, before, votes, strict=True):
                assert np.array_equal(weight, old - np.float32(0.5) * np.sign(vote))
        training.ready(0)
        training.wait()  # the others are zeros
        assert not training.gradients[2].any()
        optimizer.step()


@on_ranks(1, 3)
def check_top_k(comm: gf.Communicator) -> None:
    """What was sent and what is left is what was put in."""
    training = ArrayLoop(comm, weights(), f"{TOP_K}(density=0.1)")
    optimizer = SGD(training, training.weights, lr=1.0)
    put_in = [np.zeros_like(weight) for weight in training.weights]
    sent = [np.zeros_like(weight) for weight in training.weights]
    for step in range(6):
        run(training, step)
        for i, gradient in enumerate(training.gradients):
            assert np.count_nonzero(gradient) <= SIZE * max(1, gradient.size // 10)
            sent[i] += SIZE * gradient
            put_in[i] += sum(gradients_of(rank, step)[i] for rank in range(SIZE))
        optimizer.step()
        same_everywhere(training.weights)
    residuals = [comm.allreduce(each.copy(), "sum") for each in training.synchronizer.residuals]
    for total, left, gone in zip(put_in, residuals, sent, strict=True):
        assert np.allclose(total, left + gone, atol=1e-4)
    with raises(ArgumentError, "no residuals"):
        state = training.state_dict()
        training.load_state_dict({**state, "synchronizer": {"names": [], "rank": RANK, "ranks": SIZE}})
    training.close()


@on_ranks(1, 3)
def check_local_sgd(comm: gf.Communicator) -> None:
    """Weights differ until they are averaged, and do not once training is finished."""
    with ArrayLoop(comm, weights(), f"{LOCAL}(period=3)") as training:
        optimizer = SGD(training, training.weights, lr=1.0)
        expected = [np.zeros((SIZE, weight.size)) for weight in training.weights]
        for step in range(7):
            run(training, step)
            optimizer.step()
            for rank in range(SIZE):
                for each, gradient in zip(expected, gradients_of(rank, step), strict=True):
                    each[rank] -= gradient.ravel()
            if step % 3 == 2:
                for each in expected:
                    each[:] = each.mean(axis=0)
            for weight, each in zip(training.weights, expected, strict=True):
                assert np.allclose(weight.ravel(), each[RANK], atol=1e-4)
        training.finish()
        same_everywhere(training.weights)


@on_ranks(1, 2, 3)
def check_library_strategies(comm: gf.Communicator) -> None:
    """Dense in the NumPy loop is the mean; several dtypes go in pools of their own."""
    mixed = [np.zeros(5, np.float32), np.zeros(4, np.float16), np.zeros((2, 3), np.float32)]
    with ArrayLoop(comm, mixed, "dense(fusion_threshold=0)") as training:
        optimizer = SGD(training, training.weights, lr=1.0)
        assert make_step(training, optimizer, [SIZE * (RANK + index) for index in range(3)]).kind == "apply"
        for index, weight in enumerate(mixed):
            assert (weight == -(SIZE * (SIZE - 1) / 2 + SIZE * index)).all()
        with raises(ArgumentError, "wait() first"):
            optimizer.step()
        with raises(ArgumentError, "gradient 3 is not there"):
            training.ready(3)


class Kept(Strategy):
    """Sums up all gradients, and counts; it begins with something else than zeros."""

    where = ""
    fails = False

    def bind(self, comm: gf.Communicator, layout: Layout) -> ArraySynchronizer:
        return Sums(comm, layout, self)


class Sums(ArraySynchronizer):
    strategy: Kept
    uses_backward_order = True
    state_names = ("sums", "count", "table", "nothing")

    def __init__(self, comm: gf.Communicator, layout: Layout, strategy: Strategy) -> None:
        super().__init__(comm, layout, strategy)
        self.sums = [np.full_like(gradient, 7) for gradient in self.gradients]
        self.table = np.arange(3)
        self.nothing: list[Any] = [None] * len(layout)
        self.count = 5

    def gradient_ready(self, index: int, gradient: Any) -> None:
        self.sums[index] += gradient / self.loss_scale
        self.comm.allreduce(gradient, "mean")

    def backward_done(self) -> None:
        self.count += 1
        self.table += 1
        if self.strategy.fails:
            raise ZeroDivisionError


def check_what_is_kept_of_an_iteration_that_is_dropped(comm: gf.Communicator) -> None:
    """A failure after the last call of the strategy, and gradients that are not finite, on one rank."""
    strategy = Kept()
    with ArrayLoop(comm, weights(), strategy, loss_scale="dynamic") as training:
        optimizer = SGD(training, training.weights, lr=1.0)
        sums = [np.full_like(weight, 7) for weight in training.weights]
        for step in range(5):
            scale = training.loss_scale.value  # type: ignore[union-attr]
            for index, gradient in enumerate(gradients_of(RANK, step)):
                training.gradients[index][...] = scale * gradient
            if step == 1 and RANK == SIZE - 1:
                training.gradients[2][0, 0] = np.nan
            strategy.fails = step == 3 and RANK == SIZE - 1
            for index in (1, 0, 2, 3):
                training.ready(index)
            if step == 3:
                with raises(ZeroDivisionError if strategy.fails else PeerError):
                    training.wait()
                with raises(ArgumentError, "the iteration has failed"):
                    training.wait()
                strategy.fails = False
                training.abandon()
            else:
                training.wait()
                assert optimizer.step() == (step != 1)
            if step not in (1, 3):
                for total, gradient in zip(sums, gradients_of(RANK, step), strict=True):
                    total += gradient
            kept: Any = training.synchronizer
            assert all(map(np.array_equal, kept.sums, sums))
            assert kept.count == 5 + (1, 1, 2, 2, 3)[step]
            assert list(kept.table) == [kept.count - 5, kept.count - 4, kept.count - 3]
            same_everywhere(training.weights)
        training.synchronizer.load_state_dict(None)
        assert all((each == 7).all() for each in kept.sums)
        assert kept.count == 5


def check_local_sgd_with_master_weights(comm: gf.Communicator) -> None:
    """Weights of 16 bits are averaged where the step keeps them: in float32, and it goes on from the averages."""
    small = 2.0**-13  # which a weight of 1 in float16 does not notice
    with ArrayLoop(comm, [np.ones(3, np.float16)], f"{LOCAL}(period=2)") as training:
        optimizer = SGD(training, training.weights, lr=1.0)
        for _ in range(6):
            make_step(training, optimizer, small * (RANK + 1))
        mean = np.float32(1 - 6 * small * (SIZE + 1) / 2)
        assert (training.weights[0] == mean.astype(np.float16)).all(), training.weights
        assert np.allclose(optimizer.masters[0], mean, rtol=0, atol=1e-6)
        make_step(training, optimizer, RANK)
        assert np.allclose(optimizer.masters[0], mean - RANK, rtol=0, atol=1e-6)
        training.finish()
        assert (training.weights[0] == np.float16(optimizer.masters[0][0])).all()
        same_everywhere([optimizer.masters[0]])


def check_training_goes_on_after_join(comm: gf.Communicator) -> None:
    """Momentum and master weights are those of a rank that had the most iterations."""
    with ArrayLoop(comm, [np.zeros(40, np.float16), np.zeros(3, np.float32)], "dense") as training:
        optimizer = SGD(training, training.weights, lr=lambda step: 1 / (1 + step), momentum=0.5)
        with training.join():
            for _ in range(1 + 2 * RANK):
                make_step(training, optimizer, RANK + 1)
        assert optimizer.steps == 2 * SIZE - 1
        for _ in range(2):
            make_step(training, optimizer, RANK + 1)
            same_everywhere(training.weights)


class Written(Strategy):
    """Writes the weights itself, and has a failure on one rank after a step when it is told to."""

    gradients = "consumed"
    fails = ""

    def bind(self, comm: gf.Communicator, layout: Layout) -> ArraySynchronizer:
        if self.fails == "bind":
            raise ZeroDivisionError
        return Writing(comm, layout, self)


class Writing(ArraySynchronizer):
    strategy: Written
    begun = 0

    def prepare(self) -> None:
        self.begun += 1

    def backward_done(self) -> Any:
        for index, weight in enumerate(self.weights):
            self.comm.allreduce(self.gradients[index], "mean")
            weight -= self.settings(index).rate * self.gradients[index].ravel()
        return "written"

    def after_step(self) -> None:
        if self.strategy.fails == "after_step":
            raise ZeroDivisionError
        self.comm.barrier()


def check_a_step_that_the_strategy_makes(comm: gf.Communicator) -> None:
    """It counts as a step, for a schedule, and may write master weights."""
    with ArrayLoop(comm, [np.ones(3, np.float16), np.ones(2, np.float32)], Written()) as training:
        optimizer = SGD(training, training.weights, lr=lambda step: 2.0 ** -(12 + step))
        for step in range(3):
            for index, gradient in enumerate(training.gradients):
                gradient[...] = RANK + 1
                training.ready(index)
            assert training.wait().kind == "written"
            assert optimizer.step()
            assert optimizer.steps == step + 1
        expected = np.float32(1 - (SIZE + 1) / 2 * 2.0**-12 * 1.75)
        assert (training.weights[0] == np.float16(expected)).all(), (training.weights[0], expected)
        assert np.allclose(training.weights[1], expected, rtol=0, atol=1e-6)
        assert training.synchronizer.begun == 3  # type: ignore[attr-defined]


def check_an_exception_after_a_step(comm: gf.Communicator) -> None:
    """The others get an error that names the rank when it begins anew, and all go on."""
    if SIZE == 1:
        return
    strategy = Written()
    with ArrayLoop(comm, weights(), strategy) as training:
        optimizer = SGD(training, training.weights, lr=1.0)
        for step in range(3):
            strategy.fails = "after_step" if step == 1 and RANK == 0 else ""
            run(training, step)
            if step == 1:
                with raises(ZeroDivisionError if RANK == 0 else PeerError, *([] if RANK == 0 else ["rank 0"])):
                    optimizer.step()
                training.abandon()
            else:
                optimizer.step()
            same_everywhere(training.weights)


def check_an_exception_in_bind(comm: gf.Communicator) -> None:
    """On one rank: the others are told at once, before or after they have made theirs."""
    if SIZE == 1:
        return
    late = Late()
    late.fails = RANK == 0
    with raises(ZeroDivisionError if RANK == 0 else ArgumentError, *([] if RANK == 0 else ["rank 0: ZeroDivision"])):
        ArrayLoop(comm, weights(), late)
    with ArrayLoop(comm, weights(), "dense") as training:
        run(training, 0)


class Late(Strategy):
    fails = False

    def bind(self, comm: gf.Communicator, layout: Layout) -> ArraySynchronizer:
        synchronizer = ArraySynchronizer(comm, layout, self)
        if self.fails:
            raise ZeroDivisionError
        return synchronizer


# ---- in PyTorch ------------------------------------------------------------------------------------------------------


@on_ranks(1, 3)
def check_pytorch(comm: gf.Communicator) -> None:
    try:
        import torch
    except ImportError:
        return
    import gradientflow.torch as gft

    torch.set_num_threads(1)
    for words in (
        f"{SIGN}(scale=0.1)",
        f"{TOP_K}(density=0.2)",
        f"{LOCAL}(period=4)",
        "csc(density=0.5, chunk_size=16)",
    ):
        torch.manual_seed(RANK)
        model = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.BatchNorm1d(12), torch.nn.Linear(12, 1))
        target = torch.arange(6.0) / 6
        inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
        with gft.DistributedOptimizer(inner, model, comm, strategy=words) as optimizer:
            losses = []
            x = torch.randn(16, 6, generator=torch.Generator().manual_seed(RANK))
            for _ in range(60):
                optimizer.zero_grad()
                loss = (model(x).squeeze(1) - x @ target).square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            optimizer.finish()
            assert losses[-1] < 0.8 * losses[0], (words, losses)
            same_everywhere([parameter.detach().numpy() for parameter in model.parameters()])
            if words.startswith(LOCAL):
                same_everywhere([buffer.numpy() for buffer in model.buffers()])
            state = optimizer.state_dict()
            optimizer.load_state_dict(state)
        if words.startswith(SIGN) and SIZE > 1:
            with raises(ArgumentError, "GradScaler does not go with"):
                scaled(model, comm)


def scaled(model: Any, comm: gf.Communicator) -> None:
    import torch

    import gradientflow.torch as gft

    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    with gft.DistributedOptimizer(inner, model, comm, strategy=f"{LOCAL}(period=4)") as optimizer:
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        scaler.scale(model(torch.ones(4, 6)).sum()).backward()
        scaler.step(optimizer)


def network(torch: Any) -> Any:
    torch.set_num_threads(1)
    torch.manual_seed(RANK)
    return torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.ReLU(), torch.nn.Linear(12, 1))


def backward(model: Any, step: int) -> None:
    import torch

    dtype = next(model.parameters()).dtype
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(100 * step + RANK)).to(dtype)
    model(x).square().mean().backward()


@on_ranks(1, 3)
def check_pytorch_resumes_where_ranks_differ(comm: gf.Communicator) -> None:
    """With Local SGD a checkpoint has the rank's own weights; a consolidated one those of all."""
    torch = torch_or_skip()
    import gradientflow.torch as gft

    has_bfloat16 = importlib.util.find_spec("ml_dtypes") is not None
    for dtype in (torch.float32, torch.bfloat16) if has_bfloat16 else (torch.float32,):

        def make(dtype: Any = dtype) -> tuple[Any, Any]:
            model = network(torch).to(dtype)
            inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
            return model, gft.DistributedOptimizer(inner, model, comm, strategy=f"{LOCAL}(period=4)")

        def go_on(model: Any, optimizer: Any, first: int) -> None:
            for step in range(first, first + 3):
                optimizer.zero_grad()
                backward(model, step)
                optimizer.step()

        model, optimizer = make()
        go_on(model, optimizer, 0)
        state = copy.deepcopy(optimizer.state_dict())
        whole = copy.deepcopy(optimizer.consolidated_state_dict())
        require_same_state(whole, dtype)
        go_on(model, optimizer, 3)
        other, its = make()
        its.load_state_dict(state)
        go_on(other, its, 3)
        for mine, theirs in zip(other.parameters(), model.parameters(), strict=True):
            assert torch.equal(mine, theirs)
        its.load_state_dict(whole)
        same_everywhere([parameter.detach().float().numpy() for parameter in other.parameters()])
        optimizer.close()
        its.close()


def check_pytorch_masters_are_averaged(comm: gf.Communicator) -> None:
    torch = torch_or_skip()
    import gradientflow.torch as gft

    model = network(torch).to(torch.float16)
    inner = torch.optim.SGD(model.parameters(), lr=1e-5)  # steps of which float16 notices few
    with gft.DistributedOptimizer(inner, model, comm, strategy=f"{LOCAL}(period=2)", loss_scale=8.0) as optimizer:
        for step in range(4):
            optimizer.zero_grad()
            x = torch.full((2, 6), (RANK + 1) / 8 + step, dtype=torch.float16)
            optimizer.scale(model(x).sum()).backward()
            optimizer.step()
        own = optimizer.state_dict()["gradientflow"]["master_weights"]
        assert len(own) == 4
        same_everywhere([own[name].numpy() for name in sorted(own)])
        for name, parameter in model.named_parameters():
            assert torch.equal(own[name].half(), parameter)


def check_pytorch_state_goes_along(comm: gf.Communicator) -> None:
    """To another order, to a group that is added, and into a checkpoint of a model whose order is not known yet."""
    torch = torch_or_skip()
    import gradientflow.torch as gft

    model = network(torch)
    rest = list(model[0].parameters())
    model[0].requires_grad_(requires_grad=False)
    inner = torch.optim.SGD(model[2].parameters(), lr=0.1)
    with gft.DistributedOptimizer(inner, model, comm, strategy=Kept(), fused=True) as optimizer:
        sums = {name: 7 + torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
        for step in range(4):
            if step == 2:
                model[0].requires_grad_(requires_grad=True)
                optimizer.add_param_group({"params": rest})
            optimizer.zero_grad()
            alone = copy.deepcopy(model)
            backward(alone, step)
            for name, parameter in alone.named_parameters():
                sums[name] += parameter.grad if parameter.grad is not None else 0
            backward(model, step)
            optimizer.step()
            same_everywhere([parameter.detach().numpy() for parameter in model.parameters()])
        kept: Any = optimizer.synchronizer
        assert kept.count == 5 + 4
        for name, total in zip(kept.layout.names, kept.sums, strict=True):
            assert np.allclose(total, sums[name].numpy(), atol=1e-5), name
        state = copy.deepcopy(optimizer.state_dict())
    backwards = network(torch)
    inner = torch.optim.SGD(backwards[2].parameters(), lr=0.1)
    inner.add_param_group({"params": list(backwards[0].parameters())})
    with gft.DistributedOptimizer(inner, backwards, comm, strategy=Kept(), fused=True) as optimizer:
        optimizer.load_state_dict(state)
        kept = optimizer.synchronizer
        for name, total in zip(kept.layout.names, kept.sums, strict=True):
            assert np.allclose(total, sums[name].numpy(), atol=1e-5), name


class Consumed(Strategy):
    gradients = "consumed"

    def bind(self, comm: gf.Communicator, layout: Layout) -> ArraySynchronizer:
        return Consuming(comm, layout, self)


class Consuming(ArraySynchronizer):
    """Sends gradients at once, and writes the weights."""

    def gradient_ready(self, index: int, gradient: Any) -> None:
        self.comm.allreduce(gradient, "mean")
        self.weights[index] -= 0.1 * gradient.ravel()

    def backward_done(self) -> Any:
        return "written"


def check_pytorch_what_comes_too_late(comm: gf.Communicator) -> None:
    """Clipping, closures and GradScaler, where gradients were sent already."""
    torch = torch_or_skip()
    import gradientflow.torch as gft

    model = network(torch)
    with gft.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model, comm, strategy=Consumed()
    ) as optimizer:
        for step in range(2):
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
            same_everywhere([parameter.detach().numpy() for parameter in model.parameters()])
        optimizer.zero_grad()
        backward(model, 2)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        with raises(ArgumentError, "Consumed has sent the gradients", "clipping"):
            optimizer.step()
        optimizer.zero_grad()
        with raises(ArgumentError, "step(closure)"):
            optimizer.step(lambda: 0.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        scaler.scale(model(torch.ones(4, 6)).sum()).backward()
        with raises(ArgumentError, "GradScaler"):
            scaler.step(optimizer)
        with raises(ArgumentError, "join"), optimizer.join():
            pass


def check_pytorch_with_an_exception(comm: gf.Communicator) -> None:
    """In a backward pass, of the strategy's or of the model's, and after the step."""
    torch = torch_or_skip()
    import gradientflow.torch as gft

    if SIZE == 1:
        return
    model, strategy = network(torch), Failing()
    with gft.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model, comm, strategy=strategy
    ) as optimizer:
        for step in range(5):
            optimizer.zero_grad()
            strategy.fails = step == 1 and RANK == 0
            hook = None
            if step == 3 and RANK == 0:
                hook = model[0].register_full_backward_pre_hook(lambda *_: 1 / 0)
            if step in (1, 3):
                before = [parameter.detach().clone() for parameter in model.parameters()]
                with raises(ZeroDivisionError if RANK == 0 else PeerError, *([] if RANK == 0 else ["rank 0"])):
                    backward(model, step)
                    optimizer.step()
                if step == 1:
                    with raises(ArgumentError, "the iteration has failed"):
                        optimizer.step()
                optimizer.zero_grad()
                assert all(map(torch.equal, model.parameters(), before))
            else:
                backward(model, step)
                optimizer.step()
            if hook is not None:
                hook.remove()
            same_everywhere([parameter.detach().numpy() for parameter in model.parameters()])


def torch_or_skip() -> Any:
    try:
        import torch
    except ImportError:
        raise SkipTest("without PyTorch") from None
    return torch


# ---- what goes wrong -------------------------------------------------------------------------------------------------


class Failing(Strategy):
    """Averages one by one, and fails on one rank when it is told to."""

    def __init__(self) -> None:
        self.fails = False

    @property
    def settings(self) -> dict[str, Any]:
        return {}

    def bind(self, comm: gf.Communicator, layout: Layout) -> ArraySynchronizer:
        return OneByOne(comm, layout, self)


class OneByOne(ArraySynchronizer):
    strategy: Failing

    def gradient_ready(self, index: int, gradient: Any) -> None:
        if self.strategy.fails and index == 2:
            raise ZeroDivisionError
        self.comm.allreduce(gradient, "mean")


def check_an_exception_on_one_rank(comm: gf.Communicator) -> None:
    """There at once, with the others at their next exchange; the next iteration works."""
    if SIZE == 1:
        return
    strategy = Failing()
    with ArrayLoop(comm, weights(), strategy) as training:
        optimizer = SGD(training, training.weights, lr=1.0)
        for step in range(3):
            strategy.fails = step == 1 and RANK == 0
            if step == 1:
                before = [weight.copy() for weight in training.weights]
                with raises(ZeroDivisionError if RANK == 0 else PeerError, *([] if RANK == 0 else ["rank 0"])):
                    run(training, step)
                training.abandon()
                strategy.fails = False
                assert all(map(np.array_equal, training.weights, before))
                continue
            run(training, step)
            optimizer.step()
            same_everywhere(training.weights)
    with ArrayLoop(comm, weights(), "dense") as training:  # in pools, too
        optimizer = SGD(training, training.weights, lr=1.0)
        for step in range(3):
            if step == 1 and RANK == 0:
                training.ready(0)
                training.abandon()
            elif step == 1:
                with raises(AbandonedError, "rank 0 gave up"):
                    run(training, step)
            else:
                run(training, step)
                optimizer.step()
            same_everywhere(training.weights)


class NoSynchronizer(Strategy):
    def bind(self, comm: gf.Communicator, layout: Layout) -> Any:
        return "nothing"


class WrongWord(ArraySynchronizer):
    def backward_done(self) -> Any:
        return "done"


class SaysSomething(Strategy):
    def bind(self, comm: gf.Communicator, layout: Layout) -> ArraySynchronizer:
        return WrongWord(comm, layout, self)


class Hollow(ArraySynchronizer):
    def __init__(self) -> None:
        pass


class Without(Strategy):
    def bind(self, comm: gf.Communicator, layout: Layout) -> ArraySynchronizer:
        return Hollow()


class Misnamed(Strategy):
    def __init__(self, names: Any) -> None:
        self.names = names

    def bind(self, comm: gf.Communicator, layout: Layout) -> ArraySynchronizer:
        class Named(ArraySynchronizer):
            state_names = self.names

        return Named(comm, layout, self)


class Hasty(Strategy):
    """Calls at the beginning of an iteration, on some ranks."""

    ranks: tuple[int, ...] = ()

    def bind(self, comm: gf.Communicator, layout: Layout) -> ArraySynchronizer:
        return CallsInBegin(comm, layout, self)


class CallsInBegin(ArraySynchronizer):
    strategy: Hasty

    def prepare(self) -> None:
        assert (self.comm.rank, self.comm.size, self.comm.describe()["size"]) == (RANK, SIZE, SIZE)
        if RANK in self.strategy.ranks:
            self.comm.barrier()

    def backward_done(self) -> None:
        for gradient in self.gradients:
            self.comm.allreduce(gradient, "mean")


def check_calls_in_begin(comm: gf.Communicator) -> None:
    """They are refused, and the other ranks are told; the next iteration works."""
    strategy = Hasty()
    with ArrayLoop(comm, weights(), strategy) as training:
        optimizer = SGD(training, training.weights, lr=1.0)
        for step, strategy.ranks in enumerate(((), tuple(range(SIZE)), (), (0,), ())):
            if RANK in strategy.ranks:
                with raises(ArgumentError, "prepare() of CallsInBegin uses comm.barrier"):
                    run(training, step)
                training.abandon()
            elif strategy.ranks:
                with raises(PeerError, "rank 0"):
                    run(training, step)
                training.abandon()
            else:
                run(training, step)
                optimizer.step()
            same_everywhere(training.weights)


def check_pytorch_with_learning_rates_that_differ(comm: gf.Communicator) -> None:
    """In a parameter group; not where a rank is out of batches, so that its schedule stands still."""
    torch = torch_or_skip()
    import gradientflow.torch as gft

    if SIZE == 1:
        return
    model = network(torch).half()
    groups = [{"params": list(model[0].parameters())}, {"params": list(model[2].parameters()), "lr": 0.01}]
    inner = torch.optim.SGD(groups, lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(inner, 0.5)
    with gft.DistributedOptimizer(inner, model, comm) as optimizer:
        with optimizer.join():
            for step in range(1 + RANK):
                optimizer.zero_grad()
                backward(model, step)
                optimizer.step()
                schedule.step()
        for group in inner.param_groups:
            group["lr"] = 0.1
        optimizer.param_groups[1]["lr"] = 0.1 + 1e-9 * (RANK == 1)
        for step in range(3):
            optimizer.zero_grad()
            if step == 1:
                optimizer.param_groups[1]["lr"] = 0.1
            if step:
                backward(model, step)
                optimizer.step()
            else:
                before = [parameter.detach().clone() for parameter in model.parameters()]
                with raises(MismatchError, "the learning rate of parameter group 1 is", "on rank 1 and", "on rank 0"):
                    backward(model, step)
                    optimizer.step()
                assert all(map(torch.equal, model.parameters(), before))
            same_everywhere([parameter.detach().float().numpy() for parameter in model.parameters()])


class Careless(Strategy):
    """Does not write gradients in their place."""

    def __init__(self, what: str) -> None:
        self.what = what

    def bind(self, comm: gf.Communicator, layout: Layout) -> ArraySynchronizer:
        return Misplacing(comm, layout, self)


class Misplacing(ArraySynchronizer):
    strategy: Careless

    def gradient_ready(self, index: int, gradient: Any) -> Any:
        if self.strategy.what == "returns":
            return gradient / 2
        if self.strategy.what == "replaces":
            self.gradients = (gradient / 2,)  # type: ignore[misc]
        gradient[...] = np.zeros(gradient.size + 2)
        return None


class Mistaken(Strategy):
    def __init__(self, kind: Any = "mean", source: Any = "place") -> None:
        self.gradients = self.kind = kind
        self.source = source

    def bind(self, comm: gf.Communicator, layout: Layout) -> ArraySynchronizer:
        synchronizer = ArraySynchronizer(comm, layout, self)
        synchronizer.gradient_source = self.source
        return synchronizer


class Misplaced(Strategy):
    def bind(self, comm: gf.Communicator, layout: Layout) -> ArraySynchronizer:
        synchronizer = SurvivableArrays(comm, layout, self)
        synchronizer.meets_in = "turns"  # type: ignore[assignment]
        return synchronizer


@on_ranks(1, 3)
def check_bad_strategies(comm: gf.Communicator) -> None:
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: ArrayLoop(comm, weights(), NoSynchronizer()), "bind of NoSynchronizer returned a str"),
        (lambda: ArrayLoop(comm, weights(), Without()), "Hollow of Without does not call super().__init__()"),
        (lambda: ArrayLoop(comm, weights(), Misnamed("steps")), "state_names of Named are 'steps': what is needed"),
        (lambda: ArrayLoop(comm, weights(), Misnamed(("rank",))), "other than names, rank and ranks"),
        (lambda: ArrayLoop(comm, weights(), Misnamed(("loss_scales",))), "have 'loss_scales', and it has no such"),
        (lambda: ArrayLoop(comm, weights(), Mistaken("means")), "gradients of Mistaken is 'means': what is needed is"),
        (lambda: ArrayLoop(comm, weights(), Mistaken(source="elsewhere")), "one of place, any_place, none"),
        (lambda: ArrayLoop(comm, weights(), Misplaced()), "meets_in of SurvivableArrays is 'turns': what is needed is"),
        (lambda: ArrayLoop(comm, [], "dense"), "no weights"),
        (lambda: ArrayLoop(comm, [3.0], "dense"), "weight 0 is a float"),
        (lambda: ArrayLoop(comm, weights(), "nothing.py:Mine"), "cannot be read"),
        (lambda: ArrayLoop(comm, weights(), f"{EXAMPLES}/top_k.py:Bottom"), "no strategy 'Bottom': it has TopK"),
    ]
    for make, words in wrong:
        with raises(ArgumentError, words):
            make()
    with raises(ArgumentTypeError, "the strategy is a Dense"):
        ArrayLoop(comm, weights(), Dense)  # type: ignore[arg-type]
    with raises(TypeError, "bind"):
        type("Unbound", (Strategy,), {})()
    for what in ("returns", "replaces", "of another shape"):
        with ArrayLoop(comm, weights(), Careless(what)) as training:
            with raises({"returns": ArgumentTypeError, "replaces": AttributeError}.get(what, ValueError)):
                run(training, 0)
            training.abandon()
    with ArrayLoop(comm, weights(), SaysSomething()) as training, raises(ArgumentTypeError, "'done'", "'written'"):
        run(training, 0)
    if SIZE > 1:
        with raises(MismatchError, "strategy is"):
            ArrayLoop(comm, weights(), f"{TOP_K}(density=0.{RANK + 1})")


@on_ranks(1, 2, 3)
def check_what_is_sent_is_counted(comm: gf.Communicator) -> None:
    """Messages through a strategy's communicator, also of parts and pools, and by exchanges of weights."""
    least = 2 * (comm.nodes - 1)  # times a tensor: what all ranks together send for an allreduce
    for words, periods in ((f"{SIGN}(scale=0.5)", (1, 1, 1, 1)), (f"{LOCAL}(period=2)", (0, 4, 0, 4)), ("hpsgd", None)):
        with ArrayLoop(comm, weights(), words) as training:
            assert training.bytes_sent is None
            optimizer = SGD(training, training.weights, lr=1.0)
            elements = sum(weight.size for weight in training.weights)
            for step in range(4):
                run(training, step)
                optimizer.step()
                sent = comm.mpi.allreduce(training.bytes_sent)
                if periods is not None:
                    assert least * elements * periods[step] <= sent, (words, step, sent)
                    assert (sent > 0) == (comm.nodes > 1 and periods[step] > 0), (words, step, sent)
            training.finish()
    with gf.init(comm.mpi, config=gf.Config(node_size=1)) as whole:
        part = whole.split(0)
        assert part is not None
        part.allreduce(np.ones(100_000, np.float32))
        among = part.bytes_sent
        assert among is not None
        assert (among >= 400_000) == (SIZE > 1)
        pool = gf.GradientPool(part, [(100_000,)])
        pool.ready()
        pool.wait()
        both = part.bytes_sent
        assert both is not None
        assert (both >= 2 * 400_000) == (SIZE > 1)
        assert whole.bytes_sent == both
        if SIZE > 1 and RANK < 2:
            part.send(np.ones(100, np.float32), 1) if RANK == 0 else part.recv(np.ones(100, np.float32), 0)
        assert part.bytes_sent == both + 400 * (RANK == 0 and SIZE > 1)
        other = whole.split(0)
        assert other is not None
        other.allreduce(np.ones(3), algorithm="mpi")
        assert other.bytes_sent is None
        assert whole.bytes_sent is None
        assert part.bytes_sent is not None
        with gf.ParameterServer(part, [np.zeros(3, np.float32)]):
            assert part.bytes_sent is None
        part.close()
        other.close()


def check_words(comm: gf.Communicator) -> None:
    first, second, own = parse_strategies(f"dense; csc(0.25, warmup=20);{SIGN}( scale = 0.01 )")
    assert repr(first) == "dense"
    assert repr(second) == "csc(density=0.25, warmup=20)"
    assert repr(own) == "SignSGD(scale=0.01)"
    assert parse_strategy(repr(second)) == second != first
    assert parse_strategy(f"{SIGN}(scale=0.01)") == own
    assert parse_strategies("csc(algorithm='ring')")[0].settings["algorithm"] == "ring"
    for words, text in (
        ("", "names no strategy"),
        ("cscc", "did you mean csc?"),
        ("csc(densty=1)", "the arguments of csc are density, chunk_size"),
        ("csc(density=f(2))", "what is needed is a number"),
        ("csc(**{})", "one by one"),
        ("csc(", "no strategy in words"),
        ("3", "no strategy in words"),
        ("csc(density=2)", "density is above 0"),
    ):
        with raises(ArgumentError, text):
            parse_strategies(words)


run_checks(LAYOUTS, by_mpi=[check_what_is_sent_is_counted])
