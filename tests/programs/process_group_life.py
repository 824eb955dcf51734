"""How process groups begin and end: all ways to say who the ranks are, timeouts, ranks that leave, an untidy exit."""

from __future__ import annotations

import os
import random
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any
from unittest import SkipTest

import torch
import torch.distributed as dist
from support import RANK, SIZE, WORLD, nothing, raises, run_checks

from gradientflow.errors import (
    ArgumentError,
    ClosedError,
    CommunicationError,
    CommunicationTimeoutError,
    PeerError,
)
from gradientflow.torch.registration import register

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@contextmanager
def environment(**variables: object) -> Iterator[None]:
    os.environ.update({name: str(value) for name, value in variables.items()})
    yield
    for name in variables:
        del os.environ[name]


@contextmanager
def group(*arguments: Any, timeout: float = 30, **options: Any) -> Iterator[Any]:
    dist.init_process_group(*arguments, timeout=timedelta(seconds=timeout), **options)
    assert (dist.get_rank(), dist.get_world_size()) == (RANK, SIZE)
    yield dist.group.WORLD
    dist.destroy_process_group()


def sum_up() -> None:
    x = torch.full((1000,), float(RANK))
    dist.all_reduce(x)
    assert (x == SIZE * (SIZE - 1) / 2).all()
    store = dist.distributed_c10d._get_default_store()
    store.set(f"from {RANK}", "hello")
    assert store.get(f"from {SIZE - 1 - RANK}") == b"hello"
    dist.barrier()  # rank 0 serves the store


def free_port() -> int:
    """Find a port below those that the system gives to whoever asks for any; the same on all ranks."""
    port = 0
    while RANK == 0 and not port:
        with socket.socket() as probe, suppress(OSError):
            number = random.randrange(20000, 32000)
            probe.bind(("127.0.0.1", number))
            port = number
    found: int = WORLD.bcast(port)
    return found


def check_beginnings() -> None:
    with tempfile.TemporaryDirectory() as mine:
        begin_and_end(WORLD.bcast(mine))
        WORLD.Barrier()


def begin_and_end(folder: str) -> None:
    register()  # PyTorch has called it already
    with group("gradientflow"):
        sum_up()
    with group(backend="cpu:gradientflow"):
        sum_up()
    with group("gradientflow", rank=RANK, world_size=SIZE):
        sum_up()
    with environment(RANK=RANK, WORLD_SIZE=SIZE, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port()):
        with group("gradientflow", init_method="env://"):
            sum_up()
        with group("gradientflow"):
            sum_up()
    with environment(MASTER_ADDR="localhost"), group("gradientflow"):
        sum_up()
    with group("gradientflow", f"file://{folder}/file"):
        sum_up()
    with group("gradientflow", f"tcp://127.0.0.1:{free_port()}"):
        sum_up()
    with group("gradientflow", f"tcp://127.0.0.1:{free_port()}?rank={RANK}&world_size={SIZE}"):
        sum_up()
    with group("gradientflow", store=dist.FileStore(f"{folder}/store", SIZE)):
        sum_up()
    with group("gradientflow"):
        for ranks in ([0], [1], [0, 1]):
            inner = dist.new_group(ranks, backend="gradientflow")
            if RANK in ranks:
                dist.barrier(group=inner)


def check_disagreements() -> None:
    with environment(RANK=SIZE - 1 - RANK), raises(ArgumentError, f"the rank is said to be {SIZE - 1 - RANK}"):
        dist.init_process_group("gradientflow")
    with environment(WORLD_SIZE=SIZE + 3), raises(ArgumentError, f"number of ranks is said to be {SIZE + 3}"):
        dist.init_process_group("gradientflow")
    with environment(RANK="first"), raises(ArgumentError, "RANK is 'first'"):
        dist.init_process_group("gradientflow")
    with raises(ArgumentError, f" says {RANK}"):
        dist.init_process_group("gradientflow", rank=SIZE - 1 - RANK, world_size=SIZE)
    with environment(MASTER_PORT=1 << 16), raises(ArgumentError, "MASTER_PORT is '65536'"):
        dist.init_process_group("gradientflow")
    with socket.create_server(("", 0)) as taken:
        port = WORLD.bcast(taken.getsockname()[1])
        with environment(MASTER_PORT=port), raises(CommunicationError, "rank 0 cannot serve the store", str(port)):
            dist.init_process_group("gradientflow")
    assert not dist.is_initialized()


def check_timeouts() -> None:
    """Rank 1 does not come; the ranks are in step before, so that only that takes long."""
    with group("gradientflow") as world:
        inner: list[Any] = []
        for _ in range(3):
            WORLD.Barrier()
            inner.append(dist.new_group([0, 1], timeout=timedelta(seconds=1)))
        with_ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2), process_group=inner[2])
        world.set_timeout(timedelta(seconds=0.2))
        if RANK == 0:
            with raises(CommunicationTimeoutError, "Timed out", "allreduce of 3 float32", "no sign of rank 1"):
                dist.all_reduce(torch.zeros(3), group=inner[0])
            with raises(CommunicationTimeoutError, "Timed out", "allreduce of 3 float32", "no sign of rank 1"):
                dist.all_reduce(torch.zeros(3), group=inner[1], async_op=True).get_future().wait()  # type: ignore[union-attr]
            # The error passes through PyTorch's C++, and reaches the user as it is.
            with raises(CommunicationTimeoutError, "process group: Timed out", "allreduce of"):
                with_ddp(torch.ones(3)).sum().backward()
            with raises(CommunicationTimeoutError, "Timed out", "the receive from rank 1 with tag 7"):
                dist.recv(torch.zeros(3), 1, tag=7)
            with raises(CommunicationTimeoutError, "Timed out", "the receive from any rank"):
                dist.recv(torch.zeros(3))
            with raises(CommunicationTimeoutError, " Timed out ", "not done within 0.2 s"):
                dist.barrier()
        WORLD.Barrier()
        if RANK == 1:
            world.barrier(timedelta(seconds=30)).wait()  # what rank 0 has begun
        WORLD.Barrier()


def check_leaving() -> None:
    with group("gradientflow", timeout=30) as world:
        receiving: Any = dist.irecv(torch.zeros(3), 1 - RANK)
        future = receiving.get_future()
        if RANK == 0:
            with raises(PeerError, "rank 1 has closed"):
                dist.all_reduce(torch.zeros(3))
            with suppress(PeerError):  # the group stays until rank 0 has heard of it here, too
                receiving.wait()
        else:
            world.abort()
    for waiting in (receiving, future):
        if RANK == 0:
            with raises(PeerError, "rank 1 has given up while rank 0 waited in the receive from rank 1"):
                waiting.wait()
        else:
            with raises(ClosedError, "was given up: the process group has been closed"):
                waiting.wait()
    with raises(ClosedError, "the process group has been closed"):
        world.send([torch.zeros(1)], 1 - RANK)
    with raises(ClosedError):
        world.barrier().wait()


def check_members_over_mpi_stay() -> None:
    if not hasattr(torch._C._distributed_c10d, "ReconfigureOptions"):  # type: ignore[attr-defined]
        raise SkipTest("needs PyTorch 2.14")
    with raises(ArgumentError, "enable_reconfigure=True needs messages over TCP: set GRADIENTFLOW_TRANSPORT=tcp"):
        dist.init_process_group("gradientflow", enable_reconfigure=True)  # type: ignore[call-arg]
    assert not dist.is_initialized()
    with group("gradientflow") as world:
        assert not world.supports_reconfigure
        for call in (dist._get_reconfigure_handle, lambda: dist._reconfigure(1, ["handle"])):  # type: ignore[attr-defined]
            with raises(ArgumentError, "met through MPI keeps its members: set GRADIENTFLOW_TRANSPORT=tcp"):
                call()
        sum_up()


def check_the_end_without_a_word() -> None:
    """Leave the process group with everything under way: the last check, since the job ends so."""
    dist.init_process_group("gradientflow")
    kept = [dist.irecv(torch.zeros(3), 1 - RANK), dist.irecv(torch.zeros(3), tag=4)]
    kept[0].get_future()  # type: ignore[union-attr]
    kept.append(dist.isend(torch.zeros(1 << 20), 1 - RANK, tag=5))
    dist.new_group([0, 1])
    kept += [dist.all_reduce(torch.zeros(100000), async_op=True) for _ in range(5)]
    if RANK == 0:
        for _ in range(3):  # without the other rank
            future = dist.all_reduce(torch.zeros(100000), async_op=True).get_future()  # type: ignore[union-attr]
            future.then(lambda done: done.wait())
    alone: Any = [dist.new_group([rank]) for rank in range(SIZE)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2), process_group=alone[RANK])
    model(torch.ones(3)).sum().backward()
    sys.modules["kept"] = kept  # type: ignore[assignment]


for name in VARIABLES:
    os.environ.pop(name, None)
run_checks(around=nothing)
