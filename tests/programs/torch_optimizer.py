"""DistributedOptimizer: the same training as in one process, whatever PyTorch's users do with an optimizer."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from marks import on_ranks
from support import LAYOUTS, RANK, SIZE, WORLD, in_threads, raises, run_checks, same_everywhere
from tensor_places import PLACE, address_of
from torch import nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint
from torch_support import Branches, assert_close, batch_of, saved, seeded, sgd

import gradientflow as gf
import gradientflow.torch as gft
import gradientflow.torch.direct_layer
from gradientflow.errors import (
    AbandonedError,
    ArgumentError,
    ArgumentTypeError,
    ClosedError,
    MismatchError,
)

gradientflow.torch.direct_layer.LEAST_BYTES = (
    0  # so that the layers of these small models write their gradients in place
)

Tensor = torch.Tensor


class Tied(nn.Module):
    """Two layers with the same weights, and one that comes first in the list of parameters but last in use."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)
        self.embedding = nn.Linear(6, 6)
        self.decoder = nn.Linear(6, 6, bias=False)
        self.decoder.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.decoder(torch.tanh(self.embedding(x))))


def batch_of_all(step: int, width: int = 6, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.cat([batch_of(rank, step, width, dtype) for rank in range(SIZE)])


def assert_in_pool(optimizer: gft.DistributedOptimizer, model: nn.Module) -> None:
    if SIZE == 1:
        return
    places = [(address_of(pool.memory), pool.nbytes) for pool in optimizer.pools]
    for name, parameter in model.named_parameters():
        address = parameter.grad.data_ptr()
        assert any(begin <= address < begin + size for begin, size in places), name


def same_gradients(left: nn.Module, right: nn.Module) -> None:
    for mine, theirs in zip(left.parameters(), right.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None)
        assert mine.grad is None or torch.equal(mine.grad, theirs.grad)


# ---- the same training -----------------------------------------------------------------------------------------------


@on_ranks(1, 2, 3)
def check_training_equals_one_process(comm: gf.Communicator) -> None:
    for make in (sgd, lambda m: torch.optim.Adam([{"params": m.last.parameters(), "lr": 0.01},
                                                  {"params": m.embedding.parameters()}], lr=0.003)):  # fmt: skip
        for threshold in ("8MiB", 0):
            alone = seeded(Tied)
            model = copy.deepcopy(alone)
            plain = make(alone)
            optimizer = gft.DistributedOptimizer(make(model), model, comm, fusion_threshold=threshold)
            assert isinstance(optimizer, torch.optim.Optimizer)
            for step in range(5):
                optimizer.zero_grad(set_to_none=step != 3)
                model(batch_of(RANK, step)).square().mean().backward()
                assert_in_pool(optimizer, model)
                same_everywhere(p.grad for p in model.parameters())
                optimizer.step()
                plain.zero_grad(set_to_none=step != 3)
                alone(batch_of_all(step)).square().mean().backward()
                plain.step()
                assert_close(model, alone)
                same_everywhere(model.parameters())
            assert optimizer.bytes_copied == 0
            assert len(optimizer.reports) == sum(len(pool.ranges) for pool in optimizer.pools)
            assert (WORLD.allreduce(optimizer.bytes_sent) > 0) == (comm.nodes > 1)
            optimizer.close()


def check_whole_numbers_are_exact(comm: gf.Communicator) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        model = nn.Linear(3, 2, bias=False).to(dtype)
        with torch.no_grad():
            model.weight.fill_(1)
        optimizer = gft.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model, comm)
        for step in range(2):
            optimizer.zero_grad()
            model(torch.full((1, 3), float(SIZE * (RANK + step)), dtype=dtype)).sum().backward()
            wanted = SIZE * (SIZE - 1) // 2 + SIZE * step
            assert (model.weight.grad == wanted).all()
            before = model.weight.detach().clone()
            optimizer.step()
            assert (model.weight == before - wanted).all()


def check_wire(comm: gf.Communicator) -> None:
    models = {wire: seeded(lambda: nn.Linear(6, 500)) for wire in (None, "float16", "bfloat16", "float8_e4m3")}
    sent = {}
    for wire, model in models.items():
        optimizer = gft.DistributedOptimizer(sgd(model), model, comm, wire=wire)
        for step in range(3):
            optimizer.zero_grad()
            model(batch_of(RANK, step)).square().mean().backward()
            optimizer.step()
            same_everywhere(model.parameters())
        sent[wire] = WORLD.allreduce(optimizer.bytes_sent)
    assert_close(models["float16"], models[None], 1e-3)
    assert_close(models["bfloat16"], models[None], 1e-2)
    assert_close(models["float8_e4m3"], models[None], 5e-2)
    if comm.nodes > 1:
        assert sent["float8_e4m3"] < sent["float16"] < sent[None]


@on_ranks(1, 3)
def check_dtypes_and_layouts(comm: gf.Communicator) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 6).double()
            self.conv = nn.Conv2d(2, 3, (3, 1)).to(memory_format=torch.channels_last)
            self.last = nn.Linear(3, 2).bfloat16()
            self.scale = nn.Parameter(torch.tensor(2.0))
            self.nothing = nn.Parameter(torch.zeros(0, 3))
            self.transposed = nn.Parameter(torch.arange(6.0).view(2, 3).t())
            self.frozen = nn.Parameter(torch.ones(2, dtype=torch.complex64), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(self.first(x).float().view(-1, 2, 3, 1)).flatten(1)
            return (self.last(y.bfloat16()).float() * self.scale @ self.transposed.t()).sum() + self.nothing.sum()

    model = seeded(Mixed)
    alone = copy.deepcopy(model)
    optimizer = gft.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model, comm, wire="float16")
    assert len(optimizer.pools) == (3 if SIZE > 1 else 0)
    for step in range(3):
        optimizer.zero_grad()
        model(batch_of(RANK, step, 4, torch.float64)).backward()
        assert_in_pool(optimizer, nn.ParameterList(p for p in model.parameters() if p.numel() and p.requires_grad))
        for parameter in (model.conv.weight, model.transposed):
            assert parameter.grad.stride() == parameter.stride()
        optimizer.step()
        same_everywhere(model.parameters())
    assert not torch.equal(model.conv.weight, alone.conv.weight)
    assert optimizer.bytes_copied == 0


# ---- when gradients are averaged -------------------------------------------------------------------------------------


def check_accumulation(comm: gf.Communicator) -> None:
    """Three batches a step: under no_sync, counted, without a last pass that averages, and averaged every time."""
    alone = seeded(Tied)
    plain = sgd(alone)
    ways = {}
    for way in ("no_sync", "counted", "step alone", "every pass"):
        model = copy.deepcopy(alone)
        steps = 3 if way == "counted" else 1
        ways[way] = model, gft.DistributedOptimizer(sgd(model), model, comm, accumulation_steps=steps)
    for step in range(3):
        before = {way: [pool.iteration for pool in optimizer.pools] for way, (_, optimizer) in ways.items()}
        for _, optimizer in ways.values():
            optimizer.zero_grad()
        plain.zero_grad()
        for part in range(3):
            alone(batch_of_all(3 * step + part)).square().mean().backward()
            for way, (model, optimizer) in ways.items():
                loss = model(batch_of(RANK, 3 * step + part)).square().mean()
                if way == "step alone" or (way == "no_sync" and part < 2):
                    with optimizer.no_sync():
                        loss.backward()
                else:
                    loss.backward()
        plain.step()
        for way, (model, optimizer) in ways.items():
            optimizer.step()
            assert_close(model, alone)
            same_everywhere(model.parameters())
            assert optimizer.bytes_copied == 0
            if step:  # in the first the pools are made anew
                done = [pool.iteration - number for pool, number in zip(optimizer.pools, before[way], strict=True)]
                assert done == [3 if way == "every pass" else 1] * len(done)


@on_ranks(1, 3)
def check_gradients_that_layers_write_in_place(comm: gf.Communicator) -> None:
    """They have the bits of PyTorch's, and whoever else gets such a gradient has it in memory of its own."""
    alone = seeded(Tied)
    model = copy.deepcopy(alone)
    optimizer = gft.DistributedOptimizer(sgd(model), model, comm)
    layers = (model.last, model.embedding, model.decoder)
    assert [type(layer) is not nn.Linear for layer in layers] == [SIZE > 1] * 3
    assert "Linear(in_features=6, out_features=3, bias=True)" in repr(model)
    optimizer.zero_grad()
    last, decoder = model.last.weight, model.decoder.weight

    def compare(run: Callable[[Any], object]) -> None:
        """Run the same with both models, without an exchange."""
        for each in (optimizer, alone):
            each.zero_grad()
        with optimizer.no_sync():
            run(model)
        run(alone)
        same_gradients(model, alone)

    x = batch_of(RANK, 0)
    for shape in ((4, 6), (2, 2, 6), (2, 1, 2, 6)):
        compare(lambda m, shape=shape: m(x.view(shape)).square().mean().backward())
        compare(lambda m, shape=shape: m(x.view(shape)).sum().backward())  # whose gradient is one number
    compare(lambda m: m(x[0]).square().mean().backward())
    compare(lambda m: [m(x + part).square().mean().backward() for part in range(3)])
    compare(lambda m: m.last(x.t()[:, :1].expand(6, 6)).square().mean().backward())
    compare(lambda m: m(x).square().mean().backward(create_graph=True))
    compare(lambda m: m(x).square().mean().backward(inputs=[m.last.weight]))
    compare(lambda m: torch.func.functional_call(m, {"last.weight": torch.ones(3, 6)}, x).sum().backward())
    compare(lambda m: torch.func.functional_call(m, {"last.weight": 2 * m.last.weight}, x).sum().backward())
    compare(lambda m: m.last(input=x).square().mean().backward())
    with torch.autocast("cpu", torch.bfloat16):
        compare(lambda m: m(x).square().mean().backward())
    optimizer.zero_grad()
    (gradient,) = torch.autograd.grad(model(x).square().mean(), [last])
    before = gradient.clone()
    assert last.grad is None or not last.grad.any()
    optimizer.zero_grad()
    model(x + 1).square().mean().backward()
    assert torch.equal(gradient, before)
    # A pass inside of another one, which both use a parameter.
    compare(
        lambda m: m.decoder(checkpoint(m.embedding, x.clone().requires_grad_(), use_reentrant=True)).sum().backward()
    )
    kept: list[Tensor] = []
    hooks = [m.last.weight.register_hook(lambda g: kept.append(g) or 2 * g) for m in (model, alone)]
    compare(lambda m: m(x).square().mean().backward())
    assert torch.equal(*kept)
    for hook in hooks:
        hook.remove()
    decoder.requires_grad_(False)
    alone.decoder.weight.requires_grad_(False)
    compare(lambda m: m(x).square().mean().backward())
    decoder.requires_grad_(True)
    alone.decoder.weight.requires_grad_(True)
    if SIZE > 1:
        optimizer.zero_grad()
        loss = model(x).sum()
        decoder.requires_grad_(False)
        with raises(ArgumentError, "embedding.weight is frozen now"):
            loss.backward()
        decoder.requires_grad_(True)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    optimizer.zero_grad()
    for each in copies:
        assert type(each.last) is nn.Linear
        assert not any("gradientflow" in name for name in vars(each.last))
        each(x).sum().backward()
        assert each.last.weight.grad is not None
        assert last.grad is None or not last.grad.any()
    assert torch.equal(torch.jit.script(model.last)(x), alone.last(x))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        assert torch.equal(*(forward_ad.unpack_dual(m(dual)).tangent for m in (model, alone)))
    compiled = {id(m): torch.compile(m, backend="eager", fullgraph=True) for m in (model, alone)}
    compare(lambda m: compiled[id(m)](x).square().mean().backward())
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    same_everywhere(model.parameters())
    optimizer.close()
    assert type(model.last) is nn.Linear


class Words(nn.Module):
    """A table of rows, of which the decoder's weight may be the same."""

    def __init__(self, tied: bool, **options: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 6, **options)
        self.decoder = nn.Linear(6, 7)
        if tied:
            self.decoder.weight = self.table.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.decoder(torch.tanh(self.table(words)))


@on_ranks(1, 3)
def check_embeddings_that_add_in_place(comm: gf.Communicator) -> None:
    """Their gradients have the bits of PyTorch's, whatever is looked up, and however the model is trained."""
    generator = torch.Generator().manual_seed(RANK)
    words = torch.randint(0, 7, (5, 4), generator=generator)  # rows come several times
    options: list[dict[str, Any]] = [
        {},
        {"tied": True},
        {"padding_idx": 2},
        {"padding_idx": -1, "tied": True},
        {"max_norm": 0.5},
        {"scale_grad_by_freq": True},
        {"dtype": torch.float64, "tied": True},
    ]
    for each in options:
        tied, dtype = each.pop("tied", False), each.get("dtype", torch.float32)
        alone = seeded(lambda tied=tied, each=each: Words(tied, **each)).to(dtype)
        model = copy.deepcopy(alone)
        optimizer, plain = gft.DistributedOptimizer(sgd(model), model, comm), sgd(alone)
        assert (type(model.table) is not nn.Embedding) == (SIZE > 1)
        copied = optimizer.bytes_copied
        passes: list[Callable[[Any], object]] = [
            lambda m: m(words).square().mean().backward(),
            lambda m: m(words.int()).square().mean().backward(),
            lambda m: m(words[:0]).square().sum().backward(),
            lambda m: m(words[0, 0]).square().mean().backward(),
            lambda m: (m(words[:2]) + m(words[1:3])).square().mean().backward(),
            lambda m: [m(words[i]).square().mean().backward() for i in range(3)],
            lambda m: m(words).square().mean().backward(create_graph=True),
            lambda m: m.table(words).sum().backward(),  # not to the decoder, unless it has the same weight
        ]
        for run in passes:
            for trained in (optimizer, plain):
                trained.zero_grad()
            with optimizer.no_sync():
                run(model)
            run(alone)
            same_gradients(model, alone)
        assert optimizer.bytes_copied == copied
        optimizer.zero_grad()
        (gradient,) = torch.autograd.grad(model(words).square().mean(), [model.table.weight])
        before = gradient.clone()
        optimizer.zero_grad()
        model(words).square().sum().backward()
        assert torch.equal(gradient, before)
        optimizer.step()
        same_everywhere(model.parameters())
        again = pickle.loads(pickle.dumps(model))
        assert type(again.table) is nn.Embedding
        with torch.no_grad():
            assert torch.equal(again(words), model(words))
            assert torch.equal(torch.jit.script(model.table)(words), model.table(words))
        assert repr(model) == repr(alone)
        optimizer.close()
        assert type(model.table) is nn.Embedding


def check_several_losses(comm: gf.Communicator) -> None:
    """Backward passes through different parts of the model, and passes that stop half-way, add up to one step."""
    model = seeded(Branches)
    alone = copy.deepcopy(model)
    optimizer = gft.DistributedOptimizer(sgd(model), model, comm)
    plain = sgd(alone)
    for step in range(3):
        optimizer.zero_grad()
        model(batch_of(RANK, step, 4), 0).backward()
        model(batch_of(RANK, step, 4), 1, 2).backward()
        optimizer.step()
        plain.zero_grad()
        (alone(batch_of_all(step, 4), 0, 1, 2) / SIZE).backward()
        plain.step()
        assert_close(model, alone)


@on_ranks(1, 3)
def check_unused_parameters(comm: gf.Communicator) -> None:
    """What a rank does not use counts as zeros; what nobody uses stays as it is, momentum and weight decay included."""
    for set_to_none in (True, False):
        model = seeded(lambda: Branches(SIZE + 2))
        alone = copy.deepcopy(model)
        optimizer, plain = gft.DistributedOptimizer(sgd(model), model, comm), sgd(alone)
        for step in range(4):
            optimizer.zero_grad(set_to_none=set_to_none)
            plain.zero_grad(set_to_none=set_to_none)
            everywhere = [SIZE + 1] if step == 2 else []
            model(batch_of(RANK, step, 4), (RANK + step) % SIZE, *everywhere).backward()
            total = sum(alone(batch_of(r, step, 4), (r + step) % SIZE, *everywhere) for r in range(SIZE))
            (total / SIZE).backward()
            for mine, wanted in zip(model.parameters(), alone.parameters(), strict=True):
                assert (mine.grad is None) == (wanted.grad is None)
            untouched = model.branches[SIZE].weight.detach().clone()
            optimizer.step()
            plain.step()
            assert torch.equal(model.branches[SIZE].weight, untouched)
            assert model.branches[SIZE].weight not in optimizer.state
            assert (model.branches[SIZE + 1].weight in optimizer.state) == (step >= 2)
            assert_close(model, alone)
            same_everywhere(model.parameters())
    # Nobody uses anything; one rank does not even have a backward pass.
    before = copy.deepcopy(model)
    optimizer.zero_grad()
    optimizer.step()
    assert_close(model, before, 0)
    optimizer.zero_grad()
    if RANK != SIZE - 1:
        model(torch.ones(1, 4), 0).backward()
    optimizer.step()
    same_everywhere(model.parameters())
    assert SIZE == 1 or not torch.equal(model.branches[0].weight, before.branches[0].weight)


@on_ranks(1, 3)
def check_order(comm: gf.Communicator) -> None:
    """After the first iteration gradients lie in the order in which rank 0 had them."""
    model = seeded(Tied)
    optimizer = gft.DistributedOptimizer(sgd(model), model, comm, fusion_threshold=0)
    names = {id(p): name for name, p in model.named_parameters()}
    for step in range(3):
        pools = optimizer.pools
        optimizer.zero_grad()
        model(batch_of(RANK, step)).square().mean().backward()
        assert_in_pool(optimizer, model)
        optimizer.step()
        assert (optimizer.pools != pools) == (step == 0 and SIZE > 1)
    in_memory = sorted(model.parameters(), key=lambda p: p.grad.data_ptr())
    if SIZE > 1:
        assert [names[id(p)] for p in in_memory] == [
            "last.bias", "last.weight", "embedding.bias", "embedding.weight"
        ], [names[id(p)] for p in in_memory]  # fmt: skip
        assert len(optimizer.pools[0].ranges) == 4


def check_checkpointing(comm: gf.Communicator) -> None:
    """Backward passes inside a backward pass."""
    model = seeded(lambda: nn.Sequential(*(nn.Linear(6, 6) for _ in range(4))))
    alone = copy.deepcopy(model)
    optimizer, plain = gft.DistributedOptimizer(sgd(model), model, comm), sgd(alone)

    def run(x: Tensor, reentrant: bool) -> Tensor:
        x = checkpoint(model[:2], x.requires_grad_(), use_reentrant=reentrant)
        return model[3](checkpoint(model[2], x, use_reentrant=reentrant))

    for step in range(4):
        optimizer.zero_grad()
        run(batch_of(RANK, step), step < 3).square().mean().backward()
        same_everywhere(p.grad for p in model.parameters())
        optimizer.step()
        plain.zero_grad()
        alone(batch_of_all(step)).square().mean().backward()
        plain.step()
        assert_close(model, alone)
    if SIZE == 1:
        return
    # One parameter in two inner passes: its gradient is final twice.
    optimizer.zero_grad()
    x = batch_of(RANK, 0).requires_grad_()
    for _ in range(2):
        x = checkpoint(model[0], x, use_reentrant=True)
    with raises(ArgumentError, "0.bias became final twice", "no_sync()"):
        x.sum().backward()
    optimizer.zero_grad()
    x = batch_of(RANK, 0).requires_grad_()
    with optimizer.no_sync():
        checkpoint(model[0], checkpoint(model[0], x, use_reentrant=True), use_reentrant=True).sum().backward()
    optimizer.step()
    same_everywhere(model.parameters())


def check_two_optimizers(comm: gf.Communicator) -> None:
    """Two models in one backward pass, in an order that differs between ranks."""
    models = [seeded(Branches, seed) for seed in range(2)]
    optimizers = [gft.DistributedOptimizer(sgd(model), model, comm) for model in models]
    for step in range(3):
        x = batch_of(RANK, step, 4)
        for optimizer in optimizers:
            optimizer.zero_grad()
        if step == 0:
            losses = [model(x, 0, 1) for model in models]
        else:
            losses = [model(x, 0) for model in (models if RANK == 0 else reversed(models))]
        sum(losses).backward()
        for model in models:
            same_everywhere(p.grad for p in model.parameters() if p.grad is not None)
        for optimizer in optimizers:
            optimizer.step()
    same_everywhere(p for model in models for p in model.parameters())


@on_ranks(1, 3)
def check_join(comm: gf.Communicator) -> None:
    """Ranks with 0, 1, 2... batches: means over all ranks, and the same model everywhere at the end."""
    model = seeded(Tied)
    alone = copy.deepcopy(model)
    optimizer, plain = gft.DistributedOptimizer(sgd(model), model, comm), sgd(alone)
    for counts in (list(range(SIZE)), [3] * SIZE, [2] * (SIZE - 1) + [0]):
        with optimizer.join():
            for step in range(counts[RANK]):
                optimizer.zero_grad()
                model(batch_of(RANK, step)).square().mean().backward()
                optimizer.step()
        for step in range(max(counts)):
            plain.zero_grad()
            losses = [alone(batch_of(r, step)).square().mean() for r in range(SIZE) if step < counts[r]]
            (sum(losses) / SIZE).backward()
            plain.step()
        assert_close(model, alone)
        same_everywhere(model.parameters())
        same_everywhere(optimizer.state[p]["momentum_buffer"] for p in model.parameters() if optimizer.state)
    with raises(ArgumentError, "already under way"), optimizer.join(), optimizer.join():
        pass
    with raises(KeyError), optimizer.join():
        raise KeyError
    if SIZE > 1:
        with optimizer.join(), raises(ArgumentError, "step(closure) does not work inside join()"):
            optimizer.step(lambda: 0.0)


# ---- what users do with an optimizer ---------------------------------------------------------------------------------


@on_ranks(1, 3)
def check_clipping_and_gradients_by_hand(comm: gf.Communicator) -> None:
    model = seeded(Tied)
    alone = copy.deepcopy(model)
    optimizer, plain = gft.DistributedOptimizer(sgd(model), model, comm), sgd(alone)
    for step in range(3):
        optimizer.zero_grad()
        model(batch_of(RANK, step)).square().mean().backward()
        if step:
            optimizer.synchronize()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        plain.zero_grad()
        alone(batch_of_all(step)).square().mean().backward()
        wanted = nn.utils.clip_grad_norm_(alone.parameters(), 0.01)
        plain.step()
        assert torch.allclose(norm, wanted, rtol=1e-5)
        assert_close(model, alone)
    # Set by hand: copied into the pool, and counted.
    optimizer.zero_grad()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, SIZE * RANK)
    optimizer.step()
    assert all((p.grad == SIZE * (SIZE - 1) // 2).all() for p in model.parameters())
    assert optimizer.bytes_copied == (sum(p.nbytes for p in model.parameters()) if SIZE > 1 else 0)
    # model.zero_grad() takes the gradients out of the pool; backward passes write the next ones there.
    copied = optimizer.bytes_copied
    for step in range(2):
        model.zero_grad()
        model(batch_of(RANK, step)).square().mean().backward()
        same_everywhere(p.grad for p in model.parameters())
        assert_in_pool(optimizer, model)
        optimizer.step()
    model.zero_grad()
    assert optimizer.bytes_copied == (copied if PLACE == "host" else 3 * copied)
    # Sparse gradients become dense.
    embedding = nn.Embedding(SIZE + 1, 2, sparse=True)
    with gft.DistributedOptimizer(torch.optim.SGD(embedding.parameters(), lr=1.0), embedding, comm) as of_embedding:
        for clear in (of_embedding.zero_grad, embedding.zero_grad):
            clear()
            embedding(torch.tensor([RANK, RANK])).sum().backward()
            wanted = torch.full((SIZE + 1, 2), 2.0 / SIZE)
            wanted[SIZE] = 0
            assert torch.equal(embedding.weight.grad.to_dense(), wanted)
            of_embedding.step()
    # Higher derivatives leave nothing of their graph in the pool.
    optimizer.zero_grad()
    model(batch_of(RANK, 0)).square().mean().backward(create_graph=True)
    assert SIZE == 1 or not any(p.grad.requires_grad for p in model.parameters())
    optimizer.zero_grad()


def check_grad_scaler(comm: gf.Communicator) -> None:
    """An overflow on one rank: all ranks skip the step, and go on with the same scale."""
    for wire in (None, "float8_e4m3"):  # which has no infinity, but NaN
        scale_with_an_overflow(comm, wire)


def scale_with_an_overflow(comm: gf.Communicator, wire: str | None) -> None:
    model = seeded(Tied)
    inner = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    optimizer = gft.DistributedOptimizer(inner, model, comm, wire=wire)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    for step in range(4):
        before = copy.deepcopy(model)
        optimizer.zero_grad()
        loss = model(batch_of(RANK, step)).square().mean()
        if step == 1 and RANK == SIZE - 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        if step == 3:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(model.last.weight, before.last.weight) == (step == 1)
        same_everywhere(model.parameters())
        assert scaler.get_scale() == [1024.0, 512.0, 512.0, 1024.0][step]


def check_schedulers_and_hooks(comm: gf.Communicator) -> None:
    model = seeded(Tied)
    optimizer = gft.DistributedOptimizer(sgd(model, lr=1.0), model, comm)
    schedulers = [
        torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
        torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10),
        torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer),
    ]
    seen = []
    handle = optimizer.register_step_post_hook(lambda *_: seen.append(optimizer.param_groups[0]["lr"]))
    for step in range(3):
        optimizer.zero_grad()
        model(batch_of(RANK, step)).square().mean().backward()
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step(*([1.0] if scheduler is schedulers[-1] else []))
    assert len(set(seen)) == 3
    handle.remove()
    assert optimizer.defaults["momentum"] == 0.9
    assert "SGD" in repr(optimizer)
    optimizer.param_groups[0]["lr"] = 0.25
    assert optimizer._inner.param_groups[0]["lr"] == 0.25


@on_ranks(1, 3)
def check_state_dict(comm: gf.Communicator) -> None:
    """A checkpoint of one can be loaded into the other, and training goes on as it would have."""
    model = seeded(Tied)
    optimizer = gft.DistributedOptimizer(sgd(model), model, comm)

    def train(model: nn.Module, optimizer: Any) -> None:
        optimizer.zero_grad()
        model(batch_of_all(0)).square().mean().backward()
        optimizer.step()

    train(model, optimizer)
    of_model, of_optimizer = saved((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer)
    resumed = seeded(Tied, seed=8)
    resumed.load_state_dict(of_model)
    plain = sgd(resumed, lr=3.0)
    plain.load_state_dict(of_optimizer)
    wrapped_model = copy.deepcopy(resumed)
    wrapped = gft.DistributedOptimizer(sgd(wrapped_model), wrapped_model, comm)
    wrapped.load_state_dict(copy.deepcopy(plain.state_dict()))
    train(resumed, plain)
    train(wrapped_model, wrapped)
    assert_close(resumed, model)
    assert_close(wrapped_model, model)
    for refused in (pickle.dumps, copy.copy, copy.deepcopy):
        with raises(ArgumentTypeError, "state_dict()"):
            refused(optimizer)
    torch.save(model, io.BytesIO())


def check_closures(comm: gf.Communicator) -> None:
    model = seeded(lambda: nn.Linear(3, 1))
    alone = copy.deepcopy(model)
    optimizer = gft.DistributedOptimizer(
        torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe"), model, comm
    )
    plain = torch.optim.LBFGS(alone.parameters(), max_iter=5, line_search_fn="strong_wolfe")

    def closure_of(model: nn.Module, optimizer: Any, x: Tensor) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            return loss

        return closure

    for step in range(2):
        loss = optimizer.step(closure_of(model, optimizer, batch_of(RANK, step, 3)))
        wanted = plain.step(closure_of(alone, plain, batch_of_all(step, 3)))
        assert torch.allclose(loss, wanted, rtol=1e-4, atol=1e-5), (loss, wanted)
        assert_close(model, alone, 1e-3)
        same_everywhere(model.parameters())


def check_parameter_groups_added_later(comm: gf.Communicator) -> None:
    model = seeded(Tied)
    model.last.requires_grad_(False)
    optimizer = gft.DistributedOptimizer(torch.optim.SGD(model.embedding.parameters(), lr=0.1), model, comm)
    for step in range(4):
        if step == 2:
            model.last.requires_grad_(True)
            optimizer.add_param_group({"params": list(model.last.parameters()), "lr": 0.01})
        before = model.last.weight.detach().clone()
        optimizer.zero_grad()
        model(batch_of(RANK, step)).square().mean().backward()
        assert step < 2 or (model.last.weight.grad is not None)
        optimizer.step()
        assert torch.equal(before, model.last.weight) == (step < 2)
        same_everywhere(model.parameters())
    with raises(ArgumentError, "parameter 0 of group 2, of shape (5,), is in the optimizer but not in the model"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(5))]})
    assert len(optimizer.param_groups) == 2
    optimizer.step()


class WithBuffer(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.frozen, self.first = nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 5)
        self.second = nn.Linear(5, 4).requires_grad_(False)
        self.norm = nn.BatchNorm1d(5)
        with torch.no_grad():
            self.norm.running_mean.copy_(torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.norm(self.first(self.frozen(x))))


def check_all_ranks_begin_alike(comm: gf.Communicator) -> None:
    """With the parameters and buffers of rank 0, frozen ones too; and those that are added later."""
    for dtype in (torch.float32, torch.float64):
        model = WithBuffer(RANK).to(dtype)
        of_rank_0 = WithBuffer(0).to(dtype)
        places = [parameter.data_ptr() for parameter in model.parameters()]
        first = [*model.first.parameters(), *model.norm.parameters()]
        optimizer = gft.DistributedOptimizer(torch.optim.SGD(first, lr=0.1), model, comm)
        assert [parameter.data_ptr() for parameter in model.parameters()] == places
        for (name, mine), theirs in zip(model.state_dict().items(), of_rank_0.state_dict().values(), strict=True):
            assert torch.equal(mine, theirs), name
        with torch.no_grad():
            for parameter in (*first, *model.second.parameters()):
                parameter.add_(RANK)
            model.norm.running_mean.fill_(RANK)
        optimizer.add_param_group({"params": list(model.second.requires_grad_(True).parameters())})
        assert torch.equal(model.second.weight, of_rank_0.second.weight)
        assert torch.equal(model.first.weight, of_rank_0.first.weight + RANK)  # those before are left alone
        assert (model.norm.running_mean == RANK).all()
        optimizer.close()


def check_ranks_that_begin_with_different_weights(comm: gf.Communicator) -> None:
    last = int(RANK == SIZE - 1)
    model = WithBuffer(0)
    model.norm.running_mean.fill_(RANK)  # which each rank may have of its own
    model.second.requires_grad_(True)

    def make() -> gft.DistributedOptimizer:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return gft.DistributedOptimizer(torch.optim.SGD(trained, lr=0.1), model, comm, broadcast=False)

    for tensor, name in ((model.second.bias, "second.bias"), (model.frozen.weight, "frozen.weight")):
        with torch.no_grad():
            tensor[-1] += last
        if SIZE > 1:
            with raises(MismatchError, f"the ranks have different parameters: {name} of rank {SIZE - 1} is not that"):
                make()
        with torch.no_grad():
            tensor[-1] -= last
    gft.broadcast_parameters(dict(model.named_parameters()), comm=comm)
    model.second.requires_grad_(False)
    with make() as optimizer:
        model.second.requires_grad_(True)
        with torch.no_grad():
            model.second.bias[1] += last
            model.first.bias[1] += last  # which is there already
        added = {"params": list(model.second.parameters())}
        if SIZE > 1:
            with raises(MismatchError, f"second.bias of rank {SIZE - 1} is not that of rank 0"):
                optimizer.add_param_group(added)
            with torch.no_grad():
                model.second.bias[1] -= last
            gft.broadcast_parameters({"bias": model.second.bias}, comm=comm)
        optimizer.add_param_group(added)
        assert (model.norm.running_mean == RANK).all()
    if SIZE > 1:
        with raises(MismatchError, f"broadcast is True on rank {SIZE - 1} and False on rank 0"):
            gft.DistributedOptimizer(sgd(model.requires_grad_(True)), model, comm, broadcast=bool(last))


# ---- what goes wrong -------------------------------------------------------------------------------------------------


def check_exceptions_half_way(comm: gf.Communicator) -> None:
    """An exception on all ranks, or on one of them only, in forward, in backward or after it."""
    model = seeded(Tied)
    optimizer = gft.DistributedOptimizer(sgd(model), model, comm, fusion_threshold=0)

    def train(step: int) -> None:
        optimizer.zero_grad()
        model(batch_of(RANK, step)).square().mean().backward()
        optimizer.step()

    def interrupted() -> None:
        optimizer.zero_grad()
        handle = model.embedding.bias.register_hook(lambda _: 1 / 0)
        with raises(ZeroDivisionError):
            model(batch_of(RANK, 0)).square().mean().backward()
        handle.remove()

    train(0)
    with raises(RuntimeError):
        model(torch.zeros(2, 5))
    train(1)
    interrupted()
    train(2)
    interrupted()
    optimizer.step()  # what is there is averaged all the same
    optimizer.zero_grad()
    model(batch_of(RANK, 0)).square().mean().backward()
    train(3)  # a backward pass without a step
    same_everywhere(model.parameters())
    if RANK == 0:  # gives up its iteration, and all others drop it
        interrupted()
        optimizer.zero_grad()
    else:
        optimizer.zero_grad()
        with raises(AbandonedError, "rank 0 gave up"):
            model(batch_of(RANK, 0)).square().mean().backward()
    train(4)
    same_everywhere(model.parameters())
    if SIZE > 1:
        interrupted()
        with raises(ArgumentError, "last.bias became final twice", "zero_grad()"):
            model(batch_of(RANK, 0)).square().mean().backward()
        train(5)
        same_everywhere(model.parameters())


class TwoDtypes(nn.Module):
    """Parameters of which some are of another dtype than the others, so that there are two pools."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 4).double(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x.double()).float())


def check_an_exception_on_one_rank_in_the_first_pass(comm: gf.Communicator) -> None:
    """Later passes are in step again, in the pools of all dtypes."""
    for make, failing in ((Tied, 0), (Tied, SIZE - 1), (TwoDtypes, SIZE - 1)):
        model = seeded(make)
        optimizer = gft.DistributedOptimizer(sgd(model), model, comm, fusion_threshold=0)
        fails = model.last.register_full_backward_hook(lambda *_: 1 / 0) if failing == RANK else None
        optimizer.zero_grad()
        if fails is None:
            with raises(AbandonedError, f"rank {failing} gave up"):
                model(batch_of(RANK, 0)).square().mean().backward()
        else:
            with raises(ZeroDivisionError):
                model(batch_of(RANK, 0)).square().mean().backward()
            fails.remove()
        for step in range(3):
            optimizer.zero_grad()
            model(batch_of(RANK, step)).square().mean().backward()
            same_everywhere(p.grad for p in model.parameters())
            optimizer.step()
        same_everywhere(model.parameters())
        optimizer.close()


def check_threads(_: gf.Communicator) -> None:
    """Every thread trains a model of its own."""

    def train(comm: gf.Communicator) -> None:
        model = nn.Linear(3, 1, bias=False)
        with gft.DistributedOptimizer(sgd(model), model, comm) as optimizer:
            for step in range(200):
                optimizer.zero_grad()
                model(torch.full((1, 3), float(SIZE * RANK + step))).sum().backward()
                assert (model.weight.grad == SIZE * (SIZE - 1) / 2 + step).all()

    comms = [gf.init() for _ in range(3)]
    in_threads(train, comms)
    for comm in comms:
        comm.close()


def check_parameters_that_nobody_used_stay_without_gradient(comm: gf.Communicator) -> None:
    model = seeded(Branches)
    optimizer = gft.DistributedOptimizer(sgd(model), model, comm)
    for step in range(2):
        optimizer.zero_grad()
        model(batch_of(RANK, step, 4), 0).backward()
        optimizer.step()
    optimizer.zero_grad()
    before = model.branches[1].weight.detach().clone()
    optimizer.close()
    assert model.branches[1].weight.grad is None
    optimizer._inner.step()
    assert torch.equal(model.branches[1].weight, before)


def check_gradients_by_hand_after_a_pass_without_a_step(comm: gf.Communicator) -> None:
    model = nn.Linear(2, 1)
    optimizer = gft.DistributedOptimizer(sgd(model), model, comm)
    model(torch.ones(1, 2)).sum().backward()
    model.zero_grad()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, float(SIZE * RANK))
    optimizer.step()
    assert all((p.grad == SIZE * (SIZE - 1) / 2).all() for p in model.parameters())


def check_models_that_change(comm: gf.Communicator) -> None:
    frozen = seeded(Tied)
    frozen.last.requires_grad_(False)
    optimizer = gft.DistributedOptimizer(sgd(frozen), frozen, comm)
    frozen.last.requires_grad_(True)
    if SIZE > 1:
        with raises(ArgumentError, "requires gradients now and did not"):
            frozen(batch_of(RANK, 0)).square().mean().backward()
    optimizer.close()

    def wrapped() -> tuple[Any, gft.DistributedOptimizer]:
        model = seeded(Tied)
        return model, gft.DistributedOptimizer(sgd(model), model, comm)

    def train(model: nn.Module, optimizer: gft.DistributedOptimizer, dtype: torch.dtype = torch.float32) -> None:
        optimizer.zero_grad()
        model(batch_of(RANK, 0, dtype=dtype)).square().mean().backward()
        optimizer.step()

    def replace(model: Any) -> None:
        model.last = nn.Linear(6, 3)

    def add(model: Any) -> None:
        model.extra = nn.Linear(2, 2)

    def freeze(model: Any) -> None:
        model.last.bias.requires_grad_(False)

    if SIZE == 1:
        return
    for change in (replace, add, freeze):
        for trained_before in (True, False):
            model, optimizer = wrapped()
            if trained_before:
                train(model, optimizer)
            change(model)
            with raises(ArgumentError, "must not change after DistributedOptimizer"):
                train(model, optimizer)
            optimizer.close()
    for trained_before in (True, False):
        model, optimizer = wrapped()
        if trained_before:
            train(model, optimizer)
        model.double()
        with raises(ArgumentError, "bias has torch.float64", "must not change"):
            train(model, optimizer, torch.float64)
    model, optimizer = wrapped()
    model(batch_of(RANK, 0)).square().mean().backward()
    model.to(torch.float64).to(torch.float32)  # the gradients are elsewhere now
    with raises(ArgumentError, "memory of its own"):
        train(model, optimizer)


def check_wrong_arguments(comm: gf.Communicator) -> None:
    model = Tied()
    with raises(ArgumentTypeError, "the optimizer is a str"):
        gft.DistributedOptimizer("SGD", model, comm)
    with raises(ArgumentTypeError, "the model is a list"):
        gft.DistributedOptimizer(sgd(model), list(model.parameters()), comm)
    with raises(ArgumentTypeError, f"comm is a {type(WORLD).__name__}"):
        gft.DistributedOptimizer(sgd(model), model, WORLD)
    with raises(ArgumentError, "accumulation_steps is a number of 1 or more, not 0"):
        gft.DistributedOptimizer(sgd(model), model, comm, accumulation_steps=0)
    with raises(ArgumentError, "in the model but not in the optimizer: last.weight, last.bias"):
        gft.DistributedOptimizer(sgd(model.embedding), model, comm)
    with raises(ArgumentError, "parameter 0 of group 0, of shape (6, 6), is in the optimizer but not in the model"):
        gft.DistributedOptimizer(torch.optim.SGD([*model.embedding.parameters()]), model.last, comm)
    with raises(ArgumentTypeError, "weight is torch.complex64"):
        gft.DistributedOptimizer(sgd(m := nn.Linear(2, 2, dtype=torch.complex64)), m, comm)
    with raises(ArgumentTypeError, "weight is a torch.strided tensor on meta"):
        gft.DistributedOptimizer(sgd(m := nn.Linear(2, 2, device="meta")), m, comm)
    with raises(ArgumentTypeError, "weight has no shape yet"):
        gft.DistributedOptimizer(sgd(m := nn.LazyLinear(2)), m, comm)
    with raises(ArgumentError, "no parameter that requires gradients"):
        gft.DistributedOptimizer(sgd(m := nn.Linear(2, 2).requires_grad_(False)), m, comm)
    with raises(ArgumentError, "wire is one of float32, float16, bfloat16, float8_e4m3, not 'int4'"):
        gft.DistributedOptimizer(sgd(model), model, comm, wire="int4")
    with raises(ArgumentError, "8 apples"):
        gft.DistributedOptimizer(sgd(model), model, comm, fusion_threshold="8 apples")
    optimizer = gft.DistributedOptimizer(sgd(model), model, comm)
    with raises(ArgumentTypeError, "the optimizer is a DistributedOptimizer"):
        gft.DistributedOptimizer(optimizer, model, comm)
    with raises(ArgumentError, "last.weight belongs to another DistributedOptimizer"):
        gft.DistributedOptimizer(sgd(model), model, comm)
    optimizer.close()
    optimizer.close()
    for use in (optimizer.step, optimizer.zero_grad, optimizer.synchronize, lambda: optimizer.add_param_group({})):
        with raises(ClosedError, "the optimizer is closed"):
            use()
    model(batch_of(RANK, 0)).sum().backward()  # the model is as any other now
    optimizer._inner.step()
    with gft.DistributedOptimizer(sgd(model), model, comm) as optimizer:
        pass
    with raises(ClosedError):
        optimizer.step()
    with gft.DistributedOptimizer(sgd(model), model) as optimizer:  # on a communicator of its own
        own = optimizer.comm
        assert own.size == SIZE
        model(batch_of(RANK, 0)).square().mean().backward()
        optimizer.step()
    assert own.closed
    if SIZE > 1:
        other = nn.Linear(3 + (RANK == 1), 2)
        with raises(
            MismatchError, "different models: weight is torch.float32 (2, 4) on rank 1 and torch.float32 (2, 3)"
        ):
            gft.DistributedOptimizer(sgd(other), other, comm)
        with raises(MismatchError, "different settings: accumulation_steps is 2 on rank 1 and 1 on rank 0"):
            gft.DistributedOptimizer(sgd(model), model, comm, accumulation_steps=1 + (RANK == 1))
        with raises(MismatchError, "different strategies: strategy is dense(fusion_threshold=1) on rank 1"):
            gft.DistributedOptimizer(sgd(model), model, comm, fusion_threshold=RANK)
        with gft.DistributedOptimizer(sgd(model), model, comm) as optimizer:
            optimizer.zero_grad()
            model(batch_of(RANK, 0)).square().mean().backward()
            optimizer.step()
    assert comm.allreduce(np.array(1)) == SIZE


# ---- broadcasts ------------------------------------------------------------------------------------------------------


@on_ranks(1, 3)
def check_broadcast_parameters(comm: gf.Communicator) -> None:
    root = SIZE - 1

    class Everything(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(5)
            self.conv = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last if RANK else torch.contiguous_format)
            self.large = nn.Parameter(torch.randn(5 << 20))
            self.complex = nn.Parameter(torch.randn(3, 2, dtype=torch.complex64))
            self.transposed = nn.Parameter(torch.randn(3, 4).t())
            self.number = nn.Parameter(torch.randn(()))
            self.register_buffer("mask", torch.rand(7) < 0.5)
            self.register_buffer("steps", torch.randint(1000, ()))
            self.register_buffer("octets", torch.randint(256, (3,), dtype=torch.uint8), persistent=False)
            self.register_buffer("nothing", torch.zeros(0, 2))
            self.register_buffer("narrow", torch.randn(3).bfloat16())

    model = seeded(Everything, seed=RANK)
    gft.broadcast_parameters(model, root, comm=comm)
    wanted = seeded(Everything, seed=root)
    for (name, mine), theirs in zip(
        [*model.named_parameters(), *model.named_buffers()], [*wanted.parameters(), *wanted.buffers()], strict=True
    ):
        assert torch.equal(mine, theirs), name
    state = seeded(Everything, seed=RANK).state_dict()
    gft.broadcast_parameters(state, comm=comm)
    assert all(map(torch.equal, state.values(), seeded(Everything, seed=0).state_dict().values()))
    gft.broadcast_parameters(nn.Linear(3, 2))  # on a communicator of its own
    gft.broadcast_parameters({}, comm=comm)
    with raises(ArgumentError, f"root {SIZE} is not a rank"):
        gft.broadcast_parameters(model, SIZE, comm=comm)
    with raises(ArgumentTypeError, "not from a list"):
        gft.broadcast_parameters([model], comm=comm)
    with raises(ArgumentTypeError, "epoch is a int, not a tensor"):
        gft.broadcast_parameters({"epoch": 3}, comm=comm)
    with raises(ArgumentTypeError, "weight is a torch.strided tensor on meta"):
        gft.broadcast_parameters(nn.Linear(2, 2, device="meta"), comm=comm)
    with raises(ArgumentTypeError, "weight has no shape yet"):
        gft.broadcast_parameters(nn.LazyLinear(2), comm=comm)
    if SIZE > 1:
        x, y = torch.zeros(3), torch.zeros(2)
        last = int(RANK == SIZE - 1)
        place = "" if PLACE == "host" else " on cuda"
        for mine, words in (
            ({"x": x, "y": y} if last else {"x": x}, f"rank {SIZE - 1} has y, which rank 0 has not"),
            ({"x": x} if last else {"x": x, "y": y}, f"rank {SIZE - 1} has no y, which rank 0 has"),
            (
                {"x": x.half() if last else x},
                f"x is torch.float16 (3,){place} on rank {SIZE - 1} and torch.float32 (3,)",
            ),
            ({"y": y, "x": x} if last else {"x": x, "y": y}, f"rank {SIZE - 1} are in another order"),
        ):
            with raises(MismatchError, "the ranks have different tensors to broadcast", words):
                gft.broadcast_parameters(mine, comm=comm)


@on_ranks(1, 3)
def check_broadcast_optimizer_state(comm: gf.Communicator) -> None:
    for make in (lambda m: torch.optim.AdamW(m.parameters(), lr=0.1 * (RANK + 1)), lambda m: sgd(m, lr=RANK + 1.0)):
        model = seeded(Tied, seed=RANK)
        optimizer = make(model)
        if RANK == 0:  # only the root has a state
            model(batch_of(0, 0)).sum().backward()
            optimizer.step()
            optimizer.param_groups[0]["weight_decay"] = 0.5
        gft.broadcast_optimizer_state(optimizer, comm=comm)
        for key in ("lr", "weight_decay"):
            assert WORLD.bcast(optimizer.param_groups[0][key]) == optimizer.param_groups[0][key]
        assert optimizer.state
        same_everywhere(v for p in model.parameters() for v in optimizer.state[p].values() if isinstance(v, Tensor))
    with raises(ArgumentTypeError, "the optimizer is a Tied"):
        gft.broadcast_optimizer_state(model, comm=comm)
    if SIZE > 1:
        other = sgd(model)
        other.param_groups[0]["part"] = Fraction(1, 2) if RANK == 0 else 0.5
        kind = ArgumentError if RANK else ArgumentTypeError
        with raises(kind, "the state of the optimizer['param_groups'][0]['part'] is a fractions.Fraction"):
            gft.broadcast_optimizer_state(other, comm=comm)
        other = sgd(nn.Linear(2, 3 if RANK else 4))
        with raises(MismatchError, "parameter group 0 is (3, 2), (3,) on rank 1 and (4, 2), (4,) on rank 0"):
            gft.broadcast_optimizer_state(other, comm=comm)
        other = torch.optim.Adam(model.parameters()) if RANK else sgd(model)
        with raises(MismatchError, "the class is Adam on rank 1 and SGD on rank 0"):
            gft.broadcast_optimizer_state(other, comm=comm)


run_checks(LAYOUTS if PLACE == "host" else LAYOUTS[:1])
