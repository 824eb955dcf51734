"""Checkpoints that move from one strategy to another, and what was pending, against NumPy."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from marks import slow
from numpy.typing import NDArray
from support import RANK, SIZE, raises, run_checks, same_everywhere
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch_support import Turned, batch_of, loss_of, saved, seeded

import gradientflow as gf
import gradientflow.torch as gft
from gradientflow.errors import ArgumentError
from gradientflow.optimizers import SGD
from gradientflow.training import ArrayLoop

RATE, MOMENTUM, DECAY = 0.05, 0.9, 0.01
Values = dict[str, NDArray[np.float32]]

# A strategy of each kind, then all of the rest.
KINDS = (
    *("dense", "csc(density=0.3, chunk_size=16)", "lags(ratio=8)", "dgc(ratio=8)", "powersgd(rank=1, warmup=1)"),
    *("local_sgd(period=3)", "sparse_loco(period=3)", "ssd_sgd(k=2, warmup=2)", "hpsgd"),
)
REST = (
    *("auto", "top_k(ratio=8)", "random_k(ratio=8)", "slgs(ratio=8)", "dgc(ratio=8, momentum=0)", "psgd", "ssgd"),
    *("csc(density=0.3, chunk_size=16, correction=False)", "diloco(period=3)", "asgd", "ssp(3)", "dssp(3, 15)"),
    *("elastic_bsp", "dense(share='node')"),
)
WITHOUT_MOMENTUM = ("dgc(ratio=8)", "hpsgd")
TAKE_RESIDUALS = ("csc", "lags", "top_k", "random_k", "slgs", "dgc(ratio=8, momentum=0)")


def takes_residuals(target: str, source: str) -> bool:
    return target.startswith(TAKE_RESIDUALS) and "correction=False" not in target and source != "dgc(ratio=8)"


def momentum_of(words: str) -> float:
    return 0.0 if words in WITHOUT_MOMENTUM else MOMENTUM


@contextmanager
def made(words: str, comm: gf.Communicator, dtype: Any = torch.float32, **options: Any) -> Iterator[tuple[Any, Any]]:
    model = seeded(lambda: Turned(24)).to(dtype)
    inner = torch.optim.SGD(model.parameters(), lr=RATE, momentum=momentum_of(words), weight_decay=DECAY)
    with gft.DistributedOptimizer(inner, model, comm, strategy=words, **options) as optimizer:
        yield model, optimizer
        optimizer.finish()


def train(model: nn.Module, optimizer: Any, steps: Iterable[int]) -> None:
    for step in steps:
        optimizer.zero_grad()
        optimizer.scale(loss_of(model, batch_of(RANK, step))).backward()
        optimizer.step()


def values_of(model: nn.Module) -> Values:
    return {name: each.detach().float().numpy().copy() for name, each in model.named_parameters()}


def mean(comm: gf.Communicator, values: Values) -> Values:
    return {name: comm.allreduce(values[name].astype(np.float32), "mean") for name in sorted(values)}


class Source:
    """What a training has come to: its weights, its state, and in NumPy what is pending and the momentum."""

    def __init__(self, words: str, comm: gf.Communicator, consolidated: bool, dtype: Any, **options: Any) -> None:
        self.words = words
        with made(words, comm, dtype, **options) as (model, optimizer):
            train(model, optimizer, range(5))
            if words == "hpsgd":
                optimizer.finish()
            self.model = copy.deepcopy(model.state_dict())
            self.state = saved(optimizer.consolidated_state_dict() if consolidated else optimizer.state_dict())
            self.weights, synchronizer = values_of(model), optimizer.synchronizer
            shapes = {name: each.shape for name, each in self.weights.items()}
            state = self.state.get("gradientflow", {}).get("synchronizer") or {}
            kept = dict(zip(synchronizer.layout.names, getattr(synchronizer, "residuals", ()), strict=False))
            self.residuals = {name: each.reshape(shapes[name]) for name, each in kept.items() if each.size}
            self.residuals = mean(comm, self.residuals)
            self.is_local = optimizer.strategy.gradients == "local"
            self.common = {}
            if "common" in state:
                common = dict(zip(state["names"], state["common"], strict=True))
                self.common = {name: common[name].numpy().reshape(shape) for name, shape in shapes.items()}
            if "server" in state:
                arrays = zip(state["names"], state["server"]["weights"], strict=True)
                self.weights = mean(comm, {name: each.numpy() * (RANK == 0) * SIZE for name, each in arrays})
            self.velocity = self._velocity(model, optimizer, state)
            if self.is_local or "server" in state:
                self.velocity = mean(comm, self.velocity)

    def _velocity(self, model: nn.Module, optimizer: Any, state: Any) -> Values:
        """The momentum of PyTorch's formula."""
        if "server" in state:
            factor = SIZE * (RANK == 0) / (RATE if "ssd_sgd" in self.words else 1.0)  # rank 0's counts
            arrays = zip(state["names"], state["server"]["momentum"], strict=True)
            return {name: each.numpy() * np.float32(factor) for name, each in arrays}
        own = optimizer.state_dict().get("gradientflow", {}).get("momentum")
        if own:
            return {name: each.numpy() / np.float32(RATE) for name, each in own.items()}
        of_each = {name: optimizer._inner.state.get(each, {}) for name, each in model.named_parameters()}
        return {name: each["momentum_buffer"].float().numpy() for name, each in of_each.items() if each}

    def after(self, pending: str | None, target: str, comm: gf.Communicator) -> tuple[Values, Values]:
        """The weights and the momentum that another strategy continues from."""
        weights, velocity = {**self.weights}, {**self.velocity}
        if self.is_local:
            weights = self.common if pending == "drop" and self.common else mean(comm, weights)
        momentum = momentum_of(self.words)
        for name, residual in self.residuals.items() if pending == "apply" and not self.is_local else ():
            if residual.any() and not takes_residuals(target, self.words):
                velocity[name] = momentum * velocity.get(name, 0) + residual + DECAY * weights[name]
                weights[name] = weights[name] - RATE * velocity[name]
        return weights, velocity


def choices(source: Source) -> tuple[str, ...]:
    if source.words.startswith("sparse_loco"):
        return ("drop",)
    return ("apply",) if source.words == "psgd" else ("apply", "drop")


def one_move(comm: gf.Communicator, source: Source, target: str, pending: str, **options: Any) -> None:
    with made(target, comm, next(iter(source.model.values())).dtype, **options) as (model, optimizer):
        model.load_state_dict(source.model)
        optimizer.load_state_dict(copy.deepcopy(source.state), pending=pending)
        where = (source.words, target, pending)
        weights, velocity = source.after(pending, target, comm)
        same_everywhere(model.parameters())
        tolerance = {"rtol": 1e-5, "atol": 1e-6} if next(model.parameters()).dtype is torch.float32 else {"rtol": 1e-2}
        for name, each in values_of(model).items():
            assert np.allclose(each, weights[name], **tolerance), (where, name)
        if momentum_of(source.words) and momentum_of(target):
            served = getattr(optimizer.synchronizer, "_initial_momentum", {})
            for name, parameter in model.named_parameters():
                found = served.get(name, optimizer._inner.state.get(parameter, {}).get("momentum_buffer"))
                wanted = velocity.get(name, np.zeros(1))
                found = np.zeros(1) if found is None else np.asarray(found).reshape(parameter.shape)
                assert np.allclose(found, wanted, rtol=1e-4, atol=1e-5), (where, name)
        assert optimizer.param_groups[0]["momentum"] == momentum_of(target), where
        if takes_residuals(target, source.words) and not source.is_local:
            kept = dict(zip(optimizer.synchronizer.layout.names, optimizer.synchronizer.residuals, strict=True))
            for name, each in mean(comm, {name: each.reshape(-1) for name, each in kept.items()}).items():
                if name in source.residuals:
                    assert np.allclose(each, source.residuals[name].reshape(-1), atol=1e-7), (where, name)
        train(model, optimizer, range(5, 7))
        optimizer.finish()
        same_everywhere(model.parameters())


def move_all(comm: gf.Communicator, sources: Iterable[str], targets: Iterable[str]) -> None:
    number = 0
    for words in sources:
        for consolidated in (False, True):
            source = Source(words, comm, consolidated, torch.float32)
            for target in targets:
                if target.partition("(")[0] != words.partition("(")[0]:
                    number += 1
                    if number % 2 == consolidated:
                        one_move(comm, source, target, choices(source)[number // 2 % len(choices(source))])


def check_pairs_of_kinds(comm: gf.Communicator) -> None:
    move_all(comm, KINDS, KINDS)


@slow
def check_pairs_of_a_kind_with_the_rest(comm: gf.Communicator) -> None:
    move_all(comm, KINDS, REST[::3])
    move_all(comm, REST[1::3], KINDS)


def check_what_is_pending_is_never_lost_unsaid(comm: gf.Communicator) -> None:
    """It is an error on all ranks, before anything changes, unless the new strategy takes it, or nothing is pending."""
    for words, fragment in (("lags(ratio=8)", "gradients that ranks have not sent"), ("psgd", "of their own")):
        source = Source(words, comm, False, torch.float32)
        with made("dense", comm) as (model, optimizer):
            train(model, optimizer, range(2))
            before, state = values_of(model), saved(optimizer.state_dict())
            with raises(ArgumentError, words.partition("(")[0], "dense", fragment, "'apply'", "'drop'"):
                optimizer.load_state_dict(source.state)
            with raises(ArgumentError, "pending is 'apply', 'drop' or None, not 'both'"):
                optimizer.load_state_dict(source.state, pending="both")
            if words == "psgd":
                with raises(ArgumentError, "no weights to go back to"):
                    optimizer.load_state_dict(source.state, pending="drop")
            else:
                broken = {**source.state, "state": {}, "param_groups": []} if RANK == SIZE - 1 else source.state
                with raises(ArgumentError, "another model"):
                    optimizer.load_state_dict(broken, pending="drop")
            assert all(np.array_equal(each, before[name]) for name, each in values_of(model).items())
            assert str(optimizer.state_dict()) == str(state)
    source = Source("sparse_loco(period=4)", comm, True, torch.float32)
    with made("dense", comm) as (_, optimizer), raises(ArgumentError, "call finish()", "pending='drop'"):
        optimizer.load_state_dict(source.state, pending="apply")
    for words in ("auto", "ssgd", "hpsgd", "lags(ratio=1)"):
        source = Source(words, comm, False, torch.float32)
        with made("dense", comm) as (_, optimizer):
            optimizer.load_state_dict(source.state)


def check_master_weights_and_loss_scale(comm: gf.Communicator) -> None:
    source = Source("top_k(ratio=8)", comm, False, torch.bfloat16, loss_scale=64.0)
    for pending in ("apply", "drop"):
        one_move(comm, source, "dense", pending, loss_scale=2.0)
        with made("ssgd", comm, torch.bfloat16, loss_scale=2.0) as (model, optimizer):
            model.load_state_dict(source.model)
            optimizer.load_state_dict(copy.deepcopy(source.state), pending=pending)
            assert optimizer.loss_scale.value == 64
            same_everywhere(master.numpy() for master in optimizer._fused_step.state()["master_weights"].values())


def check_tune_leaves_out_strategies_that_refuse_the_momentum(comm: gf.Communicator) -> None:
    for momentum in (0.0, MOMENTUM):
        model = seeded(lambda: Turned(24))
        inner = torch.optim.SGD(model.parameters(), lr=RATE, momentum=momentum)
        with gft.DistributedOptimizer(inner, model, comm) as optimizer:
            found = optimizer.tune("csc; dgc; hpsgd", compute_seconds=0.01)
            assert [each.name for each in found.strategies] == (["csc"] if momentum else ["csc", "dgc", "hpsgd"])


def check_a_step_of_adam(comm: gf.Communicator) -> None:
    """Applied with the moments of the state; also on one rank, where nothing else is done for the new strategy."""

    def adam(words: str, model: nn.Module) -> Any:
        return gft.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=RATE), model, comm, strategy=words)

    model, other, plain = (seeded(Turned) for _ in range(3))
    with adam("top_k(ratio=8)", model) as optimizer:
        train(model, optimizer, range(4))
        state = saved(optimizer.state_dict())
        pairs = zip(optimizer.synchronizer.layout.names, optimizer.synchronizer.residuals, strict=True)
        residuals = mean(comm, dict(pairs))
    for each in (other, plain):
        each.load_state_dict(model.state_dict())
    bare = torch.optim.AdamW(plain.parameters(), lr=RATE)
    bare.load_state_dict({name: copy.deepcopy(state[name]) for name in ("state", "param_groups")})
    for name, parameter in plain.named_parameters():
        parameter.grad = torch.from_numpy(residuals[name]) if residuals[name].any() else None
    bare.step()
    with adam("dense", other) as optimizer:
        with raises(ArgumentError, "gradients that ranks have not sent"):
            optimizer.load_state_dict(state)
        optimizer.load_state_dict(state, pending="apply")
        assert all(map(torch.equal, other.parameters(), plain.parameters()))
        after, wanted = optimizer._inner.state_dict()["state"], bare.state_dict()["state"]
        assert sorted(after) == sorted(wanted)
        for number, of_one in wanted.items():
            assert all(torch.equal(each, of_one[name]) for name, each in after[number].items()), number


def check_by_name(comm: gf.Communicator) -> None:
    """PyTorch's functions have no argument for what is pending: it is an error, or taken."""
    with made("lags(ratio=8)", comm) as (model, optimizer):
        train(model, optimizer, range(3))
        weights, state = saved(get_state_dict(model, optimizer))
        residuals = dict(zip(optimizer.synchronizer.layout.names, optimizer.synchronizer.residuals, strict=True))
    with made("dense", comm) as (model, optimizer), raises(ArgumentError, "gradients that ranks have not sent"):
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    with made("csc(density=0.3)", comm) as (model, optimizer):
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
        for name, each in zip(optimizer.synchronizer.layout.names, optimizer.synchronizer.residuals, strict=True):
            assert np.array_equal(each, residuals[name]), name
        same_everywhere(model.parameters())


def check_arrays(comm: gf.Communicator) -> None:
    """The same with the loop for arrays, whose optimizer's state is loaded before."""
    for dtype in (np.float32, np.float16):
        for words in ("lags(ratio=4)", "csc(density=0.3, chunk_size=4)", "dgc(ratio=4)"):
            momentum = momentum_of(words.replace("4", "8"))
            with ArrayLoop(comm, [np.ones(40, dtype), np.ones((4, 5), dtype)], words) as training:
                optimizer = SGD(training, training.weights, RATE, momentum, DECAY)
                step_arrays(training, optimizer, range(5))
                state, of_optimizer = training.state_dict(), optimizer.state_dict()
                weights = [each.copy() for each in training.weights]
                masters = of_optimizer["master"] if dtype is np.float16 else weights
                means = [comm.allreduce(np.ravel(each).copy(), "mean") for each in training.synchronizer.residuals]
            for target, pending in (("dense", "apply"), ("psgd", "apply"), ("dense", "drop"), ("ssgd", "apply")):
                with ArrayLoop(comm, weights, target) as training:
                    with raises(ArgumentError, "gradients that ranks have not sent"):
                        training.load_state_dict(state)
                    with raises(ArgumentError, "the optimizer makes the step"):
                        training.load_state_dict(state, pending="apply")
                    mine = [each.copy() for each in weights]
                    training.weights[:] = mine
                with ArrayLoop(comm, mine, target) as training:
                    optimizer = SGD(training, mine, RATE, MOMENTUM, DECAY)
                    optimizer.load_state_dict(of_optimizer)
                    training.load_state_dict(state, pending=pending)
                    for index, start in enumerate(masters):
                        start, velocity = np.ravel(start), of_optimizer["momentum"][index]
                        velocity = velocity / np.float32(RATE if "csc" in words else 1)
                        if pending == "apply":
                            velocity = momentum * velocity + means[index] + DECAY * start
                            start = start - RATE * velocity
                        assert np.allclose(np.ravel(mine[index]), start, rtol=1e-5 if dtype is np.float32 else 1e-3)
                        if momentum:
                            assert np.allclose(optimizer.state_dict()["momentum"][index], velocity, rtol=1e-4)
                    same_everywhere(mine)
                    step_arrays(training, optimizer, range(5, 6))
                    training.finish()
                    same_everywhere(mine)


def check_momentum_that_differs_between_ranks(comm: gf.Communicator) -> None:
    """Servers are read at another moment by each rank; ranks with weights of their own have moments of their own."""
    for words in ("ssgd", "local_sgd(period=2)"):
        with ArrayLoop(comm, [np.ones(40, np.float32)], words) as training:
            optimizer = SGD(training, training.weights, RATE, MOMENTUM, DECAY)
            step_arrays(training, optimizer, range(3))
            training.finish()
            state, of_optimizer = copy.deepcopy((training.state_dict(), optimizer.state_dict()))
            weights = [each.copy() for each in training.weights]
        if words == "ssgd":
            state["synchronizer"]["server"]["momentum"] = [
                each + RANK for each in state["synchronizer"]["server"]["momentum"]
            ]
        with ArrayLoop(comm, weights, "dense") as training:
            optimizer = SGD(training, training.weights, RATE, MOMENTUM, DECAY)
            if words != "ssgd":
                optimizer.load_state_dict(of_optimizer)
            training.load_state_dict(state, pending="apply")
            found = optimizer.state_dict()["momentum"]
            assert any(each is not None and each.any() for each in found), words
            same_everywhere([each for each in found if each is not None])


def step_arrays(training: ArrayLoop, optimizer: Any, steps: Iterable[int]) -> None:
    for step in steps:
        random = np.random.default_rng([RANK, step])
        for index, gradient in enumerate(training.gradients):
            gradient[...] = random.standard_normal(gradient.shape)
            training.ready(index)
        training.wait()
        optimizer.step()


run_checks()
