"""What PyTorch has for programs that handle failures, on three ranks, of which rank 1 dies in the end."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gradientflow.errors import ClosedError, CommunicationTimeoutError, PeerError
from gradientflow.torch import mean_hook

ErrorType: Any = torch._C._distributed_c10d.ErrorType  # type: ignore[attr-defined]
FOLDER, RANK, VICTIM = Path(sys.argv[1]), int(os.environ["RANK"]), 1


def expect(error: type[Exception], call: Callable[[], object]) -> None:
    """Check that a call raises an error."""
    try:
        call()
    except error:
        return
    raise AssertionError(f"no {error.__name__}")


def group(name: str, rank: int = RANK, size: int = 3) -> Any:
    """Begin the default group at a store of its own."""
    store = dist.FileStore(str(FOLDER / name), size)
    dist.init_process_group("gradientflow", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60))
    world: Any = dist.group.WORLD
    dist.all_reduce(torch.ones(3))
    assert world.get_error() == ErrorType.SUCCESS
    return world


def after_abort() -> None:
    """No call is served, and the group may be ended as often as one likes."""
    world = group("after")
    dist.barrier()
    world.abort()
    assert world.get_error() == ErrorType.COMM_ERROR
    expect(ClosedError, lambda: dist.all_reduce(torch.ones(3)))
    expect(ClosedError, lambda: dist.all_reduce(torch.ones(3), async_op=True).wait())  # type: ignore[union-attr]
    expect(ClosedError, lambda: dist.send(torch.ones(3), (RANK + 1) % 3))
    for _ in range(2):
        world.abort()
        world.shutdown()
    dist.destroy_process_group()


def from_another_thread(name: str, call: Callable[[], object]) -> None:
    """A call that is under way on rank 0 ends there, and then on the others."""
    world = group(name)
    has_ended = FOLDER / f"{name} has ended"
    if RANK == 0:
        threading.Timer(0.2, world.abort).start()
        expect(ClosedError, call)
        has_ended.touch()
    else:
        while not has_ended.exists():
            threading.Event().wait(0.01)
        expect(PeerError, lambda: [dist.all_reduce(torch.ones(3)) for _ in range(2)])  # rank 0 may have begun the first
        assert world.get_error() == ErrorType.REMOTE_ERROR
    dist.destroy_process_group()


def by_pytorch() -> None:
    """Abort all groups as PyTorch does for a program."""
    group("by pytorch")
    inner: Any = dist.new_group([0, 1, 2])
    if RANK == 0:
        dist.distributed_c10d._abort_process_group()
        expect(ClosedError, lambda: inner.barrier().wait())
    else:
        expect(PeerError, lambda: dist.barrier(inner))
        dist.distributed_c10d._abort_process_group()
    assert not dist.is_initialized()


def of_a_part() -> None:
    """A group of its own ends, in any way: the default group goes on."""
    group("part")

    def part_that(ends: Callable[[Any], object], error: Any, seconds: int = 60) -> None:
        part: Any = dist.new_group(use_local_synchronization=True, timeout=timedelta(seconds=seconds))
        dist.all_reduce(torch.ones(4), group=part)
        ends(part)
        assert part.get_error() == error
        if part in dist.distributed_c10d._world.pg_map:
            dist.destroy_process_group(part)
        total = torch.ones(4)
        dist.all_reduce(total)
        assert total.tolist() == [3.0] * 4

    def times_out(part: Any) -> None:
        if RANK == 0:
            dist.all_reduce(torch.ones(1024), group=part, async_op=True)
            while part.get_error() == ErrorType.SUCCESS:
                threading.Event().wait(0.01)
            (FOLDER / "part has timed out").touch()
            expect(CommunicationTimeoutError, lambda: dist.all_reduce(torch.ones(4), group=part))
        else:
            while not (FOLDER / "part has timed out").exists():
                threading.Event().wait(0.01)

    part_that(lambda part: part._get_backend(torch.device("cpu")).abort(), ErrorType.COMM_ERROR)
    part_that(dist.distributed_c10d._abort_process_group, ErrorType.COMM_ERROR)
    part_that(dist.destroy_process_group, ErrorType.COMM_ERROR)
    part_that(times_out, ErrorType.TIMEOUT if RANK == 0 else ErrorType.SUCCESS, seconds=1)
    dist.destroy_process_group()


def after_a_timeout() -> None:
    """A wait that is given up is no error of the group; a call that others do not come to is one."""
    world = group("timeout")
    inner: Any = dist.new_group([0, 1, 2], timeout=timedelta(seconds=1))
    if RANK == 0:
        late: Any = dist.barrier(async_op=True)
        expect(CommunicationTimeoutError, lambda: late.wait(timedelta(seconds=0.1)))
        assert world.get_error() == ErrorType.SUCCESS
        expect(CommunicationTimeoutError, lambda: dist.barrier(inner))
        assert inner.get_error() == ErrorType.TIMEOUT
        (FOLDER / "timed out").touch()
        late.wait()
    else:
        while not (FOLDER / "timed out").exists():
            threading.Event().wait(0.01)
        dist.barrier()
    dist.destroy_process_group()


def after_a_death() -> None:
    """The others end the group, and go on in a new one."""
    world = group("death")
    inner: Any = dist.new_group([0, 1, 2])
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    hooked = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    hooked.register_comm_hook(None, mean_hook)
    if RANK == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    for each in (model, hooked):
        expect(PeerError, each(torch.ones(3)).sum().backward)
    expect(PeerError, lambda: dist.recv(torch.ones(3), VICTIM))
    assert world.get_error() == ErrorType.REMOTE_ERROR
    work: Any = inner.allreduce([torch.ones(3)])
    expect(PeerError, work.wait)
    assert inner.get_error() == ErrorType.REMOTE_ERROR
    expect(PeerError, lambda: dist.all_reduce(torch.ones(3)))
    for _ in range(2):
        inner.shutdown()
    dist.destroy_process_group()
    group("survivors", rank=int(RANK > VICTIM), size=2)
    total = torch.full((3,), float(RANK))
    dist.all_reduce(total)
    assert total.tolist() == [2.0] * 3
    dist.destroy_process_group()


def main() -> None:
    after_abort()
    from_another_thread("collective", lambda: dist.all_reduce(torch.ones(3)))
    from_another_thread("work", lambda: dist.all_reduce(torch.ones(3), async_op=True).wait())  # type: ignore[union-attr]
    from_another_thread("receive", lambda: dist.recv(torch.ones(3), VICTIM))
    by_pytorch()
    of_a_part()
    after_a_timeout()
    after_a_death()
    print(f"rank {RANK} has come to the end")


if __name__ == "__main__":
    main()
