"""Weights that the ranks of a node share: the same training, what is refused, and a death in the middle of a step."""

from __future__ import annotations

import copy
import io
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from marks import on_ranks
from support import RANK, SIZE, WORLD, raises, run, run_checks, say
from torch import nn

import gradientflow as gf
import gradientflow.torch as gft
from gradientflow.errors import (
    AbandonedError,
    ArgumentError,
    ClosedError,
    CommunicationError,
    MismatchError,
    PeerError,
)
from gradientflow.strategies import Dense

torch.set_num_threads(1)

FAULTY = 1


class Net(nn.Module):
    """Tied weights, a parameter without elements, one of a single element, a frozen one, and one used at times."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first = nn.Linear(6, 37)
        self.tied = nn.Linear(6, 37)
        self.tied.weight = self.first.weight
        self.last = nn.Linear(37, 3, bias=False)
        self.last.weight.data = self.last.weight.data.t().contiguous().t()  # dense, not in row-major order
        self.empty = nn.Parameter(torch.zeros(0, 4))
        self.single = nn.Parameter(torch.ones(()))
        self.frozen = nn.Parameter(torch.full((37,), 0.5), requires_grad=False)
        self.at_times = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, all_of_it: bool = False) -> torch.Tensor:
        x = self.last((self.first(x) + self.tied(x)).tanh() * self.frozen) * self.single
        x = x + self.empty.sum()
        return self.at_times(x) if all_of_it else x


def batch(rank: int, step: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(100 * step + rank), dtype=torch.float32).to(dtype)


def loss(model: nn.Module, step: int, rank: int = RANK) -> Any:
    x = batch(rank, step, next(model.parameters()).dtype)
    return model(x, step % 3 == 2).float().square().mean()


def sgd(model: nn.Module, lr: float = 0.1, momentum: float = 0.9) -> torch.optim.SGD:
    return torch.optim.SGD(
        [{"params": [p for n, p in model.named_parameters() if "first" in n and p.requires_grad], "weight_decay": 0.01},
         {"params": [p for n, p in model.named_parameters() if "first" not in n and p.requires_grad], "lr": lr / 2}],
        lr=lr, momentum=momentum)  # fmt: skip


def adam(model: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01, weight_decay=0.01)


def adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01, maximize=True)


def train(optimizer: Any, model: nn.Module, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss(model, step).backward()
        optimizer.step()


def assert_same(left: nn.Module, right: nn.Module) -> None:
    for (name, one), other in zip(left.named_parameters(), right.parameters(), strict=True):
        assert one.dtype is other.dtype
        assert torch.equal(one, other), f"{name}: {(one - other).abs().max()}"


def kept(optimizer: Any) -> list[torch.Tensor]:
    states = [of_one for _, of_one in sorted(optimizer.state_dict()["state"].items())]
    return [each for of_one in states for each in of_one.values() if isinstance(each, torch.Tensor)]


# ---- the same training -----------------------------------------------------------------------------------------------


@on_ranks(1, 2, 3)
def check_bits_of_the_step_without_sharing(comm: gf.Communicator) -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for make in (sgd, lambda model: sgd(model, momentum=0), adam, adamw):
            models = [Net().to(dtype) for _ in range(2)]
            one = gft.DistributedOptimizer(make(models[0]), models[0], comm, fused=True)
            other = gft.DistributedOptimizer(make(models[1]), models[1], comm, share="node")
            for step in range(4):
                train(one, models[0], 1, step)
                train(other, models[1], 1, step)
                assert_same(*models)
            for left, right in zip(kept(one), kept(other), strict=True):
                assert torch.equal(left, right)
            one.close()
            other.close()
            assert_same(*models)


def check_large_tensors(comm: gf.Communicator) -> None:
    """Of several blocks, and with borders of slices inside of tensors."""
    models = []
    for share in (None, "node"):
        torch.manual_seed(1)
        models.append(nn.Sequential(nn.Linear(6, 5000), nn.Linear(5000, 3)))
        inner = torch.optim.SGD(models[-1].parameters(), 0.01, 0.9, weight_decay=0.1)
        with gft.DistributedOptimizer(inner, models[-1], comm, fused=True, share=share) as optimizer:
            for step in range(3):
                optimizer.zero_grad()
                models[-1](batch(RANK, step)).square().mean().backward()
                optimizer.step()
    assert_same(*models)


@on_ranks(1, 3)
def check_training_equals_one_process(comm: gf.Communicator) -> None:
    alone, model = Net(), Net()
    plain = sgd(alone)
    with gft.DistributedOptimizer(sgd(model), model, comm, strategy="dense(share='node')") as optimizer:
        schedulers = [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in (optimizer, plain)]
        for step in range(6):
            optimizer.zero_grad()
            loss(model, step).backward()
            optimizer.step()
            plain.zero_grad()
            for rank in range(SIZE):
                (loss(alone, step, rank) / SIZE).backward()
            plain.step()
            for scheduler in schedulers:
                scheduler.step()
            for one, other in zip(model.parameters(), alone.parameters(), strict=True):
                assert torch.allclose(one, other, rtol=1e-5, atol=1e-6)


def check_accumulation_and_closures(comm: gf.Communicator) -> None:
    models = [Net() for _ in range(2)]
    made = [
        gft.DistributedOptimizer(sgd(model), model, comm, fused=True, share=share, accumulation_steps=2)
        for model, share in zip(models, (None, "node"), strict=True)
    ]
    for optimizer, model in zip(made, models, strict=True):
        for step in range(3):
            optimizer.zero_grad()
            with optimizer.no_sync():
                loss(model, 3 * step).backward()
            loss(model, 3 * step + 2).backward()
            optimizer.step()

        def closure(optimizer: Any = optimizer, model: nn.Module = model) -> Any:
            optimizer.zero_grad()
            value = loss(model, 50)
            value.backward()
            optimizer.synchronize()
            return value

        optimizer.step(closure)
        train(optimizer, model, 0)
    assert_same(*models)
    for optimizer in made:
        optimizer.close()


def check_loss_scale(comm: gf.Communicator) -> None:
    """Gradients that are not finite on one rank have all skip the step."""
    models = [Net().to(torch.float16) for _ in range(2)]
    for model, share in zip(models, (None, "node"), strict=True):
        optimizer = gft.DistributedOptimizer(sgd(model), model, comm, fused=True, share=share, loss_scale="dynamic")
        for step in range(4):
            optimizer.zero_grad()
            value = optimizer.scale(loss(model, step))
            if step == 2 and comm.size - 1 == RANK:
                value = value * float("inf")
            value.backward()
            optimizer.step()
        assert optimizer.overflows >= 1
        optimizer.close()
    assert_same(*models)


def check_later_parameters(comm: gf.Communicator) -> None:
    models = [Net() for _ in range(2)]
    for model, share in zip(models, (None, "node"), strict=True):
        optimizer = gft.DistributedOptimizer(sgd(model), model, comm, fused=True, share=share)
        train(optimizer, model, 4)
        model.frozen.requires_grad_(True)
        optimizer.add_param_group({"params": [model.frozen], "lr": 0.3})
        train(optimizer, model, 4, 4)
        optimizer.close()
    assert_same(*models)


# ---- one copy --------------------------------------------------------------------------------------------------------


@on_ranks(1, 2, 3)
def check_there_is_one_copy(comm: gf.Communicator) -> None:
    model = Net()
    optimizer = gft.DistributedOptimizer(sgd(model), model, comm, share="node")
    train(optimizer, model, 2)
    buffer = optimizer.state[model.single]["momentum_buffer"]
    WORLD.Barrier()
    if comm.describe()["local_rank"] == 0:
        model.single.data.fill_(17 + comm.node)
        buffer.fill_(3 + comm.node)
    WORLD.Barrier()
    assert model.single.item() == 17 + comm.node
    assert buffer.item() == 3 + comm.node
    WORLD.Barrier()
    optimizer.close()
    model.single.data.fill_(RANK)
    optimizer._inner.state[model.single]["momentum_buffer"].fill_(RANK)
    WORLD.Barrier()
    assert model.single.item() == RANK
    assert optimizer._inner.state[model.single]["momentum_buffer"].item() == RANK
    train(optimizer._inner, model, 1)  # alone
    assert model(batch(0, 0)).isfinite().all()


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def check_checkpoints_with_and_without_it(comm: gf.Communicator) -> None:
    for make in (sgd, adam):
        go_on_from_checkpoints(comm, make)


def go_on_from_checkpoints(comm: gf.Communicator, make: Callable[[nn.Module], Any]) -> None:
    wanted = Net()
    with gft.DistributedOptimizer(make(wanted), wanted, comm, fused=True) as optimizer:
        train(optimizer, wanted, 6)
    for before, after in (("node", None), (None, "node"), ("node", "node")):
        model = Net()
        with gft.DistributedOptimizer(make(model), model, comm, fused=True, share=before) as optimizer:
            train(optimizer, model, 3)
            stream = io.BytesIO()
            torch.save([model.state_dict(), optimizer.state_dict()], stream)
            train(optimizer, model, 1, 40)
        stream.seek(0)
        of_model, of_optimizer = torch.load(stream)
        model = Net()
        with gft.DistributedOptimizer(make(model), model, comm, fused=True, share=after) as optimizer:
            train(optimizer, model, 1, 50)
            WORLD.Barrier()  # the others are done with their step
            model.load_state_dict(of_model)
            optimizer.load_state_dict(of_optimizer)
            train(optimizer, model, 3, 3)
            assert_same(model, wanted)
            assert_same(copy.deepcopy(model), wanted)
    alone = make(Net())
    alone.load_state_dict(of_optimizer)


def check_broadcasts(comm: gf.Communicator) -> None:
    model, other = Net(), Net()
    with gft.DistributedOptimizer(sgd(model), model, comm, share="node") as optimizer:
        train(optimizer, model, 1)
        WORLD.Barrier()
        if RANK == 0:
            model.load_state_dict(other.state_dict())
        gft.broadcast_parameters(model, comm=comm)
        gft.broadcast_optimizer_state(optimizer, comm=comm)
        assert_same(model, other)
        train(optimizer, model, 2)


# ---- what does not go with it ----------------------------------------------------------------------------------------


@on_ranks(1, 3)
def check_refused(comm: gf.Communicator) -> None:
    model = Net()
    for wanted, arguments in {
        "csc takes no share": {"strategy": "csc(density=0.1)", "share": "node"},
        "dense(share=...)": {"strategy": "dense", "share": "node"},
        "share is 'node' or None, not 'host'": {"share": "host"},
        "share='node') does not go with fused=False": {"share": "node", "fused": False},
    }.items():
        with raises(ArgumentError, wanted):
            gft.DistributedOptimizer(sgd(model), model, comm, **arguments)  # type: ignore[arg-type]
    with raises(ArgumentError, "share='node': each rank makes the step on a slice", "LARS"):
        gft.DistributedOptimizer(gft.LARS(model.parameters(), 0.1), model, comm, share="node")
    with raises(ArgumentError, "torch.optim.SGD"):
        gft.DistributedOptimizer(torch.optim.Adagrad(model.parameters()), model, comm, share="node")
    with raises(ArgumentError, "only gradientflow.torch shares weights"):
        gf.training.ArrayLoop(comm, [np.zeros(3, np.float32)], Dense(share="node"))
    with gft.DistributedOptimizer(sgd(model, momentum=0), model, comm, share="node") as optimizer:
        with raises(ArgumentError, "join()"), optimizer.join():
            pass
        scaler: Any = torch.amp.GradScaler("cpu", init_scale=2.0)
        scaler.scale(loss(model, 0)).backward()
        with raises(ArgumentError, "GradScaler does not go with dense(share='node')"):
            scaler.step(optimizer)
        optimizer.param_groups[1]["momentum"] = 0.9
        with raises(ArgumentError, "momentum"):
            optimizer.step()
    if SIZE > 1:
        with raises(MismatchError, "strategy"):
            gft.DistributedOptimizer(sgd(model), model, comm, fused=True, share="node" if RANK else None)


def check_changed_gradients(comm: gf.Communicator) -> None:
    """On one rank: all ranks of its node are told, and none makes the step."""
    model = Net()
    with gft.DistributedOptimizer(sgd(model), model, comm, share="node") as optimizer:
        train(optimizer, model, 1)
        before = [each.detach().clone() for each in model.parameters()]
        for changes in (
            lambda: nn.utils.clip_grad_norm_(model.parameters(), 1e-3),
            lambda: model.single.detach().add_(1),
        ):
            optimizer.zero_grad()
            loss(model, 1).backward()
            WORLD.Barrier()
            if comm.describe()["local_rank"] == 0:
                changes()
                with raises(ArgumentError, "share='node'"):
                    optimizer.step()
            else:
                with raises(AbandonedError, "did not make the step, after an error there: no weight was changed"):
                    optimizer.step()
            for parameter, value in zip(model.parameters(), before, strict=True):
                assert parameter is model.single or torch.equal(parameter, value)
        WORLD.Barrier()
        model.load_state_dict(Net().state_dict())
        train(optimizer, model, 2)


def check_parameters_that_are_written(comm: gf.Communicator) -> None:
    """Between steps: it is noticed in the backward pass."""
    model = Net()
    with gft.DistributedOptimizer(sgd(model), model, comm, share="node") as optimizer:
        train(optimizer, model, 1)
        for change, wanted in (
            (lambda: model.single.data.copy_(model.single.data * 1), None),  # not to be seen: PyTorch does not count it
            (lambda: model.single.detach().mul_(1), "single was written outside of step()"),
        ):
            WORLD.Barrier()
            change()
            WORLD.Barrier()
            optimizer.zero_grad()
            if wanted is None:
                loss(model, 2).backward()
            else:
                with raises(ArgumentError, wanted):
                    loss(model, 2).backward()
        optimizer.zero_grad()
        WORLD.Barrier()
        model.last.load_state_dict(Net().last.state_dict())  # of a module
        gft.broadcast_parameters(model, comm=comm)
        train(optimizer, model, 2)
        model.single.data = torch.zeros(())
        with raises(ArgumentError, "single has memory of its own now"):
            loss(model, 2).backward()


def check_an_error_in_a_backward_pass(comm: gf.Communicator) -> None:
    """All drop the iteration, and go on."""
    model = Net()
    with gft.DistributedOptimizer(sgd(model), model, comm, share="node") as optimizer:
        train(optimizer, model, 2)
        before = [each.detach().clone() for each in model.parameters()]

        def fail(_: torch.Tensor) -> None:
            raise KeyError("mine")

        optimizer.zero_grad()
        if RANK == SIZE - 1:
            hook = model.first.bias.register_hook(fail)
            with raises(KeyError, "mine"):
                loss(model, 2).backward()
            hook.remove()
            optimizer.zero_grad()
        else:
            with raises(AbandonedError, f"rank {SIZE - 1}"):
                loss(model, 2).backward()
        assert all(map(torch.equal, before, model.parameters()))
        train(optimizer, model, 2, 3)


def check_a_communicator_that_is_closed(comm: gf.Communicator) -> None:
    """What the optimizer has made of it ends with it: the other ranks hear of that, and so does a step."""
    for closing in (range(SIZE), [0]):
        own, model = comm.split(0), Net()
        assert own is not None
        optimizer = gft.DistributedOptimizer(sgd(model), model, own, share="node")
        train(optimizer, model, 2)
        if RANK in closing:
            own.close()
        with raises(ClosedError if RANK in closing else PeerError, "closed"):
            train(optimizer, model, 1, 2)
        optimizer.close()
        model(batch(0, 0))
        WORLD.Barrier()


# ---- death -----------------------------------------------------------------------------------------------------------


def kill_one_in_a_step() -> None:
    """What it has left half-done is an error wherever it would be used, and a checkpoint goes on."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    others = WORLD.Split(int(RANK == FAULTY), RANK)
    comm, survivors = gf.init(), gf.init(others)
    model = Net()
    optimizer = gft.DistributedOptimizer(sgd(model), model, comm, share="node")
    train(optimizer, model, 3)
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    its: Any = optimizer._fused_step
    if RANK == FAULTY:
        its._step = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    with raises(PeerError, f"rank {FAULTY}"):
        train(optimizer, model, 1, 3)
    wanted = f"updated in part: rank {FAULTY} did not complete a step"
    uses: list[Callable[[], Any]] = [
        lambda: model(batch(0, 0)),
        lambda: model.state_dict(),
        lambda: model.first.state_dict(),
    ]
    for use in [*uses, optimizer.state_dict]:
        with raises(CommunicationError, wanted):
            use()
    optimizer.__exit__(RuntimeError, None, None)
    for use in uses:
        with raises(CommunicationError, wanted):
            use()
    goes_on, alone = Net(), Net()
    plain = gft.DistributedOptimizer(sgd(alone), alone, survivors, fused=True)
    optimizer = gft.DistributedOptimizer(sgd(goes_on), goes_on, survivors, share="node")
    for one, other in ((optimizer, goes_on), (plain, alone)):
        other.load_state_dict(saved[0])
        one.load_state_dict(saved[1])
        train(one, other, 2, 3)
    assert_same(goes_on, alone)
    say("survived", RANK)
    others.Barrier()  # the launcher may end the job when one leaves like this
    os._exit(0)  # ending MPI without one of its ranks may hang


if sys.argv[1:] == ["kill"]:
    run(kill_one_in_a_step)
else:
    run_checks([{}, {"node_size": SIZE - 1}][:SIZE])  # the last node has one rank
