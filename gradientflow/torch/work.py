"""The results of calls on a process group: works, their futures, and the thread that completes futures."""

from __future__ import annotations

import inspect
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from typing import Any, NoReturn, Protocol, TypeVar

import torch
import torch.distributed

from gradientflow.errors import CommunicationTimeoutError, GradientFlowError
from gradientflow.mailbox import MessageRequest

from . import devices

dist: Any = torch.distributed  # its annotations leave out what it takes from C++
_Future: Any = torch.futures.Future

T = TypeVar("T")

_RANKS = re.compile(r"\branks? \d+(?:(?:, | and )\d+\b)*")
_AT_ONCE = timedelta(microseconds=1)
_MOST_KEPT = 64  # works that nobody has waited for
_MOST_KEPT_BYTES = 1 << 20  # of their results


def untraced(cls: type[T]) -> type[T]:
    """Keep torch.compile out of the public methods of a class: there is nothing to compile, and it fails on them."""
    for name, method in vars(cls).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(cls, name, torch.compiler.disable(method))  # type: ignore[no-untyped-call]
    return cls


class Call(Protocol):
    """The interface of calls under way: handles of the core, and requests of a mailbox."""

    @property
    def done(self) -> bool:
        """Whether it has ended, well or badly."""

    @property
    def device_done(self) -> bool:
        """Whether the work on the device of its tensors, if any, is done, too."""

    def wait(self, timeout: float | None = None) -> object:
        """Wait for the end; raise the error of the call, or `CommunicationTimeoutError` if the timeout passes first."""


class Unclaimed:
    """Works without references in Python for which nobody has waited.

    PyTorch's C++ may still hold one, and wait for it later: DistributedDataParallel does so with the call that counts
    the ranks left in a `join`. Without its Python object such a work would never end, and Python cannot tell whether
    C++ holds it. So the latest works are kept if they are small. Most come from programs that do not wait.
    """

    def __init__(self) -> None:
        self._works: deque[tuple[Work, int]] = deque()
        self._bytes = 0
        self._closed = False

    def keep(self, work: Work, nbytes: int) -> None:
        """Keep a work with `nbytes` of results, and release the oldest ones beyond the limits."""
        if self._closed:
            return
        self._works.append((work, nbytes))
        self._bytes += nbytes
        while len(self._works) > _MOST_KEPT or self._bytes > _MOST_KEPT_BYTES:
            self._bytes -= self._works.popleft()[1]

    def close(self) -> None:
        """Release all, and keep none from now on: the group has ended, and its calls with it."""
        self._closed = True
        self._works.clear()
        self._bytes = 0


class WorkContext:
    """Shared by all works of a process group: the works for which nobody has waited, and the wording of errors.

    Parameters
    ----------
    world_ranks : sequence of int
        The rank in the world of each rank of the group.
    own_timeout : bool
        Whether PyTorch gave the group its timeout, rather than GRADIENTFLOW_TIMEOUT.
    """

    def __init__(self, world_ranks: Sequence[int], own_timeout: bool) -> None:
        self.world_ranks = list(world_ranks)
        self.unclaimed = Unclaimed()
        self._same = self.world_ranks == list(range(len(self.world_ranks)))
        self._own_timeout = own_timeout

    def explained(self, error: Exception) -> Exception:
        """Return an error of a communicator, worded for a process group.

        Ranks are given as those of the world. A timeout is worded like PyTorch's, with spaces around "Timed out", which
        its own tests and other programs look for.
        """
        if not isinstance(error, GradientFlowError):
            return error
        text = str(error)
        if not self._same:
            text = _RANKS.sub(self._in_world, text)
        if isinstance(error, CommunicationTimeoutError):
            if self._own_timeout:
                text = text.replace("(GRADIENTFLOW_TIMEOUT)", "(timeout of the process group)")
            text = f"process group: Timed out waiting: {text}"
        return error if text == str(error) else type(error)(text)

    def _in_world(self, found: re.Match[str]) -> str:
        """Return "rank 1" or "ranks 0, 2" with ranks of the world in place of those of the group."""
        return re.sub(r"\d+", lambda number: str(self._world_rank(int(number[0]))), found[0])

    def _world_rank(self, rank: int) -> int:
        return self.world_ranks[rank] if rank < len(self.world_ranks) else rank


class FutureThread:
    """A thread that waits for works and runs the callbacks of their futures, one after the other.

    A callback may itself make collective calls and wait for them. All ranks have to make them in the same order, so
    callbacks run in the order in which they were registered, never in the thread that registers them. The thread
    starts with the first task, and sleeps while there is nothing to do.

    Its work on a device goes to a stream of its own. In the default stream, with which a thread begins, it could hold
    up other work while it waits.
    """

    def __init__(self, name: str, context: WorkContext) -> None:
        self.context = context
        self._name = name
        self._streams: dict[torch.device, devices.Stream] = {}
        self._tasks: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def is_current(self) -> bool:
        """Whether this thread is the caller's."""
        return threading.current_thread() is self._thread

    def run(self, task: Callable[[], object], device: torch.device = devices.HOST) -> None:
        """Run a task on tensors of a device, after all earlier tasks; if a task is the caller, at once."""
        if self.is_current:
            task()
            return
        if device != devices.HOST:
            task = partial(self._run_on, device, task)
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                    self._thread.start()
        self._tasks.put(task)

    def close(self) -> None:
        """End the thread after its queued tasks; the calls they wait for must have ended or be about to."""
        with self._lock:
            thread = self._thread
        if thread is not None and not self.is_current:
            self._tasks.put(None)
            thread.join()
            self._thread = None

    def _run_on(self, device: torch.device, task: Callable[[], object]) -> None:
        if device not in self._streams:
            self._streams[device] = devices.new_stream(device)
        with devices.within(self._streams[device]):
            task()

    def _serve(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
            del task  # its tensors would otherwise live until the next task


@untraced
class Future(_Future):  # type: ignore[misc]
    """A future whose callbacks run in the thread of the process group.

    Its value may have tensors of one device. Waiting makes the current stream wait for them; a callback may use them in
    the stream in which it runs.
    """

    def __init__(self, thread: FutureThread, device: torch.device = devices.HOST) -> None:
        super().__init__(devices=devices.for_future(device))
        self._thread = thread
        self._device = device

    def then(self, callback: Callable[[Future], Any]) -> Future:
        """Return a future of the callback's result. The callback gets this future once it is completed."""
        result = Future(self._thread, self._device)
        self._thread.run(lambda: result.complete(lambda: callback(self)), self._device)
        return result

    def add_done_callback(self, callback: Callable[[Future], object]) -> None:
        """Call the callback with this future once it is completed."""
        self.then(callback)

    def complete(self, value: Callable[[], Any]) -> None:
        """Complete the future with the result or the exception of a function."""
        try:
            self.set_result(value())
        except Exception as error:
            self._set_unwrap_func(_Failure.raise_error)
            failure = _Failure(error)
            self.set_result(failure)
            failure.is_set = True


class _Failure:
    """An error as the value of a future.

    In Python the future raises it. C++, such as DistributedDataParallel's, gets the value, and pickles it to find
    tensors in it: pickling then raises the error. It does not while the value is being set, in the same thread, since a
    future with devices looks for tensors then, too.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.is_set = False
        self._thread = threading.get_ident()

    def raise_error(self) -> NoReturn:
        raise self.error

    def __repr__(self) -> str:  # in the message of C++ that expected a tensor
        return f"the error {type(self.error).__name__}: {self.error}"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.is_set or threading.get_ident() != self._thread:
            raise self.error.with_traceback(None)
        return str, ()


@untraced
class Work(dist.Work):  # type: ignore[misc]
    """A call of a process group, under way or done.

    On tensors of a CUDA device, waiting makes the current stream wait: work enqueued from then on sees the results. The
    host goes on as soon as the results are certain to come. The work's own operations run in the stream that was
    current when the call was made. Its temporary tensors were allocated in that stream, so that PyTorch does not reuse
    their memory too early.

    Parameters
    ----------
    context : WorkContext
        Shared by the works of the process group.
    outputs : list of torch.Tensor
        The tensors for the results; the value of the future.
    calls : sequence of Call
        The calls under way.
    finish : sequence of callables
        They write the results to `outputs` once the calls are done.
    limit : float, optional
        Seconds after which a wait ends with an error; by default the calls have a limit of their own.
    stream : torch.cuda.Stream, optional
        For tensors on a CUDA device, the stream that was current when the call was made.
    """

    def __init__(
        self,
        context: WorkContext,
        outputs: list[torch.Tensor],
        calls: Sequence[Call] = (),
        finish: Sequence[Callable[[], object]] = (),
        limit: float | None = None,
        stream: devices.Stream = None,
    ) -> None:
        super().__init__()
        self._context = context
        self._claimed = False  # somebody has waited for it
        self._stream = stream
        self._device = devices.HOST if stream is None else stream.device
        # On a device: the event of the results, if they come later than the end of the calls.
        self._end: devices.Event = None if stream is None or calls else devices.mark(stream)
        self._outputs = outputs
        self._calls = calls
        self._finish = finish
        self._limit = limit
        self._lock = threading.Lock()
        self._ended = not calls
        self._error: Exception | None = None
        self._future: Any = None  # made when it is asked for

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
            The longest time to wait; by default that of the call itself.

        Raises
        ------
        gradientflow.errors.CommunicationTimeoutError
            If the timeout passes first; the call goes on and can be waited for again.
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
                call.wait()  # it has ended, but this may be another current stream than at the first wait
        return True

    def synchronize(self) -> None:
        """Wait until the call is done, as `wait` does."""
        self.wait()

    def is_completed(self) -> bool:
        """Tell whether the call has ended, well or badly; on a CUDA device, whether the results are there."""
        if not self._ended and all(call.done for call in self._calls):
            with devices.within(self._stream):
                self._await(None)
        if self._ended and self._error is None and self._stream is not None:
            return self._end.query() if self._end is not None else all(call.device_done for call in self._calls)
        return self._ended

    def is_success(self) -> bool:
        """Tell whether the call has ended well."""
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        """Return the error that the call has ended with, if any."""
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
        """Return the error of the first call that fails, or the error that the limit has passed."""
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

    def __init__(
        self,
        thread: FutureThread,
        outputs: list[torch.Tensor],
        calls: Sequence[Call] = (),
        finish: Sequence[Callable[[], object]] = (),
        limit: float | None = None,
        stream: devices.Stream = None,
    ) -> None:
        super().__init__(thread.context, outputs, calls, finish, limit, stream)
        self._thread = thread

    def get_future(self) -> Future:
        """Return a future whose value is the list of result tensors."""
        self._claimed = True
        with self._lock:
            known, future = self._future, self._future or Future(self._thread, self._device)
            self._future = future
        if known is None:
            if self._ended:
                future.complete(self._value)
            else:
                self._thread.run(lambda: future.complete(self._value), self._device)
        return future

    def _value(self) -> list[torch.Tensor]:
        self.wait()
        return self._outputs


@untraced
class MessageWork(Work):
    """A message between two ranks as a work.

    Its future is completed in the thread of the mailbox. The group's `FutureThread` waits for one work after the other,
    but a message may come at any time.
    """

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

    def get_future(self) -> Any:
        """Return a future whose value is a list with the tensor."""
        self._claimed = True
        with self._lock:
            known, future = self._future, self._future or _Future(devices=devices.for_future(self._device))
            self._future = future
        if known is None:
            self._request.when_ended(self._settle)
        return future

    def _settle(self) -> None:
        """Complete the future with the result or the error of the message."""
        with devices.within(self._stream):
            try:
                self.wait(_AT_ONCE)
                self._future.set_result(self._outputs)
            except Exception as error:
                self._future.set_exception(error)


def seconds(timeout: timedelta | None, default: float | None = None) -> float | None:
    """Return a timeout in seconds; for values of 0 and less, which PyTorch has for unset, the default."""
    given = 0.0 if timeout is None else timeout.total_seconds()
    return given if given > 0 else default
