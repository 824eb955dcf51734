"""What PyTorch builds on process groups, on "gradientflow": every result is compared with one computed without it."""

from __future__ import annotations

import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from support import RANK, SIZE, raises, run_checks
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import gradientflow.torch as gft
from gradientflow.errors import ArgumentError, ArgumentTypeError, MismatchError

FOLDER = sys.argv[1]  # for checkpoints


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 5))


def batch(rank: int, step: int = 0) -> torch.Tensor:
    return torch.randn(8, 20, generator=torch.Generator().manual_seed(1000 * step + rank))


def loss_of(model: Callable[[torch.Tensor], torch.Tensor], rank: int = RANK, step: int = 0) -> torch.Tensor:
    return model(batch(rank, step)).square().mean()


def train(model: nn.Module, optimizer: Any, steps: Iterable[int] = range(3)) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, RANK, step).backward()
        optimizer.step()


def trained_alone(make: Callable[[Any], Any], steps: Iterable[int] = range(3)) -> nn.Module:
    """Train on the batches of all ranks."""
    model = network()
    optimizer = make(model.parameters())
    for step in steps:
        optimizer.zero_grad()
        (sum(loss_of(model, rank, step) for rank in range(SIZE)) / SIZE).backward()  # type: ignore[union-attr]
        optimizer.step()
    return model


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def close(model: nn.Module, wanted: nn.Module, tolerance: float = 1e-5) -> None:
    for (name, found), other in zip(model.named_parameters(), wanted.parameters(), strict=True):
        found = getattr(found, "full_tensor", lambda found=found: found)()
        assert torch.allclose(found, other, rtol=tolerance, atol=tolerance), (name, (found - other).abs().max())


# ---- DistributedDataParallel -----------------------------------------------------------------------------------------


def check_ddp() -> None:
    alone = trained_alone(sgd)
    for options in ({}, {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001}, {"static_graph": True}):
        model = DistributedDataParallel(network(seed=RANK), **options)  # rank 0's parameters go to all
        train(model, sgd(model.parameters()))
        close(model.module, alone)


def check_ddp_buffers() -> None:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 5), nn.BatchNorm1d(5)))
    for step in range(2):
        loss_of(model, RANK, step).backward()
    norm: Any = model.module[1]
    mean = norm.running_mean.clone()
    loss_of(model, RANK, 2)  # rank 0's statistics go to all before the forward pass
    assert norm.num_batches_tracked == 3
    gathered = [torch.empty(5) for _ in range(SIZE)]
    dist.all_gather(gathered, mean)
    assert SIZE == 1 or not torch.equal(gathered[0], gathered[1])


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.used = nn.Linear(20, 5)
        self.sometimes = nn.Linear(20, 5)
        self.never = nn.Linear(20, 5)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        y: torch.Tensor = self.used(x)
        return y + self.sometimes(x) if both else y


def check_ddp_unused_parameters() -> None:
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    for step in range(3):
        model.zero_grad()
        model(batch(RANK, step), RANK == 0).sum().backward()
        assert model.module.never.weight.grad is None
        wanted = batch(0, step).sum(0) / SIZE  # only rank 0 used it
        assert torch.allclose(model.module.sometimes.weight.grad[0], wanted, atol=1e-5)


def check_ddp_sparse() -> None:
    torch.manual_seed(0)
    alone = nn.Embedding(10, 3, sparse=True)
    model = DistributedDataParallel(nn.Embedding(10, 3, sparse=True))
    model.module.load_state_dict(alone.state_dict())
    for step in range(2):
        for network in (alone, model):
            network.zero_grad()
        weights = [1.0 + rank + step for rank in range(SIZE)]
        (model(torch.tensor([RANK, 5, 5])).sum() * weights[RANK]).backward()
        sum(alone(torch.tensor([rank, 5, 5])).sum() * weights[rank] / SIZE for rank in range(SIZE)).backward()  # type: ignore[union-attr]
        found = model.module.weight.grad.coalesce()
        assert found.indices().tolist() == [sorted({*range(SIZE), 5})]
        assert torch.allclose(found.to_dense(), alone.weight.grad.to_dense())


def sparse(rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return elements of two numbers each, as many as the rank, and two for the same place."""
    indices = torch.tensor([[3, 1], *([place, place % 2] for place in range(rank)), [3, 1]][: 2 * rank]).reshape(-1, 2)
    values = torch.arange(2.0 * len(indices)).reshape(-1, 2) + rank
    return torch.sparse_coo_tensor(indices.t(), values.to(dtype), (4, 2, 2), check_invariants=True)


def check_sparse_allreduce() -> None:
    for dtype in (torch.float64, torch.float16, torch.int16):
        wanted: Any = sum(sparse(rank, dtype).to_dense() for rank in range(SIZE))
        for asynchronous in (False, True):
            x = sparse(RANK, dtype)
            work: Any = dist.all_reduce(x, async_op=asynchronous)
            if asynchronous:
                work.wait()
            assert torch.equal(x.to_dense(), wanted), (x, wanted)
        if not dtype.is_floating_point:
            continue
        x = sparse(RANK, dtype)
        dist.all_reduce(x, dist.ReduceOp.AVG)
        assert torch.equal(x.to_dense(), wanted / SIZE)
    nothing = sparse(0)
    dist.all_reduce(nothing)
    assert nothing._nnz() == 0
    with raises(ArgumentTypeError, "SUM", "MAX"):
        dist.all_reduce(sparse(RANK), dist.ReduceOp.MAX)
    if SIZE > 1:
        other = torch.sparse_coo_tensor(torch.zeros(1, 1), torch.ones(1), (RANK + 1,), check_invariants=True)
        with raises(MismatchError, "not alike", "(1,), (2,)"):
            dist.all_reduce(other)


def check_ddp_no_sync() -> None:
    model = DistributedDataParallel(network())
    for step in range(3):
        with model.no_sync() if step < 2 else nullcontext():
            loss_of(model, RANK, step).backward()
    alone = network()
    (sum(loss_of(alone, rank, step) for rank in range(SIZE) for step in range(3)) / SIZE).backward()  # type: ignore[union-attr]
    for found, wanted in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(found.grad, wanted.grad, atol=1e-6)


def check_ddp_join() -> None:
    model = DistributedDataParallel(network())
    optimizer = sgd(model.parameters())
    steps = 0
    with model.join():
        for step in range(2 + RANK):
            optimizer.zero_grad()
            loss_of(model, RANK, step).backward()
            optimizer.step()
            steps += 1
    assert steps == 2 + RANK
    gathered = [torch.empty_like(model.module[0].weight) for _ in range(SIZE)]
    dist.all_gather(gathered, model.module[0].weight.detach())
    for each in gathered:
        assert torch.equal(each, gathered[-1])
    # Where it divides by the ranks that are left, PyTorch's C++ waits for a work that Python has long dropped.
    model = DistributedDataParallel(nn.Linear(3, 1, bias=False))
    with model.join(divide_by_initial_world_size=False):
        for step in range(2 + 2 * RANK):
            model.zero_grad()
            model(torch.full((1, 3), 1.0 + RANK)).sum().backward()
            left = [1.0 + rank for rank in range(SIZE) if step < 2 + 2 * rank]
            assert torch.allclose(model.module.weight.grad, torch.tensor(sum(left) / len(left)))


def check_dropped_works() -> None:
    """C++ may wait for a work that Python has dropped; not all that Python drops is kept."""
    works = [dist.all_reduce(torch.ones(3), async_op=True), dist.irecv(torch.ones(1), (RANK - 1) % SIZE)]
    held = [work.boxed() for work in works]  # type: ignore[union-attr]
    del works
    dist.send(torch.ones(1), (RANK + 1) % SIZE)
    for each in held:
        assert dist.Work.unbox(each).wait()

    def wait_for_all() -> None:
        for _ in range(3):
            work: Any = dist.barrier(async_op=True)  # the core lets go of what is done when the next call begins
            work.wait()

    results = [torch.ones(1000) for _ in range(1000)]
    alive = [weakref.ref(result) for result in results]
    while results:
        dist.all_reduce(results.pop(), async_op=True)
    wait_for_all()
    kept = sum(result() is not None for result in alive)
    assert kept <= 64, kept
    large = torch.ones(1 << 20)
    alive = [weakref.ref(large)]
    dist.all_reduce(large, async_op=True)
    del large
    wait_for_all()
    assert alive[0]() is None


def check_ddp_hooks() -> None:
    alone = trained_alone(sgd)

    def doubled(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future = default_hooks.allreduce_hook(state, bucket)
        return future.then(lambda done: 2 * done.value())

    doubled.__annotations__.clear()  # PyTorch wants types there, not text

    for hook, tolerance in [
        (gft.mean_hook, 1e-5),
        (default_hooks.allreduce_hook, 1e-5),
        (default_hooks.fp16_compress_hook, 1e-2),
        (default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook), 1e-2),  # type: ignore[no-untyped-call]
    ]:
        model = DistributedDataParallel(network())
        model.register_comm_hook(None, hook)
        train(model, sgd(model.parameters()))
        close(model.module, alone, tolerance)
    in_buckets = DistributedDataParallel(network(), gradient_as_bucket_view=True, bucket_cap_mb=0.001)
    in_buckets.register_comm_hook(dist.new_group(), gft.mean_hook)
    train(in_buckets, sgd(in_buckets.parameters()))
    close(in_buckets.module, alone)
    for builtin, tolerance in [
        (dist.BuiltinCommHookType.ALLREDUCE, 1e-5),
        (dist.BuiltinCommHookType.FP16_COMPRESS, 1e-2),
    ]:
        model = DistributedDataParallel(network())
        model._register_builtin_comm_hook(builtin)
        assert model._get_ddp_logging_data()["comm_hook"] == str(builtin)
        train(model, sgd(model.parameters()))
        close(model.module, alone, tolerance)
        same = torch.equal(model.module[0].weight, alone[0].weight)  # type: ignore[index]
        assert not (same and tolerance > 1e-5)  # float16 is not as exact

    def failing(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        def fail(done: Any) -> torch.Tensor:
            raise KeyError("what the hook says")

        return default_hooks.allreduce_hook(state, bucket).then(fail)

    failing.__annotations__.clear()
    model = DistributedDataParallel(network())
    model.register_comm_hook(None, failing)
    with raises(RuntimeError, "KeyError: 'what the hook says'"):
        loss_of(model).backward()
    model = DistributedDataParallel(network(), bucket_cap_mb=0.001)
    model.register_comm_hook(None, doubled)
    train(model, torch.optim.SGD(model.parameters(), lr=0.05))
    close(model.module, trained_alone(lambda parameters: torch.optim.SGD(parameters, lr=0.1)))
    model = DistributedDataParallel(network(), bucket_cap_mb=0.001)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=5, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = sgd(model.parameters())
    first = loss_of(model).item()
    train(model, optimizer, [0] * 10)
    assert loss_of(model).item() < first


def check_powersgd_of_pytorch_and_of_gradientflow() -> None:
    """The same steps from the same random matrices, orthonormal in the hook and as they are in ours."""

    def net() -> nn.Sequential:
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 30))

    theirs = DistributedDataParallel(net())
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=3, start_powerSGD_iter=2)
    theirs.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer, ours, drawn = sgd(theirs.parameters()), net(), []
    random = torch.randn

    def noted(*shape: int, **options: Any) -> torch.Tensor:
        drawn.append(random(*shape, **options))
        return drawn[-1]

    with gft.DistributedOptimizer(sgd(ours.parameters()), ours, strategy="powersgd(rank=3, warmup=2)") as mine:
        for number in range(12):
            inputs = batch(RANK, number)  # with torch.randn
            with mock.patch.object(torch, "randn", noted if number == 2 else random):
                optimizer.zero_grad()
                theirs(inputs).square().mean().backward()
                optimizer.step()
            if number == 2:
                synchronizer: Any = mine.synchronizer
                for base in synchronizer.bases:
                    for matrix in drawn:
                        if matrix.shape[1:] == base.shape:
                            base[...] = matrix[0].numpy()
            train(ours, mine, [number])
            close(theirs.module, ours, 2e-5)
    assert [matrix.shape[1] for matrix in drawn] in ([20, 40], [40, 20])


def check_the_optimizer_refuses_gradients_that_are_averaged_already() -> None:
    model = DistributedDataParallel(network())
    for each in (model, nn.Sequential(model)):
        with raises(ArgumentError, "DistributedDataParallel averages all gradients", "model.module"):
            gft.DistributedOptimizer(sgd(model.parameters()), each, strategy="csc(density=0.1)")
    gft.DistributedOptimizer(sgd(model.parameters()), model.module, strategy="csc(density=0.1)").close()


def check_zero() -> None:
    alone = trained_alone(lambda parameters: torch.optim.Adam(parameters, lr=0.01))
    for as_view in (False, True):
        model = DistributedDataParallel(network())
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.Adam, lr=0.01, parameters_as_bucket_view=as_view
        )
        train(model, optimizer)
        close(model.module, alone)
        optimizer.consolidate_state_dict(0)
        if RANK == 0:
            assert len(optimizer.state_dict()["state"]) == 4
    with Join([model, optimizer]):
        train(model, optimizer, range(1 + RANK))


# ---- sharding --------------------------------------------------------------------------------------------------------


def check_fsdp() -> None:
    mesh = init_device_mesh("cpu", (SIZE,))
    model = network()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = sgd(model.parameters())
    train(model, optimizer)
    alone = trained_alone(sgd)
    close(model, alone)
    saved = {"model": model.state_dict(), "step": torch.tensor(3)}
    checkpoint.save(saved, checkpoint_id=FOLDER)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    restored = {"model": model.state_dict(), "step": torch.tensor(0)}
    checkpoint.load(restored, checkpoint_id=FOLDER)
    model.load_state_dict(restored["model"])
    assert restored["step"].item() == 3
    close(model, alone)


def check_meshes() -> None:
    mesh = init_device_mesh("cpu", (SIZE,), mesh_dim_names=("ranks",))
    whole = torch.arange(4.0 * SIZE * SIZE).reshape(2 * SIZE, 2 * SIZE)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal(rows.to_local(), whole[2 * RANK : 2 * RANK + 2])
    columns = rows.redistribute(placements=[Shard(1)])
    assert torch.equal(columns.to_local(), whole[:, 2 * RANK : 2 * RANK + 2])
    assert torch.equal(columns.redistribute(placements=[Replicate()]).to_local(), whole)
    assert torch.equal((columns @ rows).full_tensor(), whole @ whole)
    if SIZE % 2 == 0:
        grid = init_device_mesh("cpu", (SIZE // 2, 2), mesh_dim_names=("outer", "inner"))
        x = torch.tensor([float(RANK)])
        dist.all_reduce(x, group=grid.get_group("inner"))
        assert x.item() == RANK + (RANK ^ 1)


def check_functional() -> None:
    x = torch.full((2, 3), float(RANK))
    ranks = list(range(SIZE))
    total = sum(ranks)
    assert (functional.all_reduce(x, "sum", ranks) == total).all()
    assert functional.all_gather_tensor(x, 0, ranks)[::2, 0].tolist() == ranks
    assert (functional.reduce_scatter_tensor(x.repeat(SIZE, 1), "avg", 0, ranks) == total / SIZE).all()
    assert (functional.broadcast(x, SIZE - 1, ranks) == SIZE - 1).all()
    exchanged = functional.all_to_all_single(torch.full((SIZE,), RANK), [1] * SIZE, [1] * SIZE, ranks)
    assert exchanged.tolist() == ranks
    for each in functional.all_reduce_coalesced([x, 2 * x], "sum", ranks):
        assert each[0, 0].item() % max(total, 1) == 0
    y = x.clone().requires_grad_()
    torch.distributed.nn.functional.all_reduce(y).sum().backward()
    assert (y.grad == SIZE).all()


def check_compiled() -> None:
    """What torch.compile makes calls the group too; so do functions that it compiles."""

    def step(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x * 2

    x = torch.full((3,), float(RANK))
    assert (torch.compile(step, backend="aot_eager")(x) == SIZE * (SIZE - 1)).all()

    def others(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.barrier()
        dist.reduce(y, 0)
        dist.broadcast(y, 0)
        work: Any = dist.all_reduce(y, async_op=True)
        work.wait()
        if SIZE > 1:
            received = torch.empty_like(y)
            sending: Any = dist.isend(y, (RANK + 1) % SIZE)
            dist.recv(received, (RANK - 1) % SIZE)
            sending.wait()
            y = received
        return y + 1

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def ended(x: torch.Tensor) -> Any:
        options = torch._C._distributed_c10d.AllreduceOptions()
        options.asyncOp = False
        return dist.distributed_c10d._get_default_group().allreduce([x], options)

    def waiting(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        ended(y).wait()
        return y + 1

    assert (torch.compile(waiting, backend="aot_eager")(torch.full((3,), float(RANK))) == SIZE * (SIZE - 1) + 1).all()
    total = SIZE * (SIZE - 1)
    assert (torch.compile(others, backend="aot_eager")(torch.full((3,), float(RANK))) == SIZE * total + 1).all()
    model = torch.compile(DistributedDataParallel(network()), backend="aot_eager")
    train(model, sgd(model.parameters()))
    close(model.module, trained_alone(sgd))


def check_profiler() -> None:
    """Its events are like those of Gloo: asynchronous, with the shapes of the tensors that a call reads."""
    model = DistributedDataParallel(network())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        train(model, sgd(model.parameters()))
        dist.barrier()
        x, parts = torch.ones(SIZE, 3), [torch.ones(1) for _ in range(SIZE)]
        sending: Any = dist.isend(x, (RANK + 1) % SIZE)
        dist.recv(x, (RANK - 1) % SIZE)
        sending.wait()
        sending = dist.isend(x, (RANK + 1) % SIZE)
        dist.recv(x)
        sending.wait()
        dist.all_gather(parts, parts[0])
        dist.all_to_all(parts, [torch.ones(1) for _ in range(SIZE)])
        dist.scatter(parts[0], parts if RANK == 0 else None)
        dist.reduce(x, 0, async_op=True).wait()  # type: ignore[union-attr]
        dist.all_reduce(x.to_sparse())
    found = [event for event in profile.events() if event.name.startswith("gradientflow:")]
    assert all(event.is_async and event.count == 1 and not event.cpu_children for event in found)
    shapes = [(event.name.removeprefix("gradientflow:"), event.input_shapes) for event in found]
    end = shapes.index(("barrier", []))
    names = [name for name, _ in shapes[:end]]  # DistributedDataParallel makes its buckets anew once, with broadcasts
    assert names.count("all_reduce") == 3
    assert set(names) == {"all_reduce", "broadcast"}
    assert ("all_reduce", [[sum(parameter.numel() for parameter in model.parameters())]]) in shapes
    tensors = [[1]] * SIZE
    assert shapes[end:] == [
        ("barrier", []),
        ("send", [[SIZE, 3]]),
        ("recv", [[SIZE, 3]]),
        ("send", [[SIZE, 3]]),
        ("recvAnySource", [[SIZE, 3]]),
        ("all_gather", [[1]]),
        ("all_to_all", tensors),
        ("scatter", tensors if RANK == 0 else []),
        ("reduce", [[SIZE, 3]]),
        ("all_reduce", [[SIZE, 3]]),
    ]


def check_profiler_of_unfinished_works() -> None:
    """The profiler may stop while calls are under way: their events have ended, and nothing writes to them later."""
    gate = threading.Event()
    first: Any = dist.all_reduce(torch.ones(1), async_op=True)
    opened = first.get_future().then(lambda done: gate.wait(30.0))  # keeps the thread of the futures busy
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        works: list[Any] = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(200)]
        works.append(dist.irecv(torch.ones(1), (RANK - 1) % SIZE))
        with torch.profiler.record_function("later"):
            for work in works[:-1]:
                work.wait()
    gate.set()
    opened.wait()
    dist.send(torch.ones(1), (RANK + 1) % SIZE)
    works[-1].wait()
    (later,) = [event for event in profile.events() if event.name == "later"]
    calls = [event for event in profile.events() if event.name in ("gradientflow:all_reduce", "gradientflow:recv")]
    assert len(calls) == 201
    assert all(call.time_range.end <= later.time_range.start for call in calls)


@contextmanager
def process_group(_: Mapping[str, object]) -> Iterator[tuple[()]]:
    dist.init_process_group("gradientflow", timeout=timedelta(seconds=60))
    try:
        yield ()
    finally:
        dist.destroy_process_group()


warnings.simplefilter("ignore")  # PyTorch's about itself
run_checks(around=process_group)
