"""What a call on a process group returns: a work, its future, and the thread in which futures are completed."""

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
from gradientflow.mailbox import Letter

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
    """A call under way: a handle of the core, or a letter of a mailbox."""

    @property
    def done(self) -> bool:
        """Whether it has ended, well or badly."""

    @property
    def device_done(self) -> bool:
        """Whether the device of its tensors, if they are on one, is done with it, too."""

    def wait(self, timeout: float | None = None) -> object:
        """Wait for the end; raise what it ended with, or `CommunicationTimeoutError` if the timeout passes first."""


class Unclaimed:
    """Works that Python has dropped although nobody has waited for them.

    PyTorch's C++ may have one, and may wait for it later: DistributedDataParallel does so with a call that says how
    many ranks are left in a `join`. Without its Python object such a work would be one that never ends, and nothing
    tells whether C++ has it. So the latest ones are kept, as far as they are small: most are those of programs that do
    not wait.
    """

    def __init__(self) -> None:
        self._works: deque[tuple[Work, int]] = deque()
        self._bytes = 0
        self._closed = False

    def keep(self, work: Work, nbytes: int) -> None:
        """Keep a work, with so many bytes of results, and let go those that are too many."""
        if self._closed:
            return
        self._works.append((work, nbytes))
        self._bytes += nbytes
        while len(self._works) > _MOST_KEPT or self._bytes > _MOST_KEPT_BYTES:
            self._bytes -= self._works.popleft()[1]

    def close(self) -> None:
        """Let all go, and keep none from now on: the group has ended, and with it the calls."""
        self._closed = True
        self._works.clear()
        self._bytes = 0


class Common:
    """What all works of a process group share: the works that nobody has waited for, and the words for errors.

    Parameters
    ----------
    world_ranks : sequence of int
        The rank in the world of each rank of the group.
    own_timeout : bool
        Whether the group's timeout is one that PyTorch gave, not GRADIENTFLOW_TIMEOUT.
    """

    def __init__(self, world_ranks: Sequence[int], own_timeout: bool) -> None:
        self.world_ranks = list(world_ranks)
        self.unclaimed = Unclaimed()
        self._same = self.world_ranks == list(range(len(self.world_ranks)))
        self._own_timeout = own_timeout

    def explained(self, error: Exception) -> Exception:
        """Return an error of a communicator in the words of process groups.

        Ranks are those of the world. A timeout is told as PyTorch does, with spaces around "Timed out": its own tests
        and other programs look for that.
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
        """Return "rank 1" or "ranks 0, 2" with the ranks of the world for those of the group."""
        return re.sub(r"\d+", lambda number: str(self._world_rank(int(number[0]))), found[0])

    def _world_rank(self, rank: int) -> int:
        return self.world_ranks[rank] if rank < len(self.world_ranks) else rank


class FutureThread:
    """A thread that waits for works and runs the callbacks of their futures, one after the other.

    A callback may itself make collective calls and wait for them. All ranks have to make them in the same order, so
    callbacks run in the order in which they were registered, never in the thread that registers them. The thread
    starts with the first task, and sleeps while there is nothing to do.

    What it puts on a device is in a stream of its own: the default stream, in which a thread begins, may have the work
    that shall go on while the thread's waits.
    """

    def __init__(self, name: str, common: Common) -> None:
        self.common = common
        self._name = name
        self._streams: dict[torch.device, devices.Stream] = {}
        self._tasks: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return threading.current_thread() is self._thread

    def run(self, task: Callable[[], object], device: torch.device = devices.HOST) -> None:
        """Run a task, on tensors of a device, after all those before it; at once if the caller is one of them."""
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
        """End the thread, after the tasks that it has; the calls they wait for must have ended or be about to."""
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
            del task  # or its tensors would live until the next one comes


@untraced
class Future(_Future):  # type: ignore[misc]
    """A future whose callbacks run in the thread of the process group.

    Its value may have tensors of one device. Who waits for it has the current stream put behind them; a callback may
    use them in the stream in which it runs.
    """

    def __init__(self, thread: FutureThread, device: torch.device = devices.HOST) -> None:
        super().__init__(devices=devices.for_future(device))
        self._thread = thread
        self._device = device

    def then(self, callback: Callable[[Future], Any]) -> Future:
        """Return a future of what the callback returns, which gets this one once it is completed."""
        result = Future(self._thread, self._device)
        self._thread.run(lambda: result.complete(lambda: callback(self)), self._device)
        return result

    def add_done_callback(self, callback: Callable[[Future], object]) -> None:
        """Call the callback with this future once it is completed."""
        self.then(callback)

    def complete(self, value: Callable[[], Any]) -> None:
        """Take over what a function returns or raises."""
        try:
            self.set_result(value())
        except Exception as error:
            self._set_unwrap_func(_Failure.raise_error)
            failure = _Failure(error)
            self.set_result(failure)
            failure.is_set = True


class _Failure:
    """An error as the value of a future.

    To Python, the future raises it. C++, in which DistributedDataParallel is written, sees the value, and pickles it
    to find the tensors in it: then it is raised as well. Not while it is being set: a future with devices looks for
    tensors then, too, in the same thread.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.is_set = False
        self._thread = threading.get_ident()

    def raise_error(self) -> NoReturn:
        raise self.error

    def __repr__(self) -> str:  # is what C++ says where it wanted a tensor
        return f"the error {type(self.error).__name__}: {self.error}"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.is_set or threading.get_ident() != self._thread:
            raise self.error.with_traceback(None)
        return str, ()


@untraced
class Work(dist.Work):  # type: ignore[misc]
    """Something that a process group does, under way or done.

    On tensors of a CUDA device a wait is one of the current stream: what is put into it from then on sees the results,
    and the host goes on once it is known that they will come. What the work itself has to do there, it does in the
    stream that was the current one when the call was made, where its own tensors were made, too: so that PyTorch does
    not give their memory to others too early.

    Parameters
    ----------
    common : Common
        Of the process group.
    outputs : list of torch.Tensor
        Where the results go; the value of the future.
    calls : sequence of Call
        What is under way.
    finish : sequence of callables
        They write results to where they belong, once the calls are done.
    limit : float, optional
        Seconds after which a wait ends with an error; by default the calls set a limit themselves.
    stream : torch.cuda.Stream, optional
        Of tensors on a CUDA device: the current stream of the call.
    """

    def __init__(
        self,
        common: Common,
        outputs: list[torch.Tensor],
        calls: Sequence[Call] = (),
        finish: Sequence[Callable[[], object]] = (),
        limit: float | None = None,
        stream: devices.Stream = None,
    ) -> None:
        super().__init__()
        self._common = common
        self._claimed = False  # somebody has waited for it
        self._stream = stream
        self._device = devices.HOST if stream is None else stream.device
        # On a device: what happens once the results are there, if this is later than the end of the calls.
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
        """Stay for a while if C++ may have this and wait for it."""
        if not self._claimed:
            self._claimed = True
            self._common.unclaimed.keep(self, sum(each.numel() * each.element_size() for each in self._outputs))

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the call is done; on a CUDA device, have the current stream wait.

        Parameters
        ----------
        timeout : datetime.timedelta, optional
            How long to wait at most; by default as long as the call itself may take.

        Raises
        ------
        gradientflow.errors.CommunicationTimeoutError
            If the timeout passed first; the call goes on and can be waited for again.
        gradientflow.errors.GradientFlowError
            What the call ended with.
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
                call.wait()  # which has ended; the current stream may be another one than that of the first wait
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
        """Wait for the calls and take over how they ended; raise only if the limit passes first."""
        error = self._wait_for_calls(limit)
        if error is not None:
            error, original = self._common.explained(error), error
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
        """Return the error that the first failing call ends with, or that the limit has passed."""
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
    """A collective call as a work; its future is completed in the group's thread for that."""

    def __init__(
        self,
        thread: FutureThread,
        outputs: list[torch.Tensor],
        calls: Sequence[Call] = (),
        finish: Sequence[Callable[[], object]] = (),
        limit: float | None = None,
        stream: devices.Stream = None,
    ) -> None:
        super().__init__(thread.common, outputs, calls, finish, limit, stream)
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

    Its future is completed by the thread of the mailbox: works of a group are waited for one after the other, and a
    message may come at any time.
    """

    def __init__(
        self,
        common: Common,
        tensor: torch.Tensor,
        letter: Letter,
        finish: Sequence[Callable[[], object]],
        limit: float,
        stream: devices.Stream = None,
    ) -> None:
        super().__init__(common, [tensor], [letter], finish, limit, stream)
        self._letter = letter

    def source_rank(self) -> int:
        """Return the rank in the group from which the message came."""
        return self._letter.source

    _source_rank = source_rank

    def get_future(self) -> Any:
        """Return a future whose value is a list of the tensor."""
        self._claimed = True
        with self._lock:
            known, future = self._future, self._future or _Future(devices=devices.for_future(self._device))
            self._future = future
        if known is None:
            self._letter.when_ended(self._settle)
        return future

    def _settle(self) -> None:
        """Complete the future as the message has ended."""
        with devices.within(self._stream):
            try:
                self.wait(_AT_ONCE)
                self._future.set_result(self._outputs)
            except Exception as error:
                self._future.set_exception(error)


def seconds(timeout: timedelta | None, default: float | None = None) -> float | None:
    """Return a timeout in seconds; PyTorch's unset ones, 0 and less, are the default."""
    given = 0.0 if timeout is None else timeout.total_seconds()
    return given if given > 0 else default
