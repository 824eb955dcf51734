"""Messages between two ranks of a process group: MPI's non-blocking calls, and a thread that keeps them going."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from mpi4py import MPI

from gradientflow.errors import ArgumentError, ClosedError, CommunicationTimeoutError, MismatchError, MPIError

from . import devices
from .work import Common, Work, untraced

_POLLS = 100  # how often a waiting thread looks at a message before it sleeps between looks
_SHORTEST_NAP = 20e-6  # seconds
_LONGEST_NAP = 5e-3
_LEAVE_SECONDS = 1.0  # what messages that nobody has waited for get when the group is closed

_RESERVED_TAGS = 3  # the highest ones are ours
_LARGE = 1 << 31  # from so many bytes on, which MPI cannot count in an int, a message is made of blocks
_BLOCK = 1 << 20

# What MPI may still read or write when a group is closed must never be freed.
_kept: list[Message] = []

_AT_ONCE = timedelta(microseconds=1)


class Message:
    """A send or receive under way.

    Attributes
    ----------
    source : int
        The rank it came from, once a receive is done.
    """

    def __init__(self, request: MPI.Request, tensor: torch.Tensor, what: str, expected: int | None) -> None:
        self.source = -1
        self._request = request
        self._tensor: torch.Tensor | None = tensor  # MPI does not keep it alive
        self._what = what
        self._expected = expected  # bytes of a receive
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._error: Exception | None = None

    @property
    def done(self) -> bool:
        """Whether it has ended, well or badly; MPI is asked."""
        if self._ended.is_set():
            return True
        if self._lock.acquire(blocking=False):  # else another thread is just asking
            try:
                if not self._ended.is_set():
                    self._test()
            finally:
                self._lock.release()
        return self._ended.is_set()

    @property
    def device_done(self) -> bool:
        """Whether it has ended: what is sent and received is on the host."""
        return self.done

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the end.

        Raises
        ------
        gradientflow.errors.CommunicationTimeoutError
            If the timeout passed first; the message can be waited for again.
        gradientflow.errors.MismatchError
            If a message of another length came.
        gradientflow.errors.MPIError
            If MPI failed.
        """
        if not self.came_by(None if timeout is None else time.monotonic() + timeout):
            message = f"{self._what} was not done within {timeout:g} s; it goes on"
            raise CommunicationTimeoutError(message)
        if self._error is not None:
            raise self._error

    def came_by(self, deadline: float | None) -> bool:
        """Wait for the end, well or badly, until a time of the monotonic clock; tell whether it came."""
        for _ in range(_POLLS):
            if self.done:
                return True
            os.sched_yield()
        begin = time.monotonic()
        while not self.done:
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                return False
            nap = min(max((now - begin) / 8, _SHORTEST_NAP), _LONGEST_NAP)
            self._ended.wait(nap if deadline is None else min(nap, deadline - now))
        return True

    def cancel(self) -> None:
        """Give up a receive: unless its message is already arriving, it ends."""
        with self._lock:
            if not self._ended.is_set() and self._expected is not None:
                self._request.Cancel()

    def _test(self) -> None:
        status = MPI.Status()
        try:
            if not self._request.Test(status):
                return
        except MPI.Exception as error:
            truncated = error.Get_error_class() == MPI.ERR_TRUNCATE
            if truncated:
                self._end(MismatchError(f"{self._what} of {self._expected} bytes met a longer message"))
            else:
                self._end(MPIError(f"{self._what} failed: {error}"))
            return
        if status.Is_cancelled():
            self._end(ClosedError(f"{self._what} was given up: the process group has been destroyed"))
            return
        if self._expected is not None:
            self.source = status.Get_source()
            arrived = status.Get_count(MPI.BYTE) if self._expected < _LARGE else self._expected
            if arrived != self._expected:
                message = f"{self._what} of {self._expected} bytes met a message of {arrived} from rank {self.source}"
                self._end(MismatchError(message))
                return
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        self._error = error
        self._tensor = None
        self._ended.set()


@untraced
class MessageWork(Work):
    """A message between two ranks as a work.

    Its future is completed by the thread of the messages: works of a group are waited for one after the other, and a
    message may come at any time.
    """

    def __init__(
        self,
        tensor: torch.Tensor,
        mailbox: Mailbox,
        message: Message,
        finish: Sequence[Callable[[], object]],
        limit: float,
        stream: devices.Stream = None,
    ) -> None:
        super().__init__(mailbox.common, [tensor], [message], finish, limit, stream)
        self._message = message
        self._mailbox = mailbox

    def source_rank(self) -> int:
        """Return the rank in the group from which the message came."""
        return self._message.source

    _source_rank = source_rank

    def get_future(self) -> Any:
        """Return a future whose value is a list of the tensor."""
        self._claimed = True
        with self._lock:
            known = self._future
            if known is None:
                self._future = torch.futures.Future(devices=devices.for_future(self._device))
        if known is None:
            self._mailbox.watch(self)
        return self._future

    def settle(self) -> None:
        """Complete the future as the message has ended, or as given up."""
        with devices.within(self._stream):
            try:
                self.wait(_AT_ONCE)
                self._future.set_result(self._outputs)
            except Exception as error:
                self._future.set_exception(error)


class Mailbox:
    """The messages of one process group.

    Every message is under way from the moment it is made, whatever the ranks do meanwhile: a thread asks MPI about
    those that are not done, in naps that become longer while nothing happens.

    Parameters
    ----------
    mpi : mpi4py.MPI.Intracomm
        The ranks; for these messages alone.
    name : str
        Of the thread.
    common : Common
        Of the process group.
    """

    def __init__(self, mpi: MPI.Intracomm, name: str, common: Common) -> None:
        self.common = common
        highest = mpi.Get_attr(MPI.TAG_UB)
        self._tags = int(highest) + 1 - _RESERVED_TAGS if isinstance(highest, int) else 32768 - _RESERVED_TAGS
        self.barrier_tag = self._tags
        self.alltoall_tags = (self._tags + 1, self._tags + 2)  # of callbacks, and of everybody else
        self._mpi = mpi
        self._name = name
        self._changed = threading.Condition()
        self._pending: list[Message] = []
        self._works: list[MessageWork] = []
        self._thread: threading.Thread | None = None
        self._closed = False

    def check_tag(self, tag: int) -> None:
        """Raise unless a user's message may have the tag."""
        if not 0 <= tag < self._tags:
            message = f"tag {tag} is not between 0 and {self._tags - 1}"
            raise ArgumentError(message)

    def send(self, tensor: torch.Tensor, rank: int, tag: int) -> Message:
        """Start to send a plain tensor."""
        self._check_open()
        request = _post(self._mpi.Isend, tensor, rank, tag)
        return self._started(Message(request, tensor, f"the send to rank {rank} with tag {tag}", None))

    def receive(self, tensor: torch.Tensor, rank: int | None, tag: int) -> Message:
        """Start to receive into a plain tensor, from a rank or from any."""
        self._check_open()
        request = _post(self._mpi.Irecv, tensor, MPI.ANY_SOURCE if rank is None else rank, tag)
        source = "any rank" if rank is None else f"rank {rank}"
        return self._started(Message(request, tensor, f"the receive from {source} with tag {tag}", tensor.nbytes))

    def watch(self, work: MessageWork) -> None:
        """Complete the work's future when its message is done."""
        with self._changed:
            self._works.append(work)
            self._wake()

    def close(self, *, orderly: bool) -> None:
        """Give up receives; if `orderly`, wait a moment for sends, and free the communicator."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        for message in self._pending:
            message.cancel()
        left = [message for message in self._pending if not message.done]
        deadline = time.monotonic() + _LEAVE_SECONDS
        while orderly and left and time.monotonic() < deadline:
            time.sleep(_LONGEST_NAP)
            left = [message for message in left if not message.done]
        _kept.extend(left)
        if orderly and not left:
            self._mpi.Free()
        for work in self._works:
            work.settle()
        self._pending, self._works = [], []

    def _check_open(self) -> None:
        if self._closed:
            message = "the process group has been destroyed"
            raise ClosedError(message)

    def _started(self, message: Message) -> Message:
        if not message.done:
            with self._changed:
                self._pending.append(message)
                self._wake()
        return message

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._carry, name=self._name, daemon=True)
            self._thread.start()
        self._changed.notify()

    def _carry(self) -> None:
        nap = _SHORTEST_NAP
        while True:
            with self._changed:
                while not (self._pending or self._works or self._closed):
                    self._changed.wait()
                if self._closed:
                    return
                messages, works = tuple(self._pending), tuple(self._works)
            done = {message for message in messages if message.done}
            settled = {work for work in works if work.is_completed()}
            for work in settled:
                work.settle()
            if done or settled:
                with self._changed:
                    self._pending = [message for message in self._pending if message not in done]
                    self._works = [work for work in self._works if work not in settled]
                nap = _SHORTEST_NAP
            else:
                time.sleep(nap)
                nap = min(nap * 1.25, _LONGEST_NAP)
            del messages, works, done, settled


def _post(start: Callable[..., MPI.Request], tensor: torch.Tensor, rank: int, tag: int) -> MPI.Request:
    memory = MPI.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes)
    if tensor.nbytes < _LARGE:
        return start([memory, MPI.BYTE], rank, tag)
    blocks, rest = divmod(tensor.nbytes, _BLOCK)
    block = MPI.BYTE.Create_contiguous(_BLOCK)
    whole = MPI.Datatype.Create_struct([blocks, rest], [0, blocks * _BLOCK], [block, MPI.BYTE]).Commit()
    try:
        return start([memory, 1, whole], rank, tag)
    finally:
        whole.Free()  # once MPI is done with it
        block.Free()
