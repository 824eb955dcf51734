"""A barrier after which every rank knows who did not come.

Each rank tells rank 0 that it is here and waits for an answer. Rank 0 waits for all, at most so long, and answers those
that came with the list of those that did not. Messages bear the number of the barrier, because one that comes too late
would be taken for one of the next barrier.

The words of the errors are those of PyTorch's Gloo, which its tests and other programs look for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from gradientflow.errors import CommunicationTimeoutError, PeerError
from gradientflow.mailbox import Mailbox, Tags

from . import devices


def monitored_barrier(
    mailbox: Mailbox,
    tags: Tags,
    rank: int,
    world_ranks: Sequence[int],
    number: int,
    limit: float,
    wait_all_ranks: bool,
) -> None:
    """Wait until all ranks are here.

    Parameters
    ----------
    mailbox : Mailbox
        The messages of the group.
    tags : Tags
        One of them is for barriers.
    rank : int
        This rank.
    world_ranks : sequence of int
        The rank in the world of each rank of the group.
    number : int
        How many barriers there have been, this one included.
    limit : float
        Seconds that rank 0 waits.
    wait_all_ranks : bool
        Whether the error is about all missing ranks, or about the first and then the others.

    Raises
    ------
    gradientflow.errors.CommunicationTimeoutError
        On the ranks that came, if others did not.
    """
    wait = _missing if rank == 0 else _told
    missing = wait(mailbox, tags, len(world_ranks), number, limit)
    if missing:
        zero, here = world_ranks[0], world_ranks[rank]
        failed = _failed([world_ranks[each] for each in missing], limit, wait_all_ranks)
        if rank == 0:
            message = f"Rank {zero} timed out in monitoredBarrier: {failed}"
        else:
            message = (
                f"Rank {here} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                f"from rank {zero}: Timed out: {failed}"
            )
        raise CommunicationTimeoutError(message)


def _failed(ranks: Sequence[int], limit: float, together: bool) -> str:
    """Say which ranks of the world did not come: the first one first, unless all are to be named together."""
    first, *others = [str(rank) for rank in ranks]
    failed = f"failed to pass monitoredBarrier in {limit * 1000:.0f} ms"
    if not others:
        return f"Rank {first} {failed}"
    rest = ", ".join(others)
    return f"Ranks {first}, {rest} {failed}" if together else f"Rank {first} {failed}, and so did {rest}"


def _missing(mailbox: Mailbox, tags: Tags, size: int, number: int, limit: float) -> Sequence[int]:
    """Wait for the other ranks, and answer those that come; return the others."""
    deadline = time.monotonic() + limit
    missing = [rank for rank in range(1, size) if not _come(mailbox, tags, rank, number, deadline, _words(1))]
    answer = _words(2 + size)
    answer[: 2 + len(missing)] = torch.tensor([number, len(missing), *missing], device=devices.HOST)
    for rank in set(range(1, size)).difference(missing):
        mailbox.send(answer.data_ptr(), answer.nbytes, answer, rank, tags.at(0))
    return missing


def _told(mailbox: Mailbox, tags: Tags, size: int, number: int, limit: float) -> Sequence[int]:
    """Tell rank 0 that this rank is here; return who is missing, as rank 0 says, or rank 0 itself."""
    deadline = time.monotonic() + 2 * limit  # rank 0 may come last, and then waits for as long
    bell, answer = _words(1), _words(2 + size)
    bell[0] = number
    mailbox.send(bell.data_ptr(), bell.nbytes, bell, 0, tags.at(0))
    if not _come(mailbox, tags, 0, number, deadline, answer):
        return [0]
    missing: list[int] = answer[2 : 2 + int(answer[1])].tolist()
    return missing


def _come(mailbox: Mailbox, tags: Tags, rank: int, number: int, deadline: float, message: torch.Tensor) -> bool:
    """Wait for what a rank says in this barrier, and drop what it has said in earlier ones; tell whether it came."""
    try:
        while (arrival := mailbox.next(tags, rank, max(0.0, deadline - time.monotonic()))) is not None:
            mailbox.take(arrival, message.data_ptr(), message).wait()
            if message[0].item() == number:
                return True
    except PeerError:  # it has left
        pass
    return False


def _words(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int64, device=devices.HOST)
