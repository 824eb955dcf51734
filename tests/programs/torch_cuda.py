"""PyTorch on a CUDA device, real or emulated: the training of the host, in the order of streams, and clear errors."""

from __future__ import annotations

import copy
import gc
import itertools
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from marks import on_ranks
from support import RANK, SIZE, raises, run_checks, same_everywhere, say, scaled
from tensor_places import DEVICE, PLACE, PLACED, address_of, left_on_host, on_host
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_support import Turned, batch_of, loss_of, saved, seeded, with_process_group

import gradientflow as gf
import gradientflow.device
import gradientflow.torch as gft
from gradientflow.errors import ArgumentError, CommunicationTimeoutError, MismatchError
from gradientflow.strategies import CSC, Dense
from gradientflow.torch.devices import device_of

Tensor = torch.Tensor

IS_REAL = PLACE == "cuda"


Net = partial(Turned, width=40)


class Sums(nn.Module):
    """The gradient of its weight is the sum of the inputs: on whole numbers exact, wherever it is computed."""

    def __init__(self, width: int = 200) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(width) for _ in range(3))

    def forward(self, x: Tensor, *used: int) -> Tensor:
        return sum(((self.weights[i] * x).sum() for i in used), torch.zeros((), device=x.device))


def whole_numbers(rank: int, step: int, width: int = 200) -> Tensor:
    return torch.randint(-8, 9, (width,), generator=torch.Generator().manual_seed(100 * step + rank)).float()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)


def values(tensors: Any) -> list[Tensor]:
    return [tensor.detach().cpu().clone() for tensor in tensors]


def assert_same(found: list[Tensor], wanted: list[Tensor], *what: object) -> None:
    """Compare bit for bit; what a GPU computes, nearly so."""
    for one, other in zip(found, wanted, strict=True):
        if IS_REAL:
            tolerance = 2e-2 if one.dtype.itemsize == 2 else 1e-5
            assert torch.allclose(one, other, rtol=tolerance, atol=tolerance), ((one - other).abs().max(), *what)
        else:
            assert torch.equal(one, other), ((one - other).abs().max(), *what)


# ---- DistributedOptimizer --------------------------------------------------------------------------------------------

Make = Callable[[Any], torch.optim.Optimizer]


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01, eps=1e-3)  # so that it does not blow up what rounding leaves


def lars(parameters: Any) -> torch.optim.Optimizer:
    return gft.LARS(parameters, lr=0.1, trust=0.1, weight_decay=0.01)


CASES: list[tuple[str, Make, torch.dtype, dict[str, Any]]] = [
    ("dense", sgd, torch.float32, {}),
    ("one by one", adam, torch.float32, {"fusion_threshold": 0}),
    ("accumulated", sgd, torch.float32, {"accumulation_steps": 2}),
    ("fused", sgd, torch.float32, {"fused": True}),
    ("fused Adam", adam, torch.float32, {"fused": True}),
    ("fused Adam in 16 bits", adam, torch.bfloat16, {"fused": True}),
    ("LARS", lars, torch.float32, {}),
    ("master weights", sgd, torch.bfloat16, {"fused": True}),
    ("CSC", sgd, torch.float32, {"strategy": CSC(0.3, chunk_size=16)}),
    ("CSC in 16 bits", sgd, torch.float16, {"strategy": CSC(0.3, chunk_size=16), "loss_scale": "dynamic"}),
    ("CSC without correction", sgd, torch.float32, {"strategy": CSC(0.5, chunk_size=16, correction=False)}),
    ("LAGS", sgd, torch.float32, {"strategy": "lags(ratio=4, warmup=0)"}),
    ("LAGS in 16 bits", sgd, torch.float16, {"strategy": "lags(ratio=4, warmup=0)", "loss_scale": "dynamic"}),
    ("loss scale", sgd, torch.float16, {"strategy": Dense(fusion_threshold="1KiB"), "loss_scale": 256.0}),
]


def train(
    comm: gf.Communicator, place: torch.device, make: Make, dtype: torch.dtype, settings: dict[str, Any]
) -> tuple[list[Tensor], list[Tensor]]:
    """Train for some steps; return the weights, and the gradients of all steps."""
    model = seeded(Net).to(place, dtype)
    gradients: list[Tensor] = []
    with gft.DistributedOptimizer(make(model.parameters()), model, comm, **settings) as optimizer:
        for step in range(6):
            optimizer.zero_grad(set_to_none=step != 3)
            for part in range(optimizer.accumulation_steps):
                optimizer.scale(loss_of(model, batch_of(RANK, 10 * step + part))).backward()
            gradients += values(p.grad for p in model.parameters())
            if step == 4:
                optimizer.unscale_()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        assert optimizer.bytes_copied == 0
        number = {"cpu": None, "cuda": 0}[device_of(next(model.parameters())).type]
        assert {pool.device for pool in optimizer.pools} <= {number}
        same_everywhere(model.parameters())
    return values(model.parameters()), gradients


@on_ranks(1, 3)
def check_training_is_that_on_the_host(comm: gf.Communicator) -> None:
    for name, make, dtype, settings in CASES:
        with on_host():
            weights, gradients = train(comm, torch.device("cpu"), make, dtype, copy.deepcopy(settings))
        on_device = train(comm, PLACED, make, dtype, copy.deepcopy(settings))
        if not IS_REAL or dtype is torch.float32:  # rounding decides what is important, and so does it more often there
            if not (IS_REAL and name.startswith(("CSC", "LAGS"))):
                assert_same(on_device[1], gradients, name)
            assert_same(on_device[0], weights, name)


@on_ranks(1, 3)
def check_whole_numbers_are_exact(comm: gf.Communicator) -> None:
    """Of parameters that this rank does not use, or nobody, too."""
    model = Sums().to(PLACED)
    used = (0,) if RANK % 2 == 0 else (0, 1)
    with gft.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model, comm) as optimizer:
        for step in range(4):
            optimizer.zero_grad()
            model((whole_numbers(RANK, step) * SIZE).to(PLACED), *used).backward()
            total = sum(whole_numbers(rank, step) for rank in range(SIZE))
            second = sum((whole_numbers(rank, step) for rank in range(1, SIZE, 2)), torch.zeros(200))
            assert torch.equal(model.weights[0].grad.cpu(), total)
            if SIZE > 1:
                assert torch.equal(model.weights[1].grad.cpu(), second)
                begin = [address_of(pool.memory) for pool in optimizer.pools]
                assert begin[0] <= model.weights[0].grad.data_ptr() < begin[0] + optimizer.pools[0].nbytes
            assert model.weights[2].grad is None
            optimizer.step()
        same_everywhere(model.parameters())


def check_gradients_that_wait(comm: gf.Communicator) -> None:
    """no_sync, gradients set by hand, a backward pass that failed, and ranks that have no batches any more."""
    model = Sums().to(PLACED)
    with gft.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model, comm) as optimizer:
        optimizer.zero_grad()
        with optimizer.no_sync():
            model((whole_numbers(RANK, 1) * SIZE).to(PLACED), 0, 1, 2).backward()
        model((whole_numbers(RANK, 2) * SIZE).to(PLACED), 0).backward()
        both = sum(whole_numbers(rank, 1) + whole_numbers(rank, 2) for rank in range(SIZE))
        assert torch.equal(model.weights[0].grad.cpu(), both)
        model.weights[1].grad = torch.full((200,), float(SIZE * RANK), device=PLACED)
        optimizer.synchronize()
        assert (model.weights[1].grad == SIZE * (SIZE - 1) // 2).all()
        optimizer.zero_grad()
        handle = model.weights[1].register_hook(lambda _: 1 // 0)
        with raises(ZeroDivisionError):
            model(whole_numbers(RANK, 3).to(PLACED), 2, 1, 0).backward()
        handle.remove()
        optimizer.zero_grad()
        with optimizer.join():
            for step in range(2 + RANK):
                optimizer.zero_grad()
                model((whole_numbers(RANK, step) * SIZE).to(PLACED), 0).backward()
                optimizer.step()
        same_everywhere(model.parameters())


def check_states(comm: gf.Communicator) -> None:
    """A run that is saved and resumed goes on as the other; what rank 0 has loaded, all ranks get."""
    for settings in ({"strategy": CSC(0.3, chunk_size=16)}, {"fused": True}, {}):
        one, other = (seeded(Net).to(PLACED) for _ in range(2))
        first = gft.DistributedOptimizer(sgd(one.parameters()), one, comm, **copy.deepcopy(settings))
        second = gft.DistributedOptimizer(sgd(other.parameters()), other, comm, **copy.deepcopy(settings))
        for step in range(4):
            first.zero_grad()
            loss_of(one, batch_of(RANK, step)).backward()
            first.step()
        states = {"model": one.state_dict(), "optimizer": first.state_dict()}
        states = saved(states, map_location=PLACED, weights_only=False)
        if "strategy" in settings or RANK == 0:
            other.load_state_dict(states["model"])
            second.load_state_dict(states["optimizer"])
        if "strategy" not in settings:
            gft.broadcast_parameters(other, comm=comm)
            gft.broadcast_optimizer_state(second, comm=comm)
        for step in range(4, 7):
            for model, optimizer in ((one, first), (other, second)):
                optimizer.zero_grad()
                loss_of(model, batch_of(RANK, step)).backward()
                optimizer.step()
        assert_same(values(one.parameters()), values(other.parameters()))
        assert "gradientflow" in first.consolidated_state_dict() or not settings
        if settings.get("fused"):
            assert first.explain().parameters == sum(p.numel() for p in one.parameters())
        first.close()
        second.close()


def check_wrong_places(comm: gf.Communicator) -> None:
    model = Sums().to(PLACED)
    model.weights[1] = nn.Parameter(left_on_host(torch.zeros(200)))
    with raises(ArgumentError, "weights.0 is on cuda:0, but there are also weights.1 on cpu", "on one device"):
        gft.DistributedOptimizer(sgd(model.parameters()), model, comm)
    gft.broadcast_parameters(model, comm=comm)  # which may be on both
    group: Any = dist.group.WORLD
    here, there = torch.zeros(4, device=PLACED), left_on_host(torch.zeros(4))
    with raises(ArgumentError, "on one device, not on"):
        group.allgather([[here if rank else there for rank in range(SIZE)]], [here])
    with raises(ArgumentError, "on one device, not on cpu and cuda:0"):
        group.allreduce_coalesced([here, there])
    if SIZE > 1:
        with raises(MismatchError, "different calls"):
            dist.all_reduce(here if RANK == 0 else there)
        with raises(MismatchError, "weights.0 is"):
            gft.broadcast_parameters({"weights.0": here if RANK == 0 else there}, comm=comm)
    x = torch.ones(3, device=PLACED)
    dist.all_reduce(x)  # nothing is broken
    assert (x.cpu() == SIZE).all()
    dist.all_reduce(there)  # on the host, in the same group
    assert (there == 0).all()


# ---- the process group -----------------------------------------------------------------------------------------------


def check_ddp(comm: gf.Communicator) -> None:
    """With buckets so small that several are under way, with a hook of PyTorch's, and with uneven inputs."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    for hook in (None, fp16_compress_hook):
        alone, model = (seeded(Net).to(PLACED) for _ in range(2))
        ids = [DEVICE] if IS_REAL else None
        parallel = DistributedDataParallel(model, device_ids=ids, bucket_cap_mb=1e-4, gradient_as_bucket_view=True)
        if hook is not None:
            parallel.register_comm_hook(None, hook)
        optimizers = sgd(alone.parameters()), sgd(model.parameters())
        for step in range(4):
            for optimizer in optimizers:
                optimizer.zero_grad()
            (sum(loss_of(alone, batch_of(rank, step)) for rank in range(SIZE)) / SIZE).backward()
            loss_of(parallel, batch_of(RANK, step)).backward()
            for optimizer in optimizers:
                optimizer.step()
            tolerance = 1e-5 if hook is None else 1e-2
            for mine, wanted in zip(model.parameters(), alone.parameters(), strict=True):
                assert torch.allclose(mine, wanted, rtol=tolerance, atol=tolerance)
            same_everywhere(model.parameters())
        with parallel.join():
            for step in range(1 + RANK):
                optimizers[1].zero_grad()
                loss_of(parallel, batch_of(RANK, step)).backward()
                optimizers[1].step()


@on_ranks(1, 3)
def check_futures(comm: gf.Communicator) -> None:
    """What is put into the current stream behind a future, a callback or a work sees the results."""
    for count in (3, 100_000):
        x = torch.full((count,), float(RANK + 1), device=PLACED)
        total = float(SIZE * (SIZE + 1) // 2)
        work: Any = dist.all_reduce(x, async_op=True)
        tripled = work.get_future().then(lambda future: [3 * future.value()[0]])
        assert (tripled.wait()[0] == 3 * total).all()
        assert work.wait()
        assert (x == total).all()
        deadline = time.monotonic() + scaled(30)
        while not work.is_completed():
            assert time.monotonic() < deadline
        bits = torch.full((count,), 1 << (RANK % 8), dtype=torch.int32, device=PLACED)
        work = dist.all_reduce(bits, dist.ReduceOp.BOR, async_op=True)  # which has something to do in the end
        while not work.is_completed():
            assert time.monotonic() < deadline
        work.wait()
        assert (bits == sum(1 << rank for rank in {rank % 8 for rank in range(SIZE)})).all()
        y = torch.empty(count, device=PLACED)
        if SIZE > 1:
            receiving: Any = dist.irecv(y, (RANK - 1) % SIZE)
            doubled = receiving.get_future().then(lambda future: 2 * future.value()[0])
            dist.send(torch.full((count,), float(RANK), device=PLACED), (RANK + 1) % SIZE)
            assert (doubled.wait() == 2 * ((RANK - 1) % SIZE)).all()
            assert (y == (RANK - 1) % SIZE).all()


def check_nobody_keeps_anything(comm: gf.Communicator) -> None:
    """The memory of tensors under way is not given to others, though nobody holds tensor, work or handle."""
    for i in range(30):
        source = torch.full((50_000,), float(i), device=PLACED)
        result = torch.empty(50_000, device=PLACED)
        work: Any = dist.broadcast(source if RANK == 0 else result, 0, async_op=True)
        if RANK == 0:
            del source
            for _ in range(3):
                torch.full((50_000,), -1.0, device=PLACED)
            del work
        else:
            work.wait()
            assert (result == i).all(), i
    gc.collect()
    dist.barrier()


def check_handles(comm: gf.Communicator) -> None:
    """The tensors of a call are kept until the device is done, though nobody holds the handle, or until a wait."""
    numbers = torch.arange(10_000.0).numpy()
    for waits in (False, True) * 3:
        x = gradientflow.device.asarray(numbers)
        kept = weakref.ref(x)
        handle = comm.allreduce_async(x)
        if waits:
            assert (handle.wait().get() == SIZE * numbers).all()
            del x, handle
        else:
            native = handle._native
            del x, handle
            while not native.device_done:
                assert kept() is not None
            comm.barrier_async().wait()  # a new call looks which of those before are done
        gc.collect()
        assert kept() is None


@on_ranks(1, 3)
def check_streams(comm: gf.Communicator) -> None:
    """Producers and consumers in streams of their own, kept busy so that a missing order shows."""
    if not IS_REAL:
        return
    cycles = 20_000_000
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    total = float(SIZE * (SIZE + 1) // 2)
    for asynchronous, count in itertools.product((False, True), (7, 300_000)):
        x = torch.zeros(count, device=DEVICE)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(cycles)
            x.fill_(RANK + 1.0)
            work: Any = dist.all_reduce(x, async_op=asynchronous)
        if asynchronous:
            with torch.cuda.stream(other):
                work.wait()
                y = x + 1
            other.synchronize()
            assert (y == total + 1).all()
        else:
            side.synchronize()
        torch.cuda.synchronize()
        assert (x == total).all()
    # Gradients that a side stream computes, and a consumer in it.
    model = Sums().to(DEVICE)
    with gft.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model, comm) as optimizer:
        torch.cuda.synchronize()
        for step in range(3):
            with torch.cuda.stream(side):
                optimizer.zero_grad()
                torch.cuda._sleep(cycles)
                model((whole_numbers(RANK, step) * SIZE).to(DEVICE), 0, 1, 2).backward()
                copies = [weight.grad.clone() for weight in model.weights]
                optimizer.step()
            side.synchronize()
            wanted = sum(whole_numbers(rank, step) for rank in range(SIZE))
            assert all(torch.equal(each.cpu(), wanted) for each in copies)
    # The host goes on while the device is at work.
    x = torch.ones(1000, device=DEVICE)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    torch.cuda._sleep(50 * cycles)
    begin = time.perf_counter()
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    waited = time.perf_counter() - begin
    torch.cuda.synchronize()
    say(f"the host waited {waited * 1e3:.2f} ms for a call behind {(time.perf_counter() - begin) * 1e3:.2f} ms of work")


def check_timeouts(comm: gf.Communicator) -> None:
    if SIZE == 1:
        return
    group: Any = dist.new_group(list(range(SIZE)), timeout=timedelta(seconds=1))
    x = torch.ones(10, device=PLACED)
    dist.all_reduce(x, group=group)
    if RANK == 0:
        with raises(CommunicationTimeoutError, "Timed out"):
            dist.all_reduce(x, group=group)
    dist.barrier()
    group.abort()
    x = torch.ones(10, device=PLACED)
    dist.all_reduce(x)
    assert (x == SIZE).all()


run_checks(around=with_process_group)
