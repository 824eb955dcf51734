"""Results of calls on a process group: collective calls and messages as works."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist

from gradientflow.errors import CommunicationTimeoutError
from gradientflow.mailbox import MessageRequest
from gradientflow.torch import devices

from .context import WorkContext
from .futures import Future, untraced
from .options import seconds

_AT_ONCE = timedelta(microseconds=1)


class Pending(Protocol):
    """The interface of calls under way: handles of the core, and requests of a mailbox."""

    @property
    def done(self) -> bool:
        """True if the call has ended, well or badly."""

    @property
    def device_done(self) -> bool:
        """True if the work on the device of its tensors, if any, is also done."""

    def wait(self, timeout: float | None = None) -> object:
        """Wait for the end; raise the error of the call, or `CommunicationTimeoutError` if the timeout passes first."""


@untraced
class Work(dist.Work):
    """A call of a process group, under way or done.

    On tensors of a CUDA device, waiting makes the current stream wait: work enqueued from then on sees the results. The
    host continues as soon as the results are certain to come. The work's own operations run in the stream that was
    current when the call was made. Its temporary tensors were allocated in that stream, so that PyTorch does not reuse
    their memory too early.

    Parameters
    ----------
    context : WorkContext
        Shared by the works of the process group.
    outputs : list of torch.Tensor
        The tensors for the results; the value of the future.
    calls : sequence of Pending
        The calls under way.
    finish : sequence of callables
        Functions that write the results to `outputs` once the calls are done.
    limit : float, optional
        Seconds after which a wait ends with an error; by default the limit of the calls.
    stream : torch.cuda.Stream, optional
        The stream that was current when the call was made; only for tensors on a CUDA device.
    """

    # Values of a finished call on the host, for which none of these need be set.
    _claimed = False  # True once a caller has waited for it
    _ended = True
    _calls: Sequence[Pending] = ()
    _finish: Sequence[Callable[[], object]] = ()
    _limit: float | None = None
    _stream: devices.Stream = None
    _device = devices.HOST
    _end: torch.cuda.Event | None = None  # event after the results, if these come later than the end of the calls
    _error: Exception | None = None
    _lock = threading.RLock()  # reentrant: a signal handler or a garbage collection may ask for the future meanwhile

    def __init__(
        self,
        context: WorkContext,
        outputs: list[torch.Tensor],
        calls: Sequence[Pending] = (),
        finish: Sequence[Callable[[], object]] = (),
        limit: float | None = None,
        stream: devices.Stream = None,
    ) -> None:
        super().__init__()
        self._context = context
        self._outputs = outputs
        if calls:
            self._lock = threading.RLock()
            self._ended, self._calls, self._finish, self._limit = False, calls, finish, limit
        if stream is not None:
            self._stream, self._device = stream, stream.device
            self._end = None if calls else devices.mark(stream)

    def __del__(self) -> None:
        """Keep the work alive for a while if C++ may still wait for it."""
        if not self._claimed:
            self._claimed = True
            self._context.unclaimed.keep(self, sum(each.numel() * each.element_size() for each in self._outputs))

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the call is done; on a CUDA device, make the current stream wait.

        Parameters
        ----------
        timeout : datetime.timedelta, optional
            The longest time to wait; by default the call's own limit.

        Raises
        ------
        gradientflow.errors.CommunicationTimeoutError
            If the timeout passes first; the call continues and can be waited for again.
        gradientflow.errors.GradientFlowError
            The error of the call.
        """
        self._claimed = True
        ended = self._ended
        if not ended:
            with devices.within(self._stream if self._finish else None):
                self._await(seconds(timeout, self._limit))
        if self._error is not None:
            raise self._error
        if self._end is not None:
            devices.wait_for(self._end, self._device)
        elif ended and self._stream is not None:
            for call in self._calls:
                call.wait()  # it has ended, but the current stream may differ from that of the first wait
        return True

    def synchronize(self) -> None:
        """Wait until the call is done, as `wait` does."""
        self.wait()

    def is_completed(self) -> bool:
        """Tell if the call has ended, well or badly; on a CUDA device, if the results are there."""
        if not self._ended and all(call.done for call in self._calls):
            with devices.within(self._stream):
                self._await(None)
        if self._ended and self._error is None and self._stream is not None:
            return self._end.query() if self._end is not None else all(call.device_done for call in self._calls)
        return self._ended

    def is_success(self) -> bool:
        """Tell if the call has ended well."""
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        """Return the error that ended the call, if any."""
        return self._error if self.is_completed() else None

    def result(self) -> list[torch.Tensor]:
        """Return the tensors with the results."""
        return self._outputs

    def _await(self, limit: float | None) -> None:
        """Wait for the calls and record how they ended; raise only if the limit passes first."""
        error = self._wait_for_calls(limit)
        if error is not None:
            error, original = self._context.explained(error), error
            error.__cause__ = original.__cause__
            if isinstance(error, CommunicationTimeoutError) and not all(call.done for call in self._calls):
                raise error
        with self._lock:
            if self._ended:
                return
            if error is None:
                try:
                    for store in self._finish:
                        store()
                    if self._finish and self._stream is not None:
                        self._end = devices.mark(self._stream)
                except Exception as reason:
                    error = reason
            self._finish = ()
            self._error = error
            self._ended = True

    def _wait_for_calls(self, limit: float | None) -> Exception | None:
        """Return the error of the first call that fails, or the error for a passed limit."""
        begin, left = time.monotonic(), limit
        try:
            for call in self._calls:
                call.wait(left)
                if limit is not None:
                    left = max(0.0, begin + limit - time.monotonic())
        except Exception as error:
            return error
        return None


@untraced
class CollectiveWork(Work):
    """A collective call as a work; its future is completed in the group's `FutureThread`."""

    _future: Future[list[torch.Tensor]] | None = None  # made on demand

    def get_future(self) -> Future[list[torch.Tensor]]:
        """Return a future whose value is the list of result tensors."""
        self._claimed = True
        with self._lock:
            known, future = self._future, self._future or Future(self._context.thread, self._device)
            self._future = future
        if known is None:
            has_ended = self.is_completed()
            if torch._C._current_graph_task_id() != -1 and not (has_ended and self._error is None):
                future.raise_after_backward(self._outputs)
            if has_ended:
                future.complete(self._value)
            else:
                self._context.thread.run(lambda: future.complete(self._value), self._device)
        return future

    def _value(self) -> list[torch.Tensor]:
        self.wait()
        return self._outputs


class EndedWork(CollectiveWork):
    """A finished call on the host; the core has made it and sets `_context` and `_outputs`.

    torch.compile can trace its `wait`, because the class is not `untraced`, which would double its time.
    """

    __init__ = dist.Work.__init__  # takes a third of the time

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return at once."""
        self._claimed = True
        return True


@untraced
class MessageWork(Work):
    """A message between two ranks as a work.

    Its future is completed in the thread of the mailbox: a message may come at any time, and the group's `FutureThread`
    waits for works in order.
    """

    _future: torch.futures.Future[object] | None = None  # made on demand

    def __init__(
        self,
        context: WorkContext,
        tensor: torch.Tensor,
        request: MessageRequest,
        finish: Sequence[Callable[[], object]],
        limit: float,
        stream: devices.Stream = None,
    ) -> None:
        super().__init__(context, [tensor], [request], finish, limit, stream)
        self._request = request

    def source_rank(self) -> int:
        """Return the rank in the group from which the message came."""
        return self._request.source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[object]:
        """Return a future whose value is a list with the tensor."""
        self._claimed = True
        with self._lock:
            known, future = self._future, self._future or torch.futures.Future(devices=devices.for_future(self._device))
            self._future = future
        if known is None:
            self._request.when_ended(self._complete_future)
        return future

    def _complete_future(self) -> None:
        """Complete the future with the result or the error of the message."""
        assert self._future is not None
        with devices.within(self._stream):
            try:
                self.wait(_AT_ONCE)
                self._future.set_result(self._outputs)
            except Exception as error:
                self._future.set_exception(error)
