"""Groups that get other members, as PyTorch's ``_reconfigure`` has it: on three ranks, of which rank 1 is replaced.

The first checks are the cases of PyTorch's own tests, which it runs on its backends.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as plain_dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradientflow.errors import ArgumentError, ClosedError, CommunicationTimeoutError, PeerError

dist: Any = plain_dist  # its annotations leave out what is new
c10d: Any = torch._C._distributed_c10d  # type: ignore[attr-defined]
FOLDER, RANK, SIZE, VICTIM = Path(sys.argv[1]), int(os.environ["RANK"]), 3, 1
EVERYBODY = range(SIZE)
IS_NEW = (FOLDER / "rank 1 has died").exists()

uuids = count(100)
exchanges = count()


def raises(error: type[Exception] | tuple[type[Exception], ...], text: str) -> Any:
    return pytest.raises(error, match=re.escape(text))


def told(mine: str, by: Sequence[int] = EVERYBODY) -> list[str]:
    """Tell the others something, and hear what these ranks say."""
    store = dist.FileStore(str(FOLDER / f"exchange {next(exchanges)}"), -1)
    store.set(str(RANK), mine)
    return [store.get(str(rank)).decode() for rank in by]


def handles() -> list[str]:
    return told(dist._get_reconfigure_handle())


def reconfigure(uuid: int, members: Sequence[str] | set[str], seconds: float = 60) -> None:
    work = dist._reconfigure(uuid, members, timeout=timedelta(seconds=seconds))
    assert work.wait()
    assert work.is_completed()
    assert work.get_future().wait() == []


def expect(rank: int, size: int) -> None:
    """Check the place of this rank, and all kinds of calls."""
    world: Any = dist.group.WORLD
    assert (dist.get_rank(), dist.get_world_size()) == (rank, size) == (world.rank(), world.size())
    assert world.get_error() == c10d.ErrorType.SUCCESS
    total = torch.full((4,), rank + 1.0)
    dist.all_reduce(total)
    assert total.tolist() == [size * (size + 1) / 2] * 4
    future = dist.all_reduce(torch.full((4,), rank + 1.0), async_op=True).get_future()

    def again(ended: Any) -> torch.Tensor:
        (value,) = ended.value()
        dist.all_reduce(value)
        return value

    assert future.then(again).wait().tolist() == [size * size * (size + 1) / 2] * 4
    received = torch.zeros(4)
    works = [dist.isend(torch.full((4,), float(rank)), (rank + 1) % size)] if size > 1 else []
    works += [dist.irecv(received, (rank - 1) % size)] if size > 1 else []
    for work in works:
        work.wait()
    assert received.tolist() == [float((rank - 1) % size if size > 1 else 0)] * 4
    from_last = torch.full((4,), float(rank))
    dist.broadcast(from_last, group_src=size - 1)
    assert from_last.tolist() == [size - 1.0] * 4
    dist.barrier()


@contextmanager
def group(*, begun: bool = True) -> Iterator[Any]:
    """Begin the default group, where the store of each process is its own."""
    dist.init_process_group(
        "gradientflow",
        store=dist.HashStore(),
        rank=RANK,
        world_size=SIZE,
        timeout=timedelta(seconds=60),
        enable_reconfigure=True,
    )
    assert dist._supports_reconfigure()
    if begun:
        reconfigure(next(uuids), handles())
        expect(RANK, SIZE)
    yield dist.group.WORLD
    dist.destroy_process_group()


# ---- the cases of PyTorch ----------------------------------------------------------------------------------------


def check_without_the_last_rank() -> None:
    with group():
        members = handles()
        uuid = next(uuids)
        if RANK < SIZE - 1:
            reconfigure(uuid, members[:-1])
            expect(RANK, SIZE - 1)
        told("done")


def check_without_a_rank_in_the_middle() -> None:
    with group():
        members = handles()
        uuid = next(uuids)
        if RANK != 1:
            reconfigure(uuid, [members[0], members[2]])
            expect(RANK // 2, 2)
        told("done")


def check_alone_together_and_alone_again() -> None:
    with group(begun=False):
        for _ in range(2):
            reconfigure(next(uuids), [dist._get_reconfigure_handle()])
            expect(0, 1)
            reconfigure(next(uuids), handles())
            expect(RANK, SIZE)


def check_the_same_members_again() -> None:
    with group():
        reconfigure(next(uuids), handles())
        expect(RANK, SIZE)


def check_ranks_that_come_later() -> None:
    with group(begun=False):
        for members in ([0], [0, 1], [0, 1, 2]):
            given = handles()
            uuid = next(uuids)
            if RANK in members:
                reconfigure(uuid, [given[rank] for rank in members])
                expect(RANK, len(members))


def check_a_merger() -> None:
    with group(begun=False):
        given = handles()
        uuid = next(uuids)
        reconfigure(uuid, given[:1] if RANK == 0 else given[1:])
        expect(*((0, 1) if RANK == 0 else (RANK - 1, 2)))
        reconfigure(next(uuids), handles())
        expect(RANK, SIZE)


def check_after_an_abort() -> None:
    with group() as world:
        world.abort()
        assert world.get_error() == c10d.ErrorType.COMM_ERROR
        reconfigure(next(uuids), handles())
        expect(RANK, SIZE)


def check_after_a_timeout() -> None:
    with group() as world:
        if RANK:
            world.set_timeout(timedelta(seconds=1))
            late = dist.all_reduce(torch.ones(4), async_op=True)
            with raises(CommunicationTimeoutError, "Timed out"):
                late.wait()
            world.set_timeout(timedelta(seconds=60))
        told("timed out")
        reconfigure(next(uuids), handles())
        expect(RANK, SIZE)
        if RANK:
            with raises((ClosedError, PeerError), "closed"):  # by this rank, or by another one before
                late.wait()


def check_a_uuid_is_used_once() -> None:
    with group():
        uuid = next(uuids)
        reconfigure(uuid, [dist._get_reconfigure_handle()])
        with raises(ArgumentError, f"the uuid {uuid} was already used"):
            reconfigure(uuid, [dist._get_reconfigure_handle()])
        expect(0, 1)


# ---- more --------------------------------------------------------------------------------------------------------


def check_before_there_are_members() -> None:
    with group(begun=False) as world:
        for call in (dist.barrier, lambda: dist.all_reduce(torch.ones(1)), lambda: dist.recv(torch.ones(1), 0)):
            with raises(ClosedError, "the process group has no members yet"):
                call()
        assert world.get_error() == c10d.ErrorType.COMM_ERROR
        world.abort()
        world.shutdown()


def check_what_is_refused() -> None:
    """Nothing has happened then."""
    with group():
        mine = dist._get_reconfigure_handle()
        parts = mine.split(":")
        for members, text in (
            ([], "the handle of this process is not among the 0 that are given"),
            ([mine.replace(parts[2], "0" * 64)], "the handle of this process is not among the 1 that are given"),
            ([mine, mine], "a handle is given twice"),
            ([mine, "gloo:0:-1:0:"], "'gloo:0:-1:0:' is no handle of a process group of the backend gradientflow"),
            ([mine, f"{mine}?"], "is no handle of a process group"),
            ([mine, "gradientflow"], "'gradientflow' is no handle of a process group"),
            (
                [mine, f"gradientflow:new:0:{b64encode(b'3:0.0').decode()}"],
                "rank 1 cannot be met: it runs version 0.0 of",
            ),
        ):
            with raises(ArgumentError, text):
                reconfigure(next(uuids), members)
        with raises(ArgumentError, "has no hints for reconfiguration"):
            dist._reconfigure(next(uuids), [mine], hints={"color": "red"})
        told("refused")
        assert dist._get_reconfigure_handle() == mine
        expect(RANK, SIZE)


def check_a_set_keeps_the_order() -> None:
    with group():
        given = handles()
        reconfigure(next(uuids), given[::-1])
        expect(SIZE - 1 - RANK, SIZE)
        reconfigure(next(uuids), set(handles()))
        expect(SIZE - 1 - RANK, SIZE)


def check_calls_under_way_end() -> None:
    with group():
        late = dist.irecv(torch.ones(4), (RANK + 1) % SIZE)
        reconfigure(next(uuids), handles())
        with raises((ClosedError, PeerError), "given up"):
            late.wait()
        expect(RANK, SIZE)


def check_who_leaves_is_noticed() -> None:
    with group() as world:
        if RANK == 0:
            world.abort()
        else:
            with raises(PeerError, "rank 0"):
                dist.recv(torch.ones(1), 0)
            with raises(PeerError, "rank 0"):
                dist.all_reduce(torch.ones(4))


def check_a_member_that_does_not_come() -> None:
    """The group stays what it was, and takes the next members."""
    with group():
        given = handles()
        uuid = next(uuids)
        if RANK < SIZE - 1:
            text = "timed out after 1 s (timeout of the reconfiguration) on rank 0: no sign of rank 2"
            with raises(CommunicationTimeoutError, text):
                reconfigure(uuid, given, seconds=1)
        told("timed out")
        expect(RANK, SIZE)
        reconfigure(next(uuids), handles())
        expect(RANK, SIZE)


def check_other_uuids_do_not_meet() -> None:
    with group():
        given = handles()
        with raises((CommunicationTimeoutError, PeerError), "rank"):
            reconfigure(next(uuids) + RANK * 1000, given, seconds=1)
        told("have not met")
        expect(RANK, SIZE)


def check_any_group_has_it() -> None:
    """Also one that has met at a store, and a part of it."""
    store = dist.FileStore(str(FOLDER / "meeting"), SIZE)
    dist.init_process_group("gradientflow", store=store, rank=RANK, world_size=SIZE)
    part = dist.new_group([0, 2])
    if RANK != 1:
        assert dist._supports_reconfigure(part)
        members = told(dist._get_reconfigure_handle(part), by=[0, 2])
        dist._reconfigure(7, members[::-1], part).wait()
        total = torch.full((4,), 1.0 + part.rank())
        dist.all_reduce(total, group=part)
        assert total.tolist() == [3.0] * 4
        assert part.rank() == 1 - RANK // 2
    else:
        next(exchanges)
    reconfigure(next(uuids), handles())
    expect(RANK, SIZE)
    dist.destroy_process_group()


# ---- a death, and a newcomer -------------------------------------------------------------------------------------


def step(model: nn.Module) -> list[float]:
    """Return the mean over the ranks of a gradient that is the number of the rank."""
    model.zero_grad()
    (model(torch.ones(1, 3)) * dist.get_rank()).sum().backward()
    return next(model.parameters()).grad.flatten().tolist()  # type: ignore[union-attr]


def a_rank_dies_and_another_comes() -> None:
    with group(begun=not IS_NEW):
        network = nn.Linear(3, 1, bias=False)
        if not IS_NEW:
            assert step(DistributedDataParallel(network)) == [1.0] * 3
            given = handles()
            if RANK == VICTIM:
                (FOLDER / "rank 1 has died").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            with raises(PeerError, "rank 1"):
                dist.recv(torch.ones(1), VICTIM)
            assert dist.group.WORLD.get_error() == c10d.ErrorType.REMOTE_ERROR
            with raises(PeerError, "rank 1"):  # whose handle is not worth anything any more
                reconfigure(next(uuids), given)
            reconfigure(next(uuids), told(dist._get_reconfigure_handle(), by=[0, 2]))
            expect(RANK // 2, 2)
            assert step(DistributedDataParallel(network)) == [0.5] * 3
        come = FOLDER / "newcomers"
        store = dist.FileStore(str(come), -1)
        store.set(str(RANK), dist._get_reconfigure_handle())
        reconfigure(1000, {store.get(str(rank)).decode() for rank in EVERYBODY})
        expect(2 if IS_NEW else RANK // 2, SIZE)
        assert step(DistributedDataParallel(network)) == [1.0] * 3


def main() -> None:
    checks: list[Callable[[], None]] = [call for name, call in globals().items() if name.startswith("check_")]
    for check in [] if IS_NEW else checks:
        check()
    a_rank_dies_and_another_comes()
    names = [each.name for each in threading.enumerate()]
    assert [name for name in names if not name.startswith("gradientflow ")] == ["MainThread"]
    print(f"rank {RANK} has come to the end")


if __name__ == "__main__":
    main()
