"""The futures of works, and the thread that completes them."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, NoReturn, TypeVar

import torch

from gradientflow._location import core
from gradientflow.torch import devices

S = TypeVar("S")
T = TypeVar("T")


def untraced(cls: type[T]) -> type[T]:
    """Keep torch.compile out of the public methods of a class: there is nothing to compile, and it fails on them."""
    for name, method in vars(cls).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(cls, name, torch.compiler.disable(method))
    return cls


class FutureThread:
    """A thread that waits for works and runs the callbacks of their futures, one at a time.

    A callback may itself make collective calls and wait for them. All ranks have to make them in the same order, so
    callbacks run in the order in which they were registered, never in the thread that registers them. The thread
    starts with the first task, and sleeps while there is nothing to do.

    It has a separate stream for its work on a device. In the default stream, in which a thread starts, its waits could
    delay other work.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._streams: dict[torch.device, devices.Stream] = {}
        self._tasks: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def is_current(self) -> bool:
        """True if the caller runs in this thread."""
        return self._thread is not None and threading.current_thread() is self._thread

    def run(self, task: Callable[[], object], device: torch.device = devices.HOST) -> None:
        """Run a task on tensors of a device, after all earlier tasks; at once if called from a task."""
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
        """End the thread after its queued tasks. The calls they wait for must have ended or be about to end."""
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
        core.begin_callbacks()
        while (task := self._tasks.get()) is not None:
            task()
            del task  # else its tensors would live until the next task


@untraced
class Future(torch.futures.Future[T]):
    """A future whose callbacks run in the thread of the process group.

    Its value may have tensors of one device. Waiting makes the current stream wait for them; a callback may use them in
    the stream in which it runs.
    """

    def __init__(self, thread: FutureThread, device: torch.device = devices.HOST) -> None:
        super().__init__(devices=devices.for_future(device))
        self._thread = thread
        self._device = device
        self._stand_in: object = None
        self._failure: _Failure | None = None

    def then(self, callback: Callable[[Future[T]], S]) -> Future[S]:
        """Return a future of the callback's result. The callback gets this future once it is completed."""
        result: Future[S] = Future(self._thread, self._device)
        self._thread.run(lambda: result.complete(lambda: callback(self)), self._device)
        return result

    def add_done_callback(self, callback: Callable[[Future[T]], object]) -> None:
        """Call the callback with this future once it is completed."""
        self.then(callback)

    def complete(self, value: Callable[[], T]) -> None:
        """Complete the future with the result or the exception of a function."""
        try:
            self.set_result(value())
        except Exception as error:
            self._failure = failure = _Failure(error)
            self._set_unwrap_func(lambda _: failure.raise_error())
            in_place: Any = failure if self._stand_in is None else self._stand_in
            self.set_result(in_place)
            failure.is_set = True

    def raise_after_backward(self, stand_in: object) -> None:
        """Let a backward pass under way raise an error of this future at its end.

        C++, such as DistributedDataParallel's at the end of the pass, would turn the error into a RuntimeError. It gets
        `stand_in` for the missing value instead.
        """
        self._stand_in = stand_in
        queue = torch.autograd.Variable._execution_engine.queue_callback
        queue(lambda: queue(self._raise_failure))  # after the callbacks that are queued until then

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure.error.with_traceback(None)


class _Failure:
    """An error as the value of a future.

    In Python the future raises it. C++, such as DistributedDataParallel's, gets the value and pickles it to find
    tensors in it: pickling then raises the error. A future with devices also looks for tensors while the value is being
    set, in the same thread; pickling does not raise then.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.is_set = False
        self._thread = threading.get_ident()

    def raise_error(self) -> NoReturn:
        raise self.error

    def __repr__(self) -> str:  # shown in the message of C++ that expected a tensor
        return f"the error {type(self.error).__name__}: {self.error}"

    def __reduce__(self) -> tuple[object, ...]:
        if self.is_set or threading.get_ident() != self._thread:
            raise self.error.with_traceback(None)
        return str, ()
