"""Messages between two ranks of a process group, and calls made of messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from gradientflow._location import core
from gradientflow.communicator import Communicator
from gradientflow.mailbox import MessageRequest, make_mailbox
from gradientflow.torch import devices

from .context import WorkContext
from .monitored_barrier import monitored_barrier
from .tensors import check_alike, check_count, is_plain, memory_for, overlap, plain, plain_like
from .work import CollectiveWork, MessageWork, Work


class Messages:
    """Sends and receives, all-to-all exchanges of uneven parts, and barriers that name missing ranks.

    Messages go through a mailbox. Tensors on a device are copied to and from the host.

    Parameters
    ----------
    communicator : Communicator
        The group's communicator.
    context : WorkContext
        Shared by the works of the group.
    """

    def __init__(self, communicator: Communicator, context: WorkContext) -> None:
        self._rank, self._size = communicator.rank, communicator.size
        self._context = context
        self._mailbox = make_mailbox(communicator, "the process group")
        self._barrier_tags = self._mailbox.draw(1)
        self._alltoall_tags = self._mailbox.draw(2)  # one for calls from callbacks, one for all other calls
        self._tags = self._mailbox.draw_rest()  # tags for users
        self._barriers = 0

    def close(self, *, orderly: bool) -> None:
        """Stop sending and receiving; if `orderly`, first wait a moment for messages under way."""
        self._mailbox.close(orderly)

    def send(self, tensor: torch.Tensor, rank: int, tag: int, limit: float) -> Work:
        """Start to send a tensor to a rank."""
        request = self._post_send(devices.to_host([plain(tensor)])[0], rank, self._tags.at(tag))
        return MessageWork(self._context, tensor, request, [], limit)

    def receive(self, tensor: torch.Tensor, rank: int | None, tag: int, limit: float) -> Work:
        """Start to receive a tensor from a rank, or from any rank."""
        tag = self._tags.at(tag)
        stream = devices.current_stream(devices.device_of(tensor))
        if stream is None:
            memory, store = memory_for(tensor)
        else:
            memory = devices.host_like(tensor)
            store = partial(tensor.copy_, memory, non_blocking=True)
        request = self._post_receive(memory, rank, tag)
        finish = [] if store is None else [store]
        return MessageWork(self._context, tensor, request, finish, limit, stream)

    def exchange(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        results: list[torch.Tensor],
        finish: Callable[[], object] | None,
        limit: float | None,
    ) -> Work:
        """Exchange tensors of any sizes with all ranks; the work's result is `results`, after `finish`."""
        check_alike("alltoall", *outputs, *inputs)
        check_count("alltoall", outputs[self._rank], inputs[self._rank].numel())
        sources = [plain(tensor) for tensor in inputs]
        sources = [
            source.clone() if any(overlap(source, output) for output in outputs) else source for source in sources
        ]
        memories = [output if is_plain(output) else plain_like(output) for output in outputs]
        tag = self._alltoall_tags.at(0 if self._context.thread.is_current else 1)
        others = [(self._rank + step) % self._size for step in range(1, self._size)]
        stream = devices.current_stream(devices.device_of(outputs[0]))
        if stream is not None:
            memories = [
                output if rank == self._rank else devices.host_like(output) for rank, output in enumerate(outputs)
            ]
            for rank, copy in zip(others, devices.to_host([sources[rank] for rank in others]), strict=True):
                sources[rank] = copy
        requests = [self._post_receive(memories[rank], rank, tag) for rank in others if memories[rank].numel()]
        requests += [self._post_send(sources[rank], rank, tag) for rank in others if sources[rank].numel()]

        def store() -> None:
            memories[self._rank].copy_(sources[self._rank].view(memories[self._rank].shape))
            for output, memory in zip(outputs, memories, strict=True):
                if memory is not output:
                    output.copy_(memory, non_blocking=True)
            if finish is not None:
                finish()

        if not requests:
            store()
        return CollectiveWork(self._context, results, requests, [store], limit, stream)

    def barrier(self, limit: float, wait_all_ranks: bool) -> None:
        """Wait until all ranks are here, on rank 0 at most `limit` seconds; then name the missing ranks."""
        self._barriers += 1
        ranks = self._context.world_ranks
        monitored_barrier(self._mailbox, self._barrier_tags, self._rank, ranks, self._barriers, limit, wait_all_ranks)

    def _post_send(self, tensor: torch.Tensor, rank: int, tag: int) -> MessageRequest:
        """Start to send a plain tensor in host memory."""
        core.recorder.note_message(True, rank, tensor.nbytes)
        return self._mailbox.send(tensor.data_ptr(), tensor.nbytes, tensor, rank, tag)

    def _post_receive(self, tensor: torch.Tensor, rank: int | None, tag: int) -> MessageRequest:
        """Start to receive into a plain tensor in host memory, from one rank or from any rank."""
        core.recorder.note_message(False, -1 if rank is None else rank, tensor.nbytes)
        return self._mailbox.receive(tensor.data_ptr(), tensor.nbytes, tensor, rank, tag)
