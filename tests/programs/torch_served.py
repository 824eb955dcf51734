"""DistributedOptimizer with strategies on a parameter server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch_support
from marks import on_ranks
from support import LAYOUTS, RANK, SIZE, raises, run_checks, same_everywhere
from tensor_places import PLACE, PLACED
from torch import nn
from torch_support import Net, batch_of, seeded
from workers_reference import Floats, Servers, ssd_sgd

import gradientflow as gf
import gradientflow.torch as gft
from gradientflow.errors import AbandonedError, ArgumentError
from gradientflow.strategies.exchange.staged import StagedSynchronizer

RATE, MOMENTUM, DECAY = 0.1, 0.9, 0.01
DELAYED = "ssd_sgd(k=2, warmup=2)"


def net(dtype: torch.dtype = torch.float32) -> Net:
    model: Net = seeded(Net).to(PLACED, dtype)
    return model


def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    return torch_support.loss_of(model, batch_of(rank, step))


def flat(model: nn.Module) -> Floats:
    return torch.cat([each.detach().float().reshape(-1) for each in model.parameters()]).cpu().numpy().copy()


def gradient_of(rank: int, step: int, weights: Floats) -> Floats:
    model = net()
    nn.utils.vector_to_parameters(torch.from_numpy(weights.copy()).to(PLACED), model.parameters())
    loss_of(model, rank, step).backward()
    return torch.cat([each.grad.reshape(-1) for each in model.parameters() if each.grad is not None]).cpu().numpy()


@contextmanager
def trained(comm: gf.Communicator, words: str, model: nn.Module, **options: Any) -> Iterator[gft.DistributedOptimizer]:
    inner = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)
    with gft.DistributedOptimizer(inner, model, comm, strategy=words, **options) as optimizer:
        assert isinstance(optimizer.synchronizer, StagedSynchronizer) == (PLACE != "host")
        yield optimizer


def step_of(model: nn.Module, optimizer: gft.DistributedOptimizer, step: int) -> None:
    optimizer.zero_grad()
    optimizer.scale(loss_of(model, RANK, step)).backward()
    optimizer.step()


def require_same(found: Floats, wanted: Floats, *what: object) -> None:
    assert np.array_equal(found.view(np.uint32), wanted.view(np.uint32)), (what, np.abs(found - wanted).max())


@on_ranks(1, 3)
def check_workers_are_those_in_straight_lines(comm: gf.Communicator) -> None:
    """Gradients are taken where backpropagation has left them, and weights change in `step`."""
    for words, k, warmup, rule in (
        ("ssgd", 1, 9, "glu"),
        (DELAYED, 2, 2, "glu"),
        ("ssd_sgd(3, 3, 'dc_asgd')", 3, 3, "dc_asgd"),
    ):
        model = net()
        start = flat(model)
        line = Servers(start, 1, RATE, MOMENTUM, DECAY, inside=words != "ssgd")
        local, common = ssd_sgd(start, gradient_of, 9, workers=SIZE, servers=line, k=k, warmup=warmup, rule=rule)
        with trained(comm, words, model) as optimizer:
            for step, wanted in enumerate(local):
                before = flat(model)
                optimizer.zero_grad()
                loss_of(model, RANK, step).backward()
                require_same(flat(model), before, words, step)
                optimizer.step()
                require_same(flat(model), wanted[RANK], words, step)
            optimizer.finish()
            require_same(flat(model), common[-1], words)


def check_accumulation_and_parameters_without_gradients(comm: gf.Communicator) -> None:
    """Passes add up before they are pushed; a layer that no pass comes to stays as it is, unless its gradient is 0."""
    model = net()
    other = net()
    plain = torch.optim.SGD(other.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)
    with trained(comm, "ssgd", model, accumulation_steps=2) as optimizer:
        for step in range(4):
            optimizer.zero_grad()
            for part in range(2):
                loss_of(model, RANK, 2 * step + part).backward()
            optimizer.step()
            plain.zero_grad()
            sum(loss_of(other, rank, 2 * step + part) for rank in range(SIZE) for part in range(2)).div(SIZE).backward()
            plain.step()
        assert np.allclose(flat(model), flat(other), rtol=1e-5, atol=1e-6)
        for set_to_none in (False, True):
            before = model.last.weight.detach().clone()
            plain.zero_grad(set_to_none=set_to_none)
            other.first(torch.ones(1, 6, device=PLACED)).sum().mul(2).backward()
            plain.step()
            optimizer.zero_grad(set_to_none=set_to_none)
            for _ in range(2):
                model.first(torch.ones(1, 6, device=PLACED)).sum().backward()
            optimizer.step()
            same_everywhere(model.parameters())
            assert torch.equal(model.last.weight, before) == set_to_none
            assert np.allclose(flat(model), flat(other), rtol=1e-5, atol=1e-6)


def check_a_schedule_is_that_of_one_process(comm: gf.Communicator) -> None:
    model, other = net(), net()
    plain = torch.optim.SGD(other.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)
    with trained(comm, "ssgd", model) as optimizer:
        schedules = [torch.optim.lr_scheduler.StepLR(each, 2, gamma=0.25) for each in (optimizer, plain)]
        for step in range(7):
            step_of(model, optimizer, step)
            plain.zero_grad()
            sum(loss_of(other, rank, step) for rank in range(SIZE)).div(SIZE).backward()
            plain.step()
            for schedule in schedules:
                schedule.step()
            assert np.allclose(flat(model), flat(other), rtol=1e-5, atol=1e-6), step


def check_weights_loaded_before_the_first_step(comm: gf.Communicator) -> None:
    """They are what the servers begin with."""
    for dtype in (torch.float32, torch.float16):
        model = net(dtype)
        with trained(comm, "ssgd", model) as optimizer:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(0.5)
            for parameter in model.parameters():
                parameter.grad = None
            optimizer.zero_grad()
            sum((parameter * 0).sum() for parameter in model.parameters()).backward()
            optimizer.step()
            expected = np.float32(0.5) - np.float32(RATE) * (np.float32(DECAY) * np.float32(0.5))
            assert np.allclose(flat(model), expected, atol=1e-3 if dtype is torch.float16 else 1e-7)


def check_a_pass_that_only_adds_in_an_iteration_that_is_given_up(comm: gf.Communicator) -> None:
    """A rank has handed gradients over, fails, and makes a pass without an exchange: the servers are told as ever."""
    for words in ("ssgd", DELAYED):
        model = net()
        with trained(comm, words, model) as optimizer:
            step_of(model, optimizer, 0)
            optimizer.zero_grad()
            if RANK == 0:
                failing = next(iter(model.parameters())).register_hook(lambda _: 1 / 0)
                with raises(ZeroDivisionError, ""):
                    loss_of(model, RANK, 1).backward()
                failing.remove()
                with optimizer.no_sync():
                    loss_of(model, RANK, 1).backward()
            else:
                with raises(AbandonedError, "a rank gave up"):
                    loss_of(model, RANK, 1).backward()
            optimizer.zero_grad()
            for step in range(2, 4):
                step_of(model, optimizer, step)
            optimizer.finish()
            same_everywhere(model.parameters())


def check_what_comes_too_late(comm: gf.Communicator) -> None:
    model = net()
    with trained(comm, "ssgd", model) as optimizer:
        optimizer.zero_grad()
        loss_of(model, RANK, 0).backward()
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        with raises(ArgumentError, "has sent the gradients"):
            optimizer.step()
        optimizer.zero_grad()
        with raises(ArgumentError, "does not go with ssgd"), optimizer.join():
            pass
        for step in range(2):
            step_of(model, optimizer, step)
        optimizer.finish()
        same_everywhere(model.parameters())
    with raises(ArgumentError, "for torch.optim.SGD"):
        gft.DistributedOptimizer(torch.optim.Adam(model.parameters()), model, comm, strategy="ssgd")


run_checks(LAYOUTS)
