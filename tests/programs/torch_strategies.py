"""DistributedOptimizer where the core makes the step: CSC, mixed precision, LARS, and their checkpoints."""

from __future__ import annotations

import copy
import math
import re
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np
import torch
import torch_support
from marks import on_ranks
from numpy.typing import NDArray
from support import LAYOUTS, RANK, SIZE, WORLD, bits, raises, run_checks, same_everywhere
from tensor_places import PLACE
from torch import nn
from torch_support import Net, Turned, assert_close, batch_of, loss_of, saved, seeded, sgd

import gradientflow as gf
import gradientflow.torch as gft
from gradientflow.errors import (
    AbandonedError,
    ArgumentError,
    ArgumentTypeError,
    ClosedError,
    MismatchError,
)
from gradientflow.optimizers import LossScale
from gradientflow.strategies import CSC, Dense, as_strategy, parse_strategies

from survive.topk_reference import Reference

Tensor = torch.Tensor
Vector = NDArray[np.float64]

DOCS = Path(__file__).resolve().parents[2] / "docs"
LINE = 16  # elements of float32 in 64 bytes, at whose multiples tensors begin


Branches = partial(torch_support.Branches, width=40, bias=False)  # a gradient is the sum of the inputs


def whole_numbers(rank: int, step: int, width: int = 40) -> Tensor:
    return torch.randint(-8, 9, (1, width), generator=torch.Generator().manual_seed(100 * step + rank)).float()


def train(model: nn.Module, optimizer: Any, steps: Iterator[int] | range, last: int = SIZE) -> None:
    """Train; a plain optimizer gets the mean loss of all ranks up to `last`."""
    for step in steps:
        optimizer.zero_grad()
        if isinstance(optimizer, gft.DistributedOptimizer):
            optimizer.scale(loss_of(model, batch_of(RANK, step))).backward()
        else:
            (sum(loss_of(model, batch_of(rank, step)) for rank in range(last)) / last).backward()
        optimizer.step()


# ---- the algorithm in straight lines ---------------------------------------------------------------------------------


class Layout:
    """Flat vectors of a model's parameters, as a pool lays them out."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self.parameters = parameters
        self.starts = [0]
        for parameter in parameters:
            self.starts.append(self.starts[-1] + -(-parameter.numel() // LINE) * LINE)

    def flat(self, tensors: Any) -> Vector:
        vector = np.zeros(self.starts[-1])
        for start, tensor in zip(self.starts, tensors, strict=False):
            values = np.ravel(tensor.detach().numpy() if isinstance(tensor, Tensor) else tensor)
            vector[start : start + values.size] = values
        return vector

    def store(self, vector: Vector) -> None:
        for start, parameter in zip(self.starts, self.parameters, strict=False):
            with torch.no_grad():
                values = vector[start : start + parameter.numel()]
                parameter.copy_(torch.from_numpy(values).view(parameter.shape))


class ReferenceOfChunks:
    """Coarse-grained sparse communication of all ranks at once, chunk by chunk, in float64."""

    def __init__(self, model: nn.Module, chunk_size: int, momentum: float, decay: float) -> None:
        self.model, self.momentum, self.decay = model, momentum, decay
        self.layout = Layout(list(model.parameters())[::-1])
        size = self.layout.starts[-1]
        self.chunks = [slice(begin, min(begin + chunk_size, size)) for begin in range(0, size, chunk_size)]
        self.weights = self.layout.flat(self.layout.parameters)
        self.velocity = np.zeros(size)
        self.residuals = [np.zeros(size) for _ in range(SIZE)]
        self.important = set(range(len(self.chunks)))

    def gradient(self, rank: int, step: int) -> Vector:
        self.model.zero_grad()
        loss_of(self.model, batch_of(rank, step)).backward()
        return self.layout.flat(p.grad for p in self.layout.parameters)

    def step(self, step: int, rate: float, next_density: float, correction: bool) -> Vector:
        """Make a step, and return the gradient that it used."""
        put_in = [self.gradient(rank, step) + self.residuals[rank] for rank in range(SIZE)]
        used, norms = np.zeros_like(self.weights), []
        for number, chunk in enumerate(self.chunks):
            if number in self.important:
                used[chunk] = sum(each[chunk] for each in put_in) / SIZE
                norms.append(SIZE * np.abs(used[chunk]).sum())
                for residual in self.residuals:
                    residual[chunk] = 0
            else:
                norms.append(sum(np.abs(each[chunk]).sum() for each in put_in))
                for residual, each in zip(self.residuals, put_in, strict=True):
                    residual[chunk] = self.momentum * each[chunk] if correction else 0
            if number in self.important or not correction:
                direction = used[chunk] + self.decay * self.weights[chunk]
                if correction:
                    self.velocity[chunk] = self.momentum * self.velocity[chunk] + rate * direction
                    self.weights[chunk] -= self.velocity[chunk]
                else:
                    self.velocity[chunk] = self.momentum * self.velocity[chunk] + direction
                    self.weights[chunk] -= rate * self.velocity[chunk]
        count = math.ceil(next_density * len(self.chunks) - 1e-9)
        self.important = set(sorted(range(len(norms)), key=lambda number: (-norms[number], number))[:count])
        self.layout.store(self.weights)
        return used


@on_ranks(1, 2, 3)
def check_csc_is_the_algorithm(comm: gf.Communicator) -> None:
    """Step by step, with a learning rate that changes, with and without correction."""
    for chunk_size, warmup, correction in ((24, 0, True), (7, 4, True), (24, 2, False)):
        model = seeded(Net)
        reference = ReferenceOfChunks(copy.deepcopy(model), chunk_size, 0.9, 0.01)
        strategy = CSC(0.3, chunk_size=chunk_size, warmup=warmup, correction=correction, fusion_threshold=0)
        optimizer = gft.DistributedOptimizer(sgd(model, 0.2), model, comm, strategy=strategy)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        for step in range(10):
            important = sorted(reference.important)
            used = reference.step(step, 0.2 * 0.9**step, strategy.density_at(step + 1), correction)
            optimizer.zero_grad()
            loss_of(model, batch_of(RANK, step)).backward()
            (pool,) = optimizer.pools
            assert pool.sent.tolist() == important
            layout = Layout(list(model.parameters())[::-1])
            assert np.allclose(layout.flat(p.grad for p in layout.parameters), used, rtol=1e-5, atol=1e-6)
            assert np.allclose(layout.flat(pool.residuals), reference.residuals[RANK], rtol=1e-5, atol=1e-6)
            optimizer.step()
            schedule.step()
            assert_close(model, reference.model, 1e-5)
            same_everywhere(model.parameters())
        assert 0 < len(pool.sent) < pool.chunks
        assert optimizer.bytes_copied == 0
        optimizer.close()


@on_ranks(1, 2, 3)
def check_top_k_is_the_algorithm(comm: gf.Communicator) -> None:
    """Layer by layer and step by step, with every optimizer: also in 16 bits with a loss scale."""
    on_the_host()
    for dtype, scale, words, options in (
        (torch.float32, None, "lags(ratio=4, warmup=0, selection='exact')", {}),
        (torch.float32, None, "top_k(ratio=9)", {}),
        (torch.float32, None, "dgc(4, 0.5, selection='exact')", {"momentum": 0.5}),
        (torch.float16, 64.0, "lags(ratio=4, warmup=0, selection='exact')", {}),
        (torch.bfloat16, 64.0, "lags(ratio=4, warmup=0, selection='exact')", {"rounded": in_bfloat16}),
    ):
        model = seeded(Net).to(dtype)
        twin = copy.deepcopy(model)
        shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        ratio = 9.0 if "9" in words else 4.0
        elements = [math.prod(shape) for shape in shapes.values()]
        reference = Reference(SIZE, elements, [ratio] * len(shapes), **options)
        inner = sgd(model, 0.1, 0.0 if "dgc" in words else 0.9)
        with gft.DistributedOptimizer(inner, model, comm, strategy=words, loss_scale=scale) as optimizer:
            for step in range(6):
                twin.load_state_dict(model.state_dict())
                everyone = []
                for rank in range(SIZE):
                    twin.zero_grad()
                    (loss_of(twin, batch_of(rank, step)) * (scale or 1)).backward()
                    everyone.append([p.grad.float().numpy().reshape(-1) / (scale or 1) for p in twin.parameters()])
                optimizer.zero_grad()
                optimizer.scale(loss_of(model, batch_of(RANK, step))).backward()
                synchronizer: Any = optimizer.synchronizer
                reports = dict(zip(synchronizer.layout.names, optimizer.pools[0].layer_selections, strict=True))
                reference.ratios = [1.0 if reports[name].dense else ratio for name in shapes]
                means = reference.step(everyone)
                kept = dict(zip(synchronizer.layout.names, synchronizer.residuals, strict=True))
                tolerance = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}[dtype]
                for index, (name, parameter) in enumerate(model.named_parameters()):
                    left = reference.residuals[RANK][index]
                    assert np.allclose(kept[name].reshape(-1), left, rtol=1e-5, atol=1e-7), (words, dtype, step, name)
                    used = parameter.grad.float().numpy().reshape(-1) / (scale or 1)
                    assert np.allclose(used, means[index], rtol=tolerance, atol=tolerance), (words, dtype, step, name)
                optimizer.step()
                same_everywhere(model.parameters())
            assert not all(report.dense for report in reports.values())
            assert any(residual.any() for residual in synchronizer.residuals)


def on_the_host() -> None:
    """Skip a check elsewhere: there is no top-k pool on devices yet."""
    if PLACE != "host":
        raise SkipTest("entries are selected in memory of the host")


def in_bfloat16(values: Any) -> Any:
    return torch.from_numpy(values).bfloat16().float().numpy()


def check_top_k_loses_nothing(comm: gf.Communicator) -> None:
    """What all steps have used and the residuals add up to all gradients: in an order that is learned, and to the end.

    With parameters that are not used, accumulation, groups that are added, and ranks that run out of batches.
    """
    on_the_host()
    for words in ("lags(ratio=8, warmup=0)", "lags(max_ratio=8, warmup=3)", "slgs(ratio=8)", "random_k(ratio=8)"):
        model = Branches()
        frozen = model.branches[1].weight.requires_grad_(False)
        put_in = {parameter: torch.zeros(1, 40) for parameter in model.parameters()}
        inner = torch.optim.SGD([model.branches[index].weight for index in (0, 2)], lr=1.0)
        before = [parameter.detach().clone() for parameter in model.parameters()]

        def run(model: Any, step: int, *branches: int, put_in: Any = put_in) -> None:
            for rank in range(SIZE):
                for branch in branches:
                    put_in[model.branches[branch].weight] += whole_numbers(rank, step)
            model(whole_numbers(RANK, step), *branches).backward()

        with gft.DistributedOptimizer(inner, model, comm, strategy=words) as optimizer:
            for step in range(8):
                optimizer.zero_grad()
                if step == 5:
                    frozen.requires_grad_(True)
                    optimizer.add_param_group({"params": [frozen]})
                branches = [0, 2] if step < 5 else [1, 0, 2]
                if step % 3 == 1:
                    with optimizer.no_sync():
                        run(model, 50 + step, *branches)
                run(model, step, *branches[: 1 + step % 2])
                optimizer.step()
                same_everywhere(model.parameters())
            synchronizer: Any = optimizer.synchronizer
            kept = zip(synchronizer.layout.names, synchronizer.residuals, strict=True)
            left = {name: comm.allreduce(each.copy(), "sum") for name, each in kept}
            for (name, parameter), old in zip(model.named_parameters(), before, strict=True):
                used = (SIZE * (old - parameter.detach())).numpy()
                assert np.allclose(used + left[name], put_in[parameter].numpy(), atol=1e-3), (words, name)


def check_lags_in_an_order_that_is_learned(comm: gf.Communicator) -> None:
    """Ratios are fitted in the order of backpropagation, and go along by name, also to a checkpoint."""
    on_the_host()
    model, twin = seeded(Turned), seeded(Turned)
    strategy = "lags(max_ratio=3, warmup=4, monitor=True)"
    optimizer = gft.DistributedOptimizer(sgd(model), model, comm, strategy=strategy)
    other = gft.DistributedOptimizer(sgd(twin), twin, comm, strategy=strategy)
    train(model, optimizer, range(6))
    assert optimizer.synchronizer.layout.names[0].startswith("last")
    assert {layer.name for layer in optimizer.synchronizer.monitor.layers} == set(optimizer.synchronizer.layout.names)
    twin.load_state_dict(model.state_dict())
    other.load_state_dict(saved(optimizer.state_dict()))
    assert other.synchronizer.ratios == optimizer.synchronizer.ratios
    for each, its in ((model, optimizer), (twin, other)):
        train(each, its, range(6, 10))
    assert bits(model.parameters()) == bits(twin.parameters())
    optimizer.close()
    other.close()


def check_dgc_has_the_momentum(comm: gf.Communicator) -> None:
    on_the_host()
    model = seeded(Net)
    with raises(ArgumentError, "the optimizer has one of 0.9 for", "make the optimizer with momentum=0"):
        gft.DistributedOptimizer(sgd(model), model, comm, strategy="dgc(ratio=4)")
    with gft.DistributedOptimizer(
        sgd(model, momentum=0.0), model, comm, strategy="dgc(ratio=4, warmup=2)"
    ) as optimizer:
        train(model, optimizer, range(4))
        same_everywhere(model.parameters())


def check_density_one_is_plain_sgd(comm: gf.Communicator) -> None:
    model, alone = seeded(Net), seeded(Net)
    optimizer = gft.DistributedOptimizer(sgd(model), model, comm, strategy=CSC(1.0, chunk_size=32))
    train(model, optimizer, range(5))
    train(alone, sgd(alone), range(5))
    assert_close(model, alone, 2e-6)


@on_ranks(2, 3)
def check_nothing_is_lost(comm: gf.Communicator) -> None:
    """With a momentum of 1, what all steps have used and the residuals add up to all gradients, exactly.

    Through an order that is learned late, parameters that are not used, accumulation, groups that are added, clearing
    twice, gradients that are written to by hand, and ranks that run out of batches.
    """
    model = Branches()
    frozen = model.branches[2].weight.requires_grad_(False)
    rest = [branch.weight for branch in model.branches[:2]]
    inner = torch.optim.SGD(rest, lr=1.0, momentum=0.5)
    strategy = CSC(0.3, chunk_size=8, momentum=1.0)
    optimizer = gft.DistributedOptimizer(inner, model, comm, strategy=strategy)
    put_in = {parameter: torch.zeros(1, 40) for parameter in model.parameters()}
    used = {parameter: torch.zeros(1, 40) for parameter in model.parameters()}

    def note(parameters: Any) -> None:
        for parameter in parameters:
            if parameter.grad is not None:
                used[parameter] += SIZE * parameter.grad

    def run(step: int, *branches: int) -> None:
        for rank in range(SIZE):
            for branch in branches:
                put_in[model.branches[branch].weight] += whole_numbers(rank, step)
        model(whole_numbers(RANK, step), *branches).backward()

    for step in range(12):
        optimizer.zero_grad()
        optimizer.zero_grad(set_to_none=step % 3 == 0)
        if step == 6:
            frozen.requires_grad_(True)
            optimizer.add_param_group({"params": [frozen], "momentum": 0.5})
        branches = [0, 1] if step < 6 else [2, 0]
        if step % 4 == 1:
            with optimizer.no_sync():
                run(100 + step, *branches)
        run(step, *(branches if step % 3 else branches[:1]))
        note(model.parameters())
        if step == 3:
            for parameter in rest:
                parameter.grad.fill_(5.0)  # what it is after backward() is used; it does not stay
        optimizer.step()
        same_everywhere(model.parameters())
    (pool,) = optimizer.pools
    assert pool.iteration == 12
    assert 0 < len(pool.sent) < pool.chunks
    optimizer.register_step_pre_hook(lambda *_: note(model.parameters()))
    with optimizer.join():
        for step in range(200, 200 + 2 * RANK):
            optimizer.zero_grad()
            model(whole_numbers(RANK, step), 0, 1, 2).backward()
            optimizer.step()
    for rank in range(SIZE):
        for step in range(200, 200 + 2 * rank):
            for parameter in model.parameters():
                put_in[parameter] += whole_numbers(rank, step)
    last, left = SIZE - 1, 0.0  # the rank with all iterations
    for name, parameter in model.named_parameters():
        index = optimizer.synchronizer.layout.names.index(name)
        residual = comm.allreduce(pool.residuals[index].copy(), "sum")
        left += np.abs(residual).sum()
        everything = WORLD.bcast(used[parameter].numpy(), last) + residual
        assert np.array_equal(everything, put_in[parameter].numpy()), name
    assert left > 0
    same_everywhere(model.parameters())


# ---- the dense step --------------------------------------------------------------------------------------------------


FUSED: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [  # with settings of all groups, and of the first
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}, {"momentum": 0.5}),
    (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}, {"maximize": True}),
    (torch.optim.Adam, {"lr": 0.01, "eps": 1e-3, "weight_decay": 0.1}, {"betas": (0.5, 0.9)}),
    (torch.optim.AdamW, {"lr": torch.tensor(0.01), "eps": 1e-3}, {"weight_decay": 0.3, "maximize": True}),
    (torch.optim.Adam, {"lr": 0.01, "eps": 1e-3, "decoupled_weight_decay": True}, {"weight_decay": 0.5}),
]


@on_ranks(1, 2, 3)
def check_fused_steps_are_torchs(comm: gf.Communicator) -> None:
    """With groups, schedules, clipping, closures and hooks; a checkpoint goes both ways."""
    for kind, of_all, of_first in FUSED:
        _check_fused_step(comm, kind, of_all, of_first)


def _check_fused_step(comm: gf.Communicator, kind: Any, of_all: dict[str, Any], of_first: dict[str, Any]) -> None:
    alone = seeded(Net)
    model = copy.deepcopy(alone)

    def groups(model: Any) -> Any:
        last = {"params": model.last.parameters(), "lr": 3 * of_all["lr"]}
        first = {"params": model.first.parameters(), **of_first}
        return kind([first, last], **copy.deepcopy(of_all))  # a rate that is a tensor is its own

    plain, inner = groups(alone), groups(model)
    optimizer = gft.DistributedOptimizer(inner, model, comm, fused=True, fusion_threshold=0)
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(each, 8) for each in (plain, inner)]
    calls = []
    inner.register_step_post_hook(lambda *arguments: calls.append(arguments))
    for step in range(6):
        if step == 3:  # to a plain optimizer and back again
            state = saved(optimizer.state_dict())
            plain.load_state_dict(copy.deepcopy(state))
            train(model, optimizer, range(40, 42))
            model.load_state_dict(alone.state_dict())
            optimizer.load_state_dict(plain.state_dict())
        if "momentum" in of_first:  # a step without leaves the buffer as it is
            for each in (plain, inner):
                each.param_groups[0]["momentum"] = 0.0 if step in (1, 4) else of_first["momentum"]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for each, m, schedule in ((plain, alone, schedules[0]), (optimizer, model, schedules[1])):
                each.zero_grad()
                if each is plain:
                    (sum(loss_of(m, batch_of(rank, step)) for rank in range(SIZE)) / SIZE).backward()
                else:
                    loss_of(m, batch_of(RANK, step)).backward()
                if step == 4:
                    nn.utils.clip_grad_norm_(m.parameters(), 0.01)
                each.step()
                schedule.step()
        assert_close(model, alone, 2e-6)
        same_everywhere(model.parameters())
        for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            of_mine, of_theirs = optimizer.state[mine], plain.state[theirs]
            assert of_mine.keys() == of_theirs.keys()
            assert all(torch.allclose(of_mine[key], of_theirs[key], rtol=1e-5, atol=1e-6) for key in of_theirs)
    assert len(calls) == 8
    assert all(arguments[0] is inner for arguments in calls)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, batch_of(RANK, 9))
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    wanted = sum(loss_of(alone, batch_of(rank, 9)).item() for rank in range(SIZE)) / SIZE
    assert loss.item() == WORLD.bcast(loss.item())
    assert math.isclose(loss.item(), wanted, rel_tol=1e-5)
    # Parameters that somebody moves or changes are found where and as they are.
    vector = nn.utils.parameters_to_vector(model.parameters()).detach()
    nn.utils.vector_to_parameters(vector.clone().mul_(0.5), model.parameters())
    train(model, optimizer, range(1))
    assert not torch.equal(nn.utils.parameters_to_vector(model.parameters()), vector.mul(0.5))
    same_everywhere(model.parameters())
    optimizer.close()
    inner.step()


@on_ranks(1, 3)
def check_unused_parameters(comm: gf.Communicator) -> None:
    """What nobody uses is left alone: weights, momentum and the state."""
    for strategy, dtype in product((Dense(), CSC(0.5, chunk_size=16)), (torch.float32, torch.bfloat16)):
        model = Branches(SIZE + 1).to(dtype)
        with torch.no_grad():
            for branch in model.branches:
                branch.weight.fill_(1.0)
        optimizer = gft.DistributedOptimizer(sgd(model), model, comm, strategy=strategy, fused=True)
        for step in range(4):
            optimizer.zero_grad()
            model(whole_numbers(RANK, step).to(dtype), RANK).backward()
            assert model.branches[SIZE].weight.grad is None
            optimizer.step()
            same_everywhere(model.parameters())
        assert (model.branches[SIZE].weight == 1.0).all()
        assert model.branches[SIZE].weight not in optimizer.state
        assert all((branch.weight != 1.0).any() for branch in model.branches[:SIZE])
        optimizer.zero_grad()
        optimizer.step()  # nobody uses anything
        optimizer.close()


# ---- LARS ------------------------------------------------------------------------------------------------------------


@on_ranks(1, 3)
def check_lars(comm: gf.Communicator) -> None:
    """By itself, and made by the core, against a loop from the textbook."""
    rates = [0.5, 1.0, 2.0, 2.0, 1.0]

    def groups(model: Any) -> gft.LARS:
        weights = {"params": [model.first.weight, model.last.weight]}
        return gft.LARS([weights, {"params": [model.first.bias, model.last.bias], "trust": 0}], 0.5, 0.9, 0.01, 0.02)

    models = [seeded(Net) for _ in range(3)]
    for model in models:
        with torch.no_grad():
            model.first.bias.zero_()
    textbook, by_itself, model = models
    alone = groups(by_itself)
    optimizer = gft.DistributedOptimizer(groups(model), model, comm)
    velocity = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in textbook.named_parameters()}
    for step, rate in enumerate(rates):
        for each in (alone, optimizer):
            for group in each.param_groups:
                group["lr"] = rate
        train(by_itself, alone, range(step, step + 1))
        train(model, optimizer, range(step, step + 1))
        textbook.zero_grad()
        (sum(loss_of(textbook, batch_of(rank, step)) for rank in range(SIZE)) / SIZE).backward()
        for name, parameter in textbook.named_parameters():
            w, g = parameter.detach().double(), parameter.grad.double()
            local = 0.02 * w.norm() / (g.norm() + 0.01 * w.norm()) if "weight" in name else 1.0
            velocity[name] = 0.9 * velocity[name] + rate * local * (g + 0.01 * w)
            with torch.no_grad():
                parameter.copy_(w - velocity[name])
        assert_close(by_itself, textbook, 2e-6)
        assert_close(model, textbook, 2e-6)
        same_everywhere(model.parameters())
    assert len(optimizer.pools) == 1
    # A checkpoint goes both ways; and with CSC the norm is that of the gradient that is used.
    alone.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    by_itself.load_state_dict(model.state_dict())
    train(by_itself, alone, range(5, 6))
    train(model, optimizer, range(5, 6))
    assert_close(by_itself, model, 2e-6)
    optimizer.close()
    inner = gft.LARS(model.parameters(), 2.0, 0.0, 0.01, 0.02)
    optimizer = gft.DistributedOptimizer(inner, model, comm, strategy=CSC(0.4, chunk_size=16, momentum=0.9))
    for step in range(4):
        optimizer.zero_grad()
        loss_of(model, batch_of(RANK, step)).backward()
        before = {parameter: parameter.detach().clone() for parameter in model.parameters()}
        optimizer.step()
        for w, old in before.items():
            local = 0.02 * old.norm() / (w.grad.norm() + 0.01 * old.norm()) if w.grad.any() else 1.0
            wanted = torch.where(w.grad != 0, old - 2.0 * local * (w.grad + 0.01 * old), old)
            assert torch.allclose(w, wanted, rtol=1e-5, atol=1e-6)
        same_everywhere(model.parameters())
    optimizer.close()
    for wrong, words in (
        ({"lr": -1}, "lr is a number of 0 or more"),
        ({"lr": 1, "momentum": 1.5}, "momentum is from 0 up to 1"),
        ({"lr": 1, "trust": -1}, "trust is a number of 0 or more"),
    ):
        with raises(ArgumentError, words):
            gft.LARS(model.parameters(), **wrong)


def check_lars_at_the_ends_of_float32(comm: gf.Communicator) -> None:
    """Norms whose squares overflow, or vanish, in float32: by itself, and made by the core."""
    for weight, gradient in ((1e20, 1.0), (1.0, 1e-25), (1e-25, 1.0), (1e20, 1e-25)):
        models = [torch.nn.Linear(40, 30, bias=False) for _ in range(2)]
        for model in models:
            torch.nn.init.constant_(model.weight, weight)
        alone = gft.LARS(models[0].parameters(), 0.25, momentum=0.0, trust=0.5)
        inner = gft.LARS(models[1].parameters(), 0.25, momentum=0.0, trust=0.5)
        optimizer = gft.DistributedOptimizer(inner, models[1], comm)
        for model, each in zip(models, (alone, optimizer), strict=True):
            (model.weight * gradient).sum().backward()
            each.step()
        for model in models:
            rate = min(0.125 * weight / gradient, torch.finfo(torch.float32).max)
            assert torch.allclose(model.weight.double(), torch.tensor(weight - rate * gradient).double(), rtol=1e-5)
        optimizer.close()


# ---- mixed precision -------------------------------------------------------------------------------------------------


def check_master_weights(comm: gf.Communicator) -> None:
    """Steps that 16 bits would swallow add up in the master weights, whatever else writes to the parameters."""
    for dtype, strategy in (
        (torch.bfloat16, Dense()),
        (torch.bfloat16, CSC(0.5, chunk_size=16)),
        (torch.half, Dense()),
    ):
        model = Branches(1).to(dtype)
        optimizer = gft.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=2.0**-13, momentum=0.5), model, comm, strategy=strategy, fused=True
        )
        weight = model.branches[0].weight
        with torch.no_grad():
            weight.fill_(1.0)  # after the optimizer was made
        for _ in range(16):
            optimizer.zero_grad()
            model(torch.ones(1, 40, dtype=dtype), 0).backward()
            optimizer.step()
            same_everywhere(model.parameters())
        wanted = 1.0 - 2.0**-13 * sum(2 - 0.5**step for step in range(16))
        if strategy.name == "dense":
            assert torch.allclose(weight, torch.full_like(weight, wanted), atol=0, rtol=0), (weight, wanted)
        assert (weight < 1).any()
        master = optimizer.state_dict()["gradientflow"]["master_weights"]["branches.0.weight"]
        assert torch.equal(master.to(dtype), weight)
        assert not torch.equal(master, weight.float())
        # Weights that others write are the truth; those that are not changed keep their masters.
        kept = master.clone()
        with torch.no_grad():
            weight[0, :20] = 3.0
        gft.broadcast_parameters(model, comm=comm)
        optimizer.zero_grad()
        model(torch.zeros(1, 40, dtype=dtype), 0).backward()
        for group in optimizer.param_groups:
            group["momentum"] = 0.5
            group["lr"] = 0.0
        if strategy.name == "dense":
            optimizer.step()
            assert (weight[0, :20] == 3.0).all()
            master = optimizer.state_dict()["gradientflow"]["master_weights"]["branches.0.weight"]
            assert torch.equal(master[0, 20:], kept[0, 20:])
        optimizer.close()
        model(torch.ones(1, 40, dtype=dtype), 0).backward()
        optimizer._inner.step()  # it goes on by itself


def check_training_in_16_bits_learns(comm: gf.Communicator) -> None:
    x = batch_of(RANK, 0)
    for dtype, scale, strategy in (
        (torch.bfloat16, None, CSC(0.4, chunk_size=16)),
        (torch.half, "dynamic", CSC(0.4, chunk_size=16)),
        (torch.half, 1024, Dense()),
        (torch.float, "dynamic", Dense(wire="float8_e4m3")),
    ):
        model = seeded(Net).to(dtype)
        optimizer = gft.DistributedOptimizer(sgd(model, 0.2), model, comm, strategy=strategy, loss_scale=scale)
        before = loss_of(model, x).item()
        for step in range(60):
            optimizer.zero_grad()
            optimizer.scale(loss_of(model, batch_of(RANK, step % 3))).backward()
            if step % 2:
                optimizer.unscale_()
                optimizer.unscale_()
                assert nn.utils.clip_grad_norm_(model.parameters(), 1.0) < 100
            optimizer.step()
            same_everywhere(model.parameters())
        assert loss_of(model, x).item() < 0.5 * before
        assert optimizer.overflows == 0 or scale == "dynamic"
        optimizer.close()


class TwoDtypes(nn.Module):
    """Parameters of two dtypes, whose gradients are the sums of the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.wide = nn.Linear(40, 1, bias=False).half(), nn.Linear(40, 1, bias=False)

    def forward(self, x: Tensor, factor: float = 1.0) -> Tensor:
        return self.wide(x).sum() + (self.narrow(x.half()).float() * factor).sum()


@on_ranks(1, 3)
def check_overflow(comm: gf.Communicator) -> None:
    """One rank's gradient is infinite: all skip the step and halve the scale. The residuals stay, of any dtype."""
    for strategy in (Dense(), CSC(0.3, chunk_size=8, momentum=1.0)):
        model = seeded(TwoDtypes)
        scale = LossScale(16.0, growth_interval=2)
        inner = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.5)
        optimizer = gft.DistributedOptimizer(inner, model, comm, strategy=strategy, loss_scale=scale)
        assert optimizer.loss_scale is scale
        used = {parameter: torch.zeros(1, 40) for parameter in model.parameters()}
        scales = []
        for step in range(8):
            overflows = step in (2, 5)
            before = bits(model.parameters())
            optimizer.zero_grad()
            factor = float("inf") if overflows and RANK == SIZE - 1 else 1.0
            optimizer.scale(model(whole_numbers(RANK, step), factor)).backward()
            if not overflows:
                for parameter, total in used.items():
                    total += SIZE * parameter.grad.float() / scale.value
            optimizer.step()
            assert (bits(model.parameters()) == before) == overflows
            same_everywhere(model.parameters())
            scales.append(scale.value)
        assert scales == [16, 32, 16, 16, 32, 16, 16, 32]
        assert optimizer.overflows == 2
        # A rank that is out of batches follows the scale of the others.
        with optimizer.join():
            for step in range(8, 8 + 3 * RANK):
                optimizer.zero_grad()
                optimizer.scale(model(whole_numbers(RANK, step), float("inf") if step == 10 else 1.0)).backward()
                for parameter, total in used.items():
                    total += SIZE * parameter.grad.float() / scale.value
                optimizer.step()
        assert comm.allgather(np.array([scale.value, scale.overflows])).std(axis=0).max() == 0
        assert scale.overflows == 2 + (SIZE > 1)
        same_everywhere(model.parameters())
        for pool, (_, indices) in zip(optimizer.pools, optimizer.synchronizer.layout.groups, strict=True):
            if strategy.name == "dense":
                break
            (index,) = indices
            parameter = dict(model.named_parameters())[optimizer.synchronizer.layout.names[index]]
            wanted = torch.zeros(1, 40)
            for rank in range(SIZE):
                for step in range(8 + 3 * rank):
                    if step not in (2, 5, 10):  # the iteration is dropped, in the pools of both dtypes
                        wanted += whole_numbers(rank, step)
            residual = comm.allreduce(pool.residuals[0].copy(), "sum")
            total = WORLD.bcast(used[parameter].numpy(), SIZE - 1)  # the rank that made all steps
            assert np.allclose(total + residual, wanted.numpy(), atol=0.1)
        optimizer.close()


def check_a_schedule_that_raises(comm: gf.Communicator) -> None:
    """The exception comes out of backward(), and training can go on."""
    model = seeded(Net)
    failing = [4]

    def density(iteration: int) -> float:
        if iteration in failing:
            failing.clear()
            raise LookupError("no density")
        return 0.5

    optimizer = gft.DistributedOptimizer(sgd(model), model, comm, strategy=CSC(density, chunk_size=16))
    train(model, optimizer, range(3))
    optimizer.zero_grad()
    with raises(LookupError, "no density"):
        loss_of(model, batch_of(RANK, 3)).backward()
    train(model, optimizer, range(4, 7))
    same_everywhere(model.parameters())


def check_a_loss_scale_is_for_one(comm: gf.Communicator) -> None:
    scale = LossScale()
    models = [seeded(Net), seeded(Net)]
    first = gft.DistributedOptimizer(sgd(models[0]), models[0], comm, loss_scale=scale)
    with raises(ArgumentError, "one optimizer"):
        gft.DistributedOptimizer(sgd(models[1]), models[1], comm, loss_scale=scale)
    first.close()
    gft.DistributedOptimizer(sgd(models[1]), models[1], comm, loss_scale=scale).close()


@on_ranks(2, 3)
def check_an_exception_on_one_rank(comm: gf.Communicator) -> None:
    """All ranks drop that iteration, the others with an error that names the rank, and the next one works."""
    model = seeded(Net)
    optimizer = gft.DistributedOptimizer(sgd(model), model, comm, strategy=CSC(0.3, chunk_size=16))
    for failing_step in (0, 3):
        train(model, optimizer, range(failing_step))
        optimizer.zero_grad()
        if RANK == 0:
            hook = model.first.register_full_backward_hook(lambda *_: 1 / 0)
            with raises(ZeroDivisionError):
                loss_of(model, batch_of(RANK, 5).requires_grad_()).backward()
            hook.remove()
            optimizer.zero_grad()
        else:
            before = bits(model.parameters())
            with raises(AbandonedError, "rank 0 gave up", "no weight was changed"):
                loss_of(model, batch_of(RANK, 5)).backward()
            with raises(ArgumentError, "the iteration was dropped"):
                optimizer.step()
            assert bits(model.parameters()) == before
        (pool,) = optimizer.pools
        assert (comm.allgather(pool.important) == pool.important).all()
        train(model, optimizer, range(3))
        same_everywhere(model.parameters())
        same_everywhere(p.grad for p in model.parameters())


def check_grad_scaler(comm: gf.Communicator) -> None:
    """It works with a dense step of the core, and is refused where gradients are scaled otherwise, or kept."""
    for settings in ({"strategy": CSC(0.5, chunk_size=16)}, {"strategy": "top_k(density=0.5)"}, {"loss_scale": 8.0}):
        model = seeded(Net)
        optimizer = gft.DistributedOptimizer(sgd(model), model, comm, **settings)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        scaler.scale(loss_of(model, batch_of(RANK, 0))).backward()
        with raises(ArgumentError, "GradScaler does not go with", "loss_scale='dynamic'"):
            scaler.step(optimizer)
        train(model, optimizer, range(2))
        optimizer.close()
    model, alone = seeded(Net), seeded(Net)
    optimizer = gft.DistributedOptimizer(sgd(model), model, comm, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(3):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, batch_of(RANK, step))).backward()
        scaler.step(optimizer)
        scaler.update()
    train(alone, sgd(alone), range(3))
    assert_close(model, alone, 2e-6)


def rows_of(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the rows of the table below a heading of the docs."""
    text = (DOCS / page).read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def check_the_table_of_what_strategies_take(comm: gf.Communicator) -> None:
    """What docs/choosing.md says of optimizers, clipping and GradScaler is what is taken, and what is refused."""
    if SIZE != 3 or PLACE != "host":
        raise SkipTest("for one number of ranks, on the host")
    optimizers: dict[str, Callable[[Any], Any]] = {
        "SGD without momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
        "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        "LARS": lambda model: gft.LARS(model.parameters(), lr=0.01, momentum=0.0),
        "Adam": lambda model: torch.optim.Adam(model.parameters()),
        "AdamW": lambda model: torch.optim.AdamW(model.parameters()),
        "RMSprop": lambda model: torch.optim.RMSprop(model.parameters(), momentum=0.0),
    }
    table: dict[str, list[str]] = {}
    for strategies, *cells in rows_of("choosing.md", "Optimizers, clipping, `GradScaler`"):
        table.update(dict.fromkeys(re.findall(r"`(.+?)`", strategies), cells))
    typical = {each.name: each for each in parse_strategies("all")}
    assert set(typical) < set(table)

    def takes(words: str, kind: str, *, clip: bool = False, scaler: Any = None) -> bool:
        model, strategy = seeded(Net), typical.get(words, words)
        try:
            with gft.DistributedOptimizer(optimizers[kind](model), model, comm, strategy=strategy) as optimizer:
                loss = loss_of(model, batch_of(RANK, 0))
                (loss if scaler is None else scaler.scale(loss)).backward()
                comm.barrier()  # no rank gives up while others wait for their gradients
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
                optimizer.step() if scaler is None else scaler.step(optimizer)
                optimizer.finish()
        except ArgumentError:
            return False
        return True

    for words, (of_optimizers, of_clipping, of_scaler) in table.items():
        names = of_optimizers.replace("`", "").split(", ")
        if "any" in of_optimizers:
            names = [name for name in optimizers if "without momentum" not in of_optimizers or name != "SGD"]
        if "SGD" in names:
            names.append("SGD without momentum")
        found = {kind for kind in optimizers if takes(words, kind)}
        assert found == set(names), (words, found)
        assert takes(words, "SGD without momentum", clip=True) == (of_clipping != "no"), words
        assert (as_strategy(typical.get(words, words)).gradients == "local") == (of_clipping == "its own"), words
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        assert takes(words, "SGD without momentum", scaler=scaler) == (of_scaler == "yes"), words


# ---- checkpoints -----------------------------------------------------------------------------------------------------


@on_ranks(1, 3)
def check_other_ranks(comm: gf.Communicator) -> None:
    """A consolidated state goes onto any number of ranks: the mean of residuals stays the same."""
    model = seeded(Turned)
    optimizer = gft.DistributedOptimizer(sgd(model), model, comm, strategy=CSC(0.3, chunk_size=16))
    train(model, optimizer, range(6))
    own = saved(optimizer.state_dict())
    state = saved(optimizer.consolidated_state_dict())
    same_everywhere(t for pool in state["gradientflow"]["synchronizer"]["pools"].values() for t in pool["residuals"])
    names = list(optimizer.synchronizer.layout.names)
    means = {
        name: comm.allreduce(each.copy(), "mean")
        for name, each in zip(names, optimizer.pools[0].residuals, strict=True)
    }
    # Fewer ranks: those below the last, and the last by itself.
    part = comm.split(int(RANK == SIZE - 1))
    resumed = copy.deepcopy(model)
    optimizer.close()
    with gft.DistributedOptimizer(sgd(resumed), resumed, part, strategy=CSC(0.3, chunk_size=16)) as other:
        if SIZE > 1:
            before = bits(resumed.parameters())
            with raises(ArgumentError, f"of {SIZE}", f"of {part.size}", "consolidated_state_dict()"):
                other.load_state_dict(own)
            assert bits(resumed.parameters()) == before
        other.load_state_dict(state)
        assert other.pools[0].iteration == 6
        for name, residual in zip(other.synchronizer.layout.names, other.pools[0].residuals, strict=True):
            assert np.allclose(residual, means[name], rtol=1e-6, atol=1e-7), name
        train(resumed, other, range(3))
    part.close()
    # On the same ranks it goes on with the same momentum and choice.
    resumed = copy.deepcopy(model)
    with gft.DistributedOptimizer(sgd(resumed), resumed, comm, strategy=CSC(0.3, chunk_size=16)) as other:
        if SIZE > 1:
            wrong = {**own, "gradientflow": copy.deepcopy(own["gradientflow"])}
            for pool in wrong["gradientflow"]["synchronizer"]["pools"].values():
                pool["rank"] = 0  # as if rank 0 alone had saved its state
            with raises(ArgumentError, "rank 0 of"):
                other.load_state_dict(wrong)
            for pool in wrong["gradientflow"]["synchronizer"]["pools"].values():
                pool["rank"], pool["iteration"] = RANK, 6 + RANK
            with raises(MismatchError, "iteration", "is 7 on rank 1 and 6 on rank 0"):
                other.load_state_dict(wrong)
        other.load_state_dict(state)
        train(resumed, other, range(6, 8))
        same_everywhere(resumed.parameters())
        # Of a plain optimizer: its momentum is taken, and there are no residuals.
        plain_model = copy.deepcopy(model)
        plain = sgd(plain_model)
        train(plain_model, plain, range(3))
        other.load_state_dict(plain.state_dict())
        assert other.pools[0].iteration == 0
        assert not any(residual.any() for residual in other.pools[0].residuals)
        resumed.load_state_dict(plain_model.state_dict())
        train(resumed, other, range(3, 4))  # everything is sent
        train(plain_model, plain, range(3, 4))
        assert_close(resumed, plain_model, 2e-6)


def check_states_of_others(comm: gf.Communicator) -> None:
    """An error that says what is wrong, before anything changes."""

    def wrapped(make: Callable[[], nn.Module], **settings: Any) -> tuple[Any, gft.DistributedOptimizer]:
        model = seeded(make)
        return model, gft.DistributedOptimizer(sgd(model), model, comm, **settings)

    csc: dict[str, Any] = {"strategy": CSC(0.3, chunk_size=16)}
    model, optimizer = wrapped(Net, **csc)
    train(model, optimizer, range(3))
    state = optimizer.state_dict()
    before = saved(state)
    bare = optimizer._inner.state_dict()

    def changed(**entries: Any) -> dict[str, Any]:
        return {**bare, "gradientflow": {**state["gradientflow"], **entries}}

    shapes = state["gradientflow"]["shapes"]
    wider = {**shapes, "first.weight": [16, 7]}
    renamed = {name.replace("last", "end"): shape for name, shape in shapes.items()}
    for wrong, words in (
        (changed(shapes=wider), "first.weight has shape [16, 7], not [16, 6]"),
        (changed(shapes=renamed), "which has no last."),
        (changed(shapes={**shapes, "extra": [2]}), "which has extra"),
        (changed(of="csc with LARS"), "the state is of csc with LARS, and this is csc with SGD"),
        ({**bare, "gradientflow": {}}, "was not made by a DistributedOptimizer"),
        ({**bare, "param_groups": [{"params": [0]}]}, "with 1 parameters in 1 groups"),
        ({**bare, "state": {0: {"momentum_buffer": torch.ones(3)}}}, "has shape (3,)"),
    ):
        with raises(ArgumentError, words):
            optimizer.load_state_dict(wrong)
    if SIZE > 1:  # on one rank only
        with raises(ArgumentError, *(["which has extra"] if RANK == 1 else ["rank 1: ", "which has extra"])):
            optimizer.load_state_dict(changed(shapes={**shapes, "extra": [2]}) if RANK == 1 else state)
        with raises(MismatchError, "the kind of state"):
            optimizer.load_state_dict(bare if RANK == 1 else state)
    after = saved(optimizer.state_dict())
    assert str(after) == str(before)
    dense_model, dense = wrapped(Net, fused=True)
    train(dense_model, dense, range(2))
    optimizer.close()
    for use in (optimizer.state_dict, lambda: optimizer.load_state_dict(state), optimizer.consolidated_state_dict):
        with raises(ClosedError):
            use()


def check_broadcast_state(comm: gf.Communicator) -> None:
    """Momentum, masters and loss scale are the root's; residuals stay each rank's own."""
    for settings in ({"strategy": CSC(0.3, chunk_size=16), "loss_scale": 4.0}, {"fused": True}):
        model = seeded(Net).bfloat16()
        optimizer = gft.DistributedOptimizer(sgd(model), model, comm, **settings)
        train(model, optimizer, range(4))
        residual = [
            np.concatenate([each.ravel() for each in pool.residuals])
            for pool in optimizer.pools
            if isinstance(pool, gf.SparseGradientPool)
        ]
        wanted = saved(optimizer.state_dict())
        if RANK != 0:  # as after an exception on this rank
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(1.0)
            own = optimizer.state_dict()
            for tensor in (*own["gradientflow"]["momentum"].values(), *own["gradientflow"]["master_weights"].values()):
                tensor.fill_(3.0)
        gft.broadcast_parameters(model, comm=comm)
        gft.broadcast_optimizer_state(optimizer, comm=comm)
        now = saved(optimizer.state_dict())
        for what in ("momentum", "master_weights"):
            assert str(now["gradientflow"][what]) == str(wanted["gradientflow"][what])
        for pool, mine in zip(optimizer.pools, residual, strict=False):
            assert np.array_equal(np.concatenate([each.ravel() for each in pool.residuals]), mine)
        train(model, optimizer, range(4, 6))
        same_everywhere(model.parameters())
        optimizer.close()


# ---- wrong use, and what is told -------------------------------------------------------------------------------------


def check_wrong_arguments(comm: gf.Communicator) -> None:
    model = seeded(Net)
    csc = CSC(0.3)

    def make(optimizer: Any = None, **settings: Any) -> None:
        gft.DistributedOptimizer(sgd(model) if optimizer is None else optimizer, model, comm, **settings)

    parameters = list(model.parameters())
    two = [{"params": parameters[:2], "momentum": 0.5}, {"params": parameters[2:]}]
    for settings, words in (
        ({"strategy": csc, "wire": "float16"}, "fusion_threshold, wire and share are settings of the strategy"),
        ({"strategy": Dense(), "fusion_threshold": 0}, "settings of the strategy: dense(fusion_threshold=...)"),
        ({"strategy": "auto", "wire": "float16"}, "auto takes no wire: allow=('float16',) lets auto choose that one"),
        ({"strategy": "auto", "fusion_threshold": 0}, "auto takes no fusion_threshold: it is what auto finds out"),
        ({"strategy": csc, "fused": False}, "does not go with fused=False: the core has to make the step"),
        ({"loss_scale": 2.0, "fused": False}, "loss_scale does not go with fused=False"),
        ({"loss_scale": 3.0}, "power of two"),
        ({"loss_scale": "large"}, "loss_scale is"),
        (
            {"optimizer": torch.optim.Adam(parameters, amsgrad=True), "fused": True},
            ("does not have amsgrad",),
        ),
        (
            {"optimizer": torch.optim.Adam(parameters), "strategy": "hpsgd", "loss_scale": 2.0},
            ("loss_scale: the core makes the step", "not for Adam"),
        ),
        (
            {"optimizer": torch.optim.SGD(parameters, 0.1, maximize=True), "strategy": "ssgd"},
            ("ssgd does not have maximize",),
        ),
        (
            {"optimizer": torch.optim.Adam(parameters), "strategy": csc},
            ("csc(density=0.3): the core makes the step", "not for Adam"),
        ),
        ({"optimizer": torch.optim.SGD(parameters, 0.1, 0.9, nesterov=True), "fused": True}, "nesterov"),
        ({"optimizer": torch.optim.SGD(parameters, 0.1, 0.9, 0.5), "fused": True}, "dampening"),
        ({"optimizer": torch.optim.SGD(two, 0.1, 0.9), "strategy": csc}, "0.5 and 0.9 in different groups"),
    ):
        words = (words,) if isinstance(words, str) else words
        with raises(ArgumentError, *words):
            make(**settings)
    with raises(ArgumentTypeError, "the strategy is a int"):
        make(strategy=3)
    with raises(ArgumentTypeError, "the strategy is a CSC"):
        make(strategy=CSC)
    with raises(ArgumentError, "no strategy 'CSC'", "did you mean csc"):
        make(strategy="CSC")
    with raises(ArgumentError, "'densty'", "density, chunk_size"):
        make(strategy="csc(densty=0.3)")
    wide = nn.Linear(2, 2).double()
    for settings in ({"strategy": csc}, {"fused": True}):
        with raises(ArgumentTypeError, "weight is torch.float64"):
            gft.DistributedOptimizer(sgd(wide), wide, comm, **settings)
    if SIZE > 1:
        with raises(MismatchError, "strategy is csc(density=0.3) on rank 1 and dense on rank 0"):
            make(strategy=csc if RANK == 1 else Dense(), fused=True)
        with raises(MismatchError, "loss_scale is"):
            make(loss_scale=4.0 if RANK == 1 else 2.0)
    # Residuals follow a momentum that changes.
    optimizer = gft.DistributedOptimizer(sgd(model), model, comm, strategy="csc(density=0.3, chunk_size=16)")
    train(model, optimizer, range(2))
    assert optimizer.pools[0].momentum == np.float32(0.9)
    optimizer.param_groups[0]["momentum"] = 0.8
    train(model, optimizer, range(2, 3))
    assert optimizer.pools[0].momentum == np.float32(0.8)
    gaps = nn.Module()
    optimizer.close()
    gaps.weight = nn.Parameter(torch.ones(4, 6)[:, :3])
    for settings in ({"fused": True}, {"strategy": csc}, {"loss_scale": 2.0}):
        with raises(ArgumentError, "weight is not dense in memory, with shape (4, 3) and strides (6, 1)"):
            gft.DistributedOptimizer(sgd(gaps), gaps, comm, **settings)
    gaps.weight.data = torch.ones(3, 4).t()  # in another order, without gaps
    with gft.DistributedOptimizer(sgd(gaps), gaps, comm, fused=True) as optimizer:
        gaps.weight.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        gaps.weight.data = torch.ones(4, 6)[:, :3]
        gaps.weight.sum().backward()
        with raises(ArgumentError, "weight is not dense in memory, or not as it was"):
            optimizer.step()


@on_ranks(1, 2, 3)
def check_gradients_are_read_where_backpropagation_leaves_them(comm: gf.Communicator) -> None:
    """The same bits as where they are written to their places, whatever users do with gradients in between."""

    def weights_after(strategy: str, reads: bool) -> tuple[Vector, list[Any], int]:
        elsewhere = 0
        model = seeded(Net)
        model.unused = nn.Parameter(torch.ones(3))
        optimizer = gft.DistributedOptimizer(sgd(model), model, comm, strategy=strategy)
        for step in range(10):
            assert optimizer.synchronizer is not None
            if not reads:  # it is another synchronizer, once the order is known
                optimizer.synchronizer.gradient_source = "place"
            gradients: Any = optimizer._bound.gradients
            address_of = gradients.address_elsewhere
            addresses: list[int | None] = []
            gradients.address_elsewhere = lambda i, of=address_of, to=addresses: to.append(of(i)) or to[-1]
            inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(100 * step + RANK))
            if step == 3:
                kept = model.first.weight.grad
                assert kept is not None
                model.zero_grad()  # leaves the means in their places
                kept.fill_(7.0)
            elif step == 7:
                model.zero_grad()
            elif step == 4:
                with optimizer.no_sync():
                    model(inputs).square().mean().backward()
            elif step == 5:
                optimizer.zero_grad()
                model.last(torch.ones(2, 16)).sum().backward()
                optimizer.zero_grad()
            else:
                optimizer.zero_grad(set_to_none=step != 6)
            model(inputs).square().mean().backward()
            assert optimizer.synchronizer.gradients[0].ctypes.data in {
                parameter.grad.data_ptr() for parameter in model.parameters() if parameter.grad is not None
            }
            gradients.address_elsewhere = address_of
            if step == 8:
                for parameter in model.first.parameters():
                    parameter.grad.data.add_(parameter.data, alpha=0.1)  # which PyTorch does not count as a change
            elsewhere += sum(address is not None for address in addresses)
            optimizer.step()
            if step == 8:
                optimizer.zero_grad()
                assert not any(gradient.any() for gradient in optimizer.synchronizer.gradients)
        weights = torch.cat([parameter.detach().double().reshape(-1) for parameter in model.parameters()]).numpy()
        residuals = [np.array(residual) for residual in optimizer.synchronizer.residuals]
        optimizer.close()
        return weights, residuals, elsewhere

    if PLACE != "host":
        raise SkipTest("of the host")
    for strategy in ("top_k(ratio=5)", "lags(ratio=5, warmup=3)", "slgs(ratio=5)"):
        (weights, residuals, read), (others, theirs, none) = (weights_after(strategy, reads) for reads in (True, False))
        assert np.array_equal(weights, others), strategy
        assert all(np.array_equal(one, other) for one, other in zip(residuals, theirs, strict=True)), strategy
        assert (read > 0, none) == (strategy != "slgs(ratio=5)", 0)


def check_the_strategy_by_default(comm: gf.Communicator) -> None:
    model = seeded(Net)
    with gft.DistributedOptimizer(sgd(model), model, comm) as optimizer:
        assert optimizer.strategy == Dense()
        assert len(optimizer.pools) == (SIZE > 1)


run_checks(LAYOUTS if PLACE == "host" else LAYOUTS[:1], once=[check_the_table_of_what_strategies_take])
