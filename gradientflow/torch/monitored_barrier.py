"""A barrier after which every rank knows who did not come.

Each rank tells rank 0 that it is here and waits for an answer. Rank 0 waits for all, at most so long, and answers those
that came with the list of those that did not. Messages bear the number of the barrier, because one that comes too late
would be taken for one of the next barrier.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from gradientflow.errors import CommunicationTimeoutError

from . import devices
from .messages import Mailbox


def monitored_barrier(mailbox: Mailbox, rank: int, size: int, number: int, limit: float) -> None:
    """Wait until all ranks are here.

    Parameters
    ----------
    mailbox : Mailbox
        The messages of the group.
    rank, size : int
        This rank, and the number of ranks.
    number : int
        How many barriers there have been, this one included.
    limit : float
        Seconds that rank 0 waits.

    Raises
    ------
    gradientflow.errors.CommunicationTimeoutError
        On the ranks that came, if others did not.
    """
    missing = _missing(mailbox, size, number, limit) if rank == 0 else _told(mailbox, size, number, limit)
    if missing:
        names = [str(mailbox.common.world_ranks[each]) for each in (rank, *missing)]
        message = (
            f"[Rank {names[0]}]: Timed out in monitored_barrier: {'Rank' if len(missing) == 1 else 'Ranks'} "
            f"{', '.join(names[1:])} failed to pass monitoredBarrier in {limit * 1000:.0f} ms"
        )
        raise CommunicationTimeoutError(message)


def _missing(mailbox: Mailbox, size: int, number: int, limit: float) -> Sequence[int]:
    """Wait for the other ranks, and answer those that come; return the others."""
    deadline = time.monotonic() + limit
    tag = mailbox.barrier_tag
    arrived = {rank: torch.zeros(1, dtype=torch.int64, device=devices.HOST) for rank in range(1, size)}
    messages = {rank: mailbox.receive(bell, rank, tag) for rank, bell in arrived.items()}
    missing = []
    for rank, bell in arrived.items():
        while messages[rank].came_by(deadline) and bell.item() != number:
            messages[rank] = mailbox.receive(bell, rank, tag)
        if bell.item() != number:
            messages[rank].cancel()
            missing.append(rank)
    answer = torch.zeros(2 + size, dtype=torch.int64, device=devices.HOST)
    answer[: 2 + len(missing)] = torch.tensor([number, len(missing), *missing], device=devices.HOST)
    for rank in arrived:
        if rank not in missing:
            mailbox.send(answer, rank, tag)
    return missing


def _told(mailbox: Mailbox, size: int, number: int, limit: float) -> Sequence[int]:
    """Tell rank 0 that this rank is here; return who is missing, as rank 0 says, or rank 0 itself."""
    deadline = time.monotonic() + 2 * limit  # rank 0 may come last, and then waits for as long
    tag = mailbox.barrier_tag
    mailbox.send(torch.tensor([number], device=devices.HOST), 0, tag)
    answer = torch.zeros(2 + size, dtype=torch.int64, device=devices.HOST)
    while answer[0].item() != number:
        message = mailbox.receive(answer, 0, tag)
        if not message.came_by(deadline):
            message.cancel()
            return [0]
    missing: list[int] = answer[2 : 2 + int(answer[1])].tolist()
    return missing
