"""A barrier after which every rank knows the ranks that did not come.

Each rank sends rank 0 a message, and waits for its answer. Rank 0 waits for all messages, up to a limit, and sends the
list of missing ranks to the ranks that came. Messages carry the number of the barrier, so that a late message is not
counted in the next barrier.

Error messages have the wording of PyTorch's Gloo, which its tests and other programs look for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from gradientflow.errors import CommunicationTimeoutError, PeerError
from gradientflow.mailbox import Mailbox, Tags
from gradientflow.torch import devices


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
        The mailbox of the group.
    tags : Tags
        The tags for barriers.
    rank : int
        This rank.
    world_ranks : sequence of int
        World rank of each rank of the group.
    number : int
        The number of this barrier, from 1.
    limit : float
        Seconds that rank 0 waits.
    wait_all_ranks : bool
        True if the error names all missing ranks together; otherwise it names the first one before the rest.

    Raises
    ------
    gradientflow.errors.CommunicationTimeoutError
        On the ranks that came, if some did not.
    """
    wait = _find_missing if rank == 0 else _ask_rank_0
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
    """Return the message about the world ranks that did not come: all together, or the first one before the rest."""
    first, *others = [str(rank) for rank in ranks]
    failed = f"failed to pass monitoredBarrier in {limit * 1000:.0f} ms"
    if not others:
        return f"Rank {first} {failed}"
    rest = ", ".join(others)
    return f"Ranks {first}, {rest} {failed}" if together else f"Rank {first} {failed}, and so did {rest}"


def _find_missing(mailbox: Mailbox, tags: Tags, size: int, number: int, limit: float) -> Sequence[int]:
    """On rank 0: wait for a message of each rank, answer the ranks that come, and return the missing ranks."""
    deadline = time.monotonic() + limit
    missing = [rank for rank in range(1, size) if not _receive_by(mailbox, tags, rank, number, deadline, _words(1))]
    answer = _words(2 + size)
    answer[: 2 + len(missing)] = torch.tensor([number, len(missing), *missing], device=devices.HOST)
    for rank in set(range(1, size)).difference(missing):
        mailbox.send(answer.data_ptr(), answer.nbytes, answer, rank, tags.at(0))
    return missing


def _ask_rank_0(mailbox: Mailbox, tags: Tags, size: int, number: int, limit: float) -> Sequence[int]:
    """On other ranks: send rank 0 a message; return the missing ranks in its answer, or rank 0 if none comes."""
    deadline = time.monotonic() + 2 * limit  # rank 0 may come last, and then waits for the limit, too
    bell, answer = _words(1), _words(2 + size)
    bell[0] = number
    mailbox.send(bell.data_ptr(), bell.nbytes, bell, 0, tags.at(0))
    if not _receive_by(mailbox, tags, 0, number, deadline, answer):
        return [0]
    missing: list[int] = answer[2 : 2 + int(answer[1])].tolist()
    return missing


def _receive_by(mailbox: Mailbox, tags: Tags, rank: int, number: int, deadline: float, message: torch.Tensor) -> bool:
    """Receive a rank's message of this barrier, dropping messages of earlier barriers. Return True if it came."""
    try:
        while (arrival := mailbox.next(tags, rank, max(0.0, deadline - time.monotonic()))) is not None:
            mailbox.take(arrival, message.data_ptr(), message).wait()
            if message[0].item() == number:
                return True
    except PeerError:  # the rank has left
        pass
    return False


def _words(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int64, device=devices.HOST)
