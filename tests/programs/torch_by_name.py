"""Checkpoints of a DistributedOptimizer by PyTorch's functions that save by name: they keep all of its state."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from support import RANK, SIZE, raises, run_checks
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch_support import Turned, saved, seeded, with_process_group

import gradientflow as gf
import gradientflow.torch as gft
from gradientflow.errors import ArgumentError, ArgumentTypeError

FOLDER = Path(sys.argv[1])
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)

STRATEGIES: dict[str, dict[str, Any]] = {
    "dense": {},
    "csc": {"strategy": "csc(density=0.4, chunk_size=16)"},
    "top_k": {"strategy": "top_k(ratio=8)"},
    "dgc": {"strategy": "dgc(ratio=8)"},
    "lags": {"strategy": "lags"},
    "powersgd": {"strategy": "powersgd(rank=1, warmup=1)"},
    "local_sgd": {"strategy": "local_sgd(period=3)"},
    "diloco": {"strategy": "diloco(period=2)"},
    "ssgd": {"strategy": "ssgd"},
    "ssd_sgd": {"strategy": "ssd_sgd(k=2)"},
    "fused": {"fused": True},
    "scaled": {"loss_scale": "dynamic"},
}


def made(name: str, comm: gf.Communicator, kind: str = "sgd") -> tuple[nn.Module, Any]:
    """Return a model and its optimizer; what the core does is done for 16 bits."""
    model = seeded(Turned).to(torch.bfloat16 if name in ("fused", "scaled") else torch.float32)
    momentum = 0.0 if name in ("dgc", "random_k") else 0.9
    inner: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)
    if kind == "adamw":
        inner = torch.optim.AdamW(model.parameters(), lr=0.05)
    return model, gft.DistributedOptimizer(inner, model, comm, **STRATEGIES[name])


def train(model: nn.Module, optimizer: Any, steps: Iterable[int], rank: int = RANK) -> None:
    dtype = next(model.parameters()).dtype
    for step in steps:
        optimizer.zero_grad()
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(100 * step + rank)).to(dtype)
        loss = model(x).float().square().mean()
        getattr(optimizer, "scale", lambda each: each)(loss).backward()
        optimizer.step()


def bits(model: nn.Module) -> bytes:
    return b"".join(each.detach().float().numpy().tobytes() for each in model.parameters())


def save(folder: Path, model: nn.Module, optimizer: Any, options: StateDictOptions | None = None, **where: Any) -> None:
    weights, state = get_state_dict(model, optimizer, options=options)
    writer = checkpoint.FileSystemWriter(folder, sync_files=False)
    checkpoint.save({"model": weights, "optimizer": state}, storage_writer=writer, **where)


def load(folder: Path, model: nn.Module, optimizer: Any, options: StateDictOptions | None = None, **where: Any) -> None:
    weights, state = get_state_dict(model, optimizer, options=options)
    places = {"model": weights, "optimizer": state}
    checkpoint.load(places, checkpoint_id=folder, **where)
    set_state_dict(
        model, optimizer, model_state_dict=places["model"], optim_state_dict=places["optimizer"], options=options
    )


def residual_means(comm: gf.Communicator, optimizer: Any) -> dict[str, Any]:
    names = optimizer.synchronizer.layout.names
    found = {name: np.asarray(each) for name, each in zip(names, optimizer.synchronizer.residuals, strict=True)}
    return {name: comm.allreduce(found[name].reshape(-1).copy(), "mean") for name in sorted(found)}


# ---- checks ----------------------------------------------------------------------------------------------------------


def check_training_goes_on_bit_for_bit(comm: gf.Communicator) -> None:
    """Each rank reads what it has saved: PyTorch's recipe, with an optimizer that has not trained."""
    cases = [("dense", "adamw"), ("csc", "sgd"), ("top_k", "adamw"), ("diloco", "sgd"), ("scaled", "sgd")]
    for number, (name, kind) in enumerate(cases):
        options = FLAT if number % 2 == 0 else None
        model, optimizer = made(name, comm, kind)
        train(model, optimizer, range(4))
        save(FOLDER / name, model, optimizer, options)
        train(model, optimizer, range(4, 7))
        wanted = bits(model)
        optimizer.close()
        model, optimizer = made(name, comm, kind)
        load(FOLDER / name, model, optimizer, options)
        train(model, optimizer, range(4, 7))
        assert bits(model) == wanted, name
        optimizer.close()


def check_files_of_each_rank(comm: gf.Communicator) -> None:
    """By `torch.save`, and for an optimizer whose gradients were zeroed before."""
    for number, name in enumerate(STRATEGIES):
        options = FLAT if number % 2 else None
        model, optimizer = made(name, comm)
        train(model, optimizer, range(4))
        weights, state = saved(get_state_dict(model, optimizer, options=options))
        train(model, optimizer, range(4, 7))
        wanted = bits(model)
        optimizer.close()
        model, optimizer = made(name, comm)
        optimizer.zero_grad()
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state, options=options)
        train(model, optimizer, range(4, 7))
        assert bits(model) == wanted, name
        optimizer.close()


def check_parameters_of_single_ranks(comm: gf.Communicator) -> None:
    """Ranks that train by themselves have momentum for other parameters than others."""

    def layers(comm: gf.Communicator) -> tuple[nn.ModuleList, Any]:
        torch.manual_seed(0)
        model = nn.ModuleList(nn.Linear(6, 5) for _ in range(SIZE))
        inner = torch.optim.AdamW(model.parameters(), lr=0.05)
        return model, gft.DistributedOptimizer(inner, model, comm, strategy="local_sgd(period=100)")

    model, optimizer = layers(comm)
    train(model[RANK], optimizer, range(3))
    save(FOLDER / "single", model, optimizer)
    train(model[RANK], optimizer, range(3, 5))
    wanted = bits(model)
    optimizer.close()
    model, optimizer = layers(comm)
    load(FOLDER / "single", model, optimizer)
    train(model[RANK], optimizer, range(3, 5))
    assert bits(model) == wanted
    optimizer.close()
    with comm.split(RANK) as alone:
        model, optimizer = layers(alone)
        load(FOLDER / "single", model, optimizer, no_dist=True)
        assert [optimizer.state[each]["step"].item() for each in model.parameters()] == [3.0] * 2 * SIZE
        optimizer.close()


def check_fewer_ranks(comm: gf.Communicator) -> None:
    """One rank reads what all have saved: its residuals are the means."""
    for name in ("csc", "dgc", "lags", "local_sgd", "ssd_sgd"):
        model, optimizer = made(name, comm)
        train(model, optimizer, range(5))
        save(FOLDER / name, model, optimizer)
        has_residuals = hasattr(optimizer.synchronizer, "residuals")
        means = residual_means(comm, optimizer) if has_residuals else {}
        mine = [of_one["momentum_buffer"].numpy().copy() for of_one in optimizer.state.values() if of_one]
        buffers = [comm.allreduce(each, "mean") for each in mine]
        own = get_optimizer_state_dict(model, optimizer)
        optimizer.close()
        with comm.split(RANK) as alone:
            model, optimizer = made(name, alone)
            load(FOLDER / name, model, optimizer, no_dist=True)
            for key, mean in residual_means(alone, optimizer).items() if has_residuals else ():
                assert np.allclose(mean, means[key], rtol=1e-5, atol=1e-7), (name, key)
            found = [of_one["momentum_buffer"] for of_one in optimizer.state.values() if of_one]
            assert len(found) == len(buffers)
            assert all(np.allclose(one, other, rtol=1e-5) for one, other in zip(found, buffers, strict=True)), name
            train(model, optimizer, range(5, 7))
            with raises(ArgumentError, f"of 1 of the {SIZE} ranks", "there are 1 ranks", "consolidated_state_dict()"):
                set_optimizer_state_dict(model, optimizer, own)
            optimizer.close()


def check_more_ranks(comm: gf.Communicator) -> None:
    """All read what all but the last have saved: means of residuals are as before, also with what is not in pools."""
    group = dist.new_group(list(range(SIZE - 1)))
    for name in ("csc", "diloco"):
        part = comm.split(int(RANK == SIZE - 1))
        model, optimizer = made(name, part)
        train(model, optimizer, range(5))
        has_residuals = hasattr(optimizer.synchronizer, "residuals")
        means = residual_means(part, optimizer) if has_residuals else {}
        if RANK < SIZE - 1:
            save(FOLDER / name, model, optimizer, process_group=group)
        optimizer.close()
        part.close()
        comm.barrier()
        model, optimizer = made(name, comm)
        load(FOLDER / name, model, optimizer)
        if has_residuals:
            found = residual_means(comm, optimizer)
            close = [np.allclose(found[key], mean, rtol=1e-5, atol=1e-7) for key, mean in means.items()]
            assert all(close) or RANK == SIZE - 1, name
        train(model, optimizer, range(5, 7))
        optimizer.finish()
        digests = comm.allgather(np.frombuffer(bits(model), np.uint8)).reshape(SIZE, -1)
        assert (digests == digests[0]).all(), name
        optimizer.close()


def check_saving_makes_no_step(comm: gf.Communicator) -> None:
    """Weights stay, and one rank can save alone, before the first step and later."""
    for name in ("ssgd", "ssd_sgd", "csc", "dense", "scaled"):
        model, optimizer = made(name, comm)
        for steps in (range(0), range(3)):
            train(model, optimizer, steps)
            optimizer.zero_grad()
            comm.barrier()
            before = bits(model)
            if RANK == 0:
                get_optimizer_state_dict(model, optimizer)
            assert bits(model) == before, name
            comm.barrier()
        train(model, optimizer, range(3, 5))
        optimizer.finish()
        optimizer.close()


def check_saving_before_the_first_step(comm: gf.Communicator) -> None:
    """One rank saves an optimizer that has not trained: all train on as without it, and so does what is loaded."""

    def decaying(kind: str) -> tuple[nn.Module, Any]:
        model = seeded(Turned)
        if kind == "sgd":
            inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)
        else:
            inner = torch.optim.AdamW(model.parameters(), lr=0.05)
        return model, gft.DistributedOptimizer(inner, model, comm)

    for kind in ("sgd", "adamw"):
        found = []
        for what in ("nothing", "saved", "loaded"):
            model, optimizer = decaying(kind)
            if what == "saved" and RANK == 0:
                get_optimizer_state_dict(model, optimizer)
            elif what == "loaded":
                set_optimizer_state_dict(model, optimizer, saved(get_optimizer_state_dict(model, optimizer)))
            train(model, optimizer, range(3))
            found.append(bits(model))
            assert all(group["weight_decay"] > 0 for group in optimizer.param_groups)
            optimizer.close()
        assert found == found[:1] * 3, kind


def check_one_rank_gives_all_the_state(comm: gf.Communicator) -> None:
    full_state, options = (StateDictOptions(full_state_dict=True, broadcast_from_rank0=root) for root in (False, True))
    for name, kind in (("dense", "adamw"), ("scaled", "sgd")):
        model, optimizer = made(name, comm, kind)
        train(model, optimizer, range(3))
        full = get_state_dict(model, optimizer, options=full_state)
        # PyTorch wants all but numbers on one device: the host's beside those of a GPU do not count.
        named = [of_one.get("gradientflow", {}).get("common", {}) for of_one in full[1]["state"].values()]
        assert all(each.dim() == 0 for of_one in named for each in of_one.values())
        full = saved(full) if RANK == 0 else ({}, {})
        train(model, optimizer, range(3, 5))
        wanted = bits(model)
        optimizer.close()
        model, optimizer = made(name, comm, kind)
        set_model_state_dict(model, full[0], options=options)
        set_optimizer_state_dict(model, optimizer, full[1], options=options)
        train(model, optimizer, range(3, 5))
        assert bits(model) == wanted
        optimizer.close()
    # Residuals are not those of rank 0 on all ranks.
    model, optimizer = made("top_k", comm)
    train(model, optimizer, range(3))
    full = get_state_dict(model, optimizer, options=full_state)
    with raises(ArgumentError, "rank 0 of 2", "save consolidated_state_dict(), which any number of ranks load"):
        set_optimizer_state_dict(model, optimizer, full[1] if RANK == 0 else {}, options=options)
    optimizer.close()


def check_plain_optimizers(comm: gf.Communicator) -> None:
    """What a plain optimizer has saved can be loaded, and what it loads does not disturb it."""
    plain = seeded(Turned)
    sgd = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
    train(plain, sgd, range(3), rank=0)
    save(FOLDER / "plain", plain, sgd)
    weights, wanted = bits(plain), sgd.state[plain.first.weight]["momentum_buffer"]
    for settings in ({}, {"fused": True}):
        model = seeded(Turned)
        inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        with gft.DistributedOptimizer(inner, model, comm, **settings) as optimizer:
            load(FOLDER / "plain", model, optimizer)
            assert torch.equal(optimizer.state[model.first.weight]["momentum_buffer"], wanted)
    model, optimizer = made("top_k", comm)
    with raises(checkpoint.CheckpointException, "gradientflow"):
        load(FOLDER / "plain", model, optimizer)
    load(FOLDER / "plain", model, optimizer, planner=checkpoint.DefaultLoadPlanner(allow_partial_load=True))
    assert torch.equal(optimizer.state[model.first.weight]["momentum_buffer"], wanted)
    assert not any(each.any() for each in optimizer.synchronizer.residuals)
    optimizer.close()
    model, optimizer = made("top_k", comm, "adamw")
    train(model, optimizer, range(3))
    save(FOLDER / "adamw", model, optimizer)
    state = saved(optimizer.state_dict())
    optimizer.close()
    for is_read in (False, True):
        other = seeded(Turned)
        adam = torch.optim.AdamW(other.parameters(), lr=0.05)
        if is_read:
            load(FOLDER / "adamw", other, adam)
        else:
            adam.load_state_dict(state)
        of_one = adam.state[other.first.weight]
        assert torch.equal(of_one["exp_avg"], optimizer.state[model.first.weight]["exp_avg"])
        train(other, adam, range(2))
    assert bits(plain) == weights


def check_gradients_before_the_first_pass(comm: gf.Communicator) -> None:
    for name in ("dense", "csc", "top_k", "powersgd", "local_sgd", "ssgd"):
        model, optimizer = made(name, comm)
        assert all(each.grad is None for each in model.parameters()), name
        optimizer.zero_grad()
        assert all(each.grad is None for each in model.parameters()), name
        train(model, optimizer, range(1))
        assert optimizer.bytes_copied == 0, name
        assert all(each.grad is not None for each in model.parameters()), name
        optimizer.finish()
        optimizer.close()


def check_views_of_the_state(comm: gf.Communicator) -> None:
    """The state of an optimizer looks as it is, but to those who ask for the names of one parameter's."""
    model, optimizer = made("top_k", comm)
    assert not optimizer.state
    assert optimizer.state_dict()["state"] == {}
    train(model, optimizer, range(2))
    state = optimizer.state
    assert state == optimizer._inner.state
    assert all(set(of_one) == {"momentum_buffer"} for of_one in state.values())
    assert all(set(of_one) == {"momentum_buffer"} for _, of_one in state.items())
    state[model.last.bias]["momentum_buffer"] = torch.ones(5)
    state[model.first.bias]["momentum_buffer"].zero_()
    assert (optimizer._inner.state[model.last.bias]["momentum_buffer"] == 1).all()
    assert [set(of_one) for of_one in optimizer._inner.state.values()] == [{"momentum_buffer"}] * 4
    copied = copy.deepcopy(state)
    assert [set(of_one) for of_one in copied.values()] == [{"momentum_buffer"}] * 4
    optimizer.close()


def check_states_that_have_no_names(comm: gf.Communicator) -> None:
    model, optimizer = made("top_k", comm)
    train(model, optimizer, range(2))
    _, state = get_state_dict(model, optimizer)
    for of_one in state["state"].values():
        of_one.get("gradientflow", {}).get("own", {}).pop("0", None)
    with raises(ArgumentError, "incomplete", "get_state_dict()"):
        set_optimizer_state_dict(model, optimizer, state)
    optimizer.synchronizer.state_dict = lambda: {"names": [], "more": {1, 2}}
    with raises(ArgumentTypeError, "a set", "arrays, numbers, text"):
        get_optimizer_state_dict(model, optimizer)
    del optimizer.synchronizer.state_dict
    optimizer.close()


warnings.simplefilter("ignore")  # PyTorch's about itself
run_checks(around=with_process_group)
