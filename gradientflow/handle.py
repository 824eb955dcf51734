"""What an asynchronous call returns."""

from __future__ import annotations

import os
import warnings
from typing import Any

from ._location import load_core
from .errors import ArgumentTypeError, ClosedError, GradientFlowWarning

# Every call under way: a handle that nobody keeps must not free the tensors of its call. Adding and discarding are
# atomic, so any thread may do either.
_in_flight: set[Handle] = set()


class Handle:
    """An asynchronous call under way.

    The tensors of the call must not be read or written before it is done. They are kept alive, whether the handle is
    kept or not. Tensors on a CUDA device are kept until `wait` has put a stream of the caller's behind the call, or,
    where nobody waits, until the device is done with it. After `wait` it is with their memory as if the call had been
    made in that stream, for which frameworks have rules: PyTorch's ``record_stream``, for example.
    """

    def __init__(self, native: Any, communicator: Any, result: Any, tensors: tuple[Any, ...]) -> None:
        if not isinstance(native, load_core().Handle):
            message = f"a Handle is what an asynchronous call returns; it is not made of {type(native).__name__}"
            raise ArgumentTypeError(message)
        self._native = native
        self._communicator = communicator
        self._result = result
        self._tensors = tensors
        self._process = os.getpid()
        _in_flight.add(self)
        let_go_of_done()

    def _let_go(self, ordered: bool = False) -> None:
        """Forget the tensors, if the call is done and MPI has not kept a request that may still write to them.

        `done` is the host's part of a call on a device. A framework that gets its memory back then may give it to
        somebody else at once, in the stream in which it was allocated. That is right where this stream, or one that the
        framework knows to have used the memory, is `ordered` behind the call; else the device has to be done.
        """
        if (self._native.done if ordered else self._native.device_done) and not self._communicator.stuck:
            self._tensors = ()
            _in_flight.discard(self)

    def __del__(self) -> None:
        """Warn where the call has failed, and nobody was told: nobody can wait for it any more."""
        self._warn_if_untold()

    def _warn_if_untold(self) -> None:
        # Without attributes where it could not be made.
        reason = getattr(self._native, "untold", None) if getattr(self, "_process", None) == os.getpid() else None
        if reason is not None:
            self._native.told()
            message = f"an asynchronous call has failed, and nobody has waited for its handle: {reason}"
            warnings.warn(message, GradientFlowWarning, stacklevel=1)

    @property
    def done(self) -> bool:
        """Whether the call has ended, well or badly."""
        return bool(self._native.done)

    @property
    def device_done(self) -> bool:
        """Whether the call has ended, and a CUDA device is done with it, too, if its tensors are on one."""
        return bool(self._native.device_done)

    @property
    def path(self) -> str | None:
        """Which way the call went, for people to read; None before it is done."""
        return str(self._native.path) if self.done else None

    @property
    def nonfinite(self) -> int | None:
        """How many elements of the result are infinite or NaN.

        Counted where values were rounded for the wire (`Communicator.allreduce` with `wire`, between nodes); None for
        other calls, and before the call is done. The same on all ranks.
        """
        count = self._native.nonfinite if self.done else None
        return None if count is None else int(count)

    @property
    def bytes_sent(self) -> int | None:
        """How many bytes this rank sent to others in messages.

        0 where ranks share memory; None before the call is done, and where the MPI library sent them.
        """
        count = self._native.bytes_sent if self.done else None
        return None if count is None else int(count)

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until the call is done.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most; by default as long as the call itself may take.

        Returns
        -------
        array
            What the blocking form of the call returns. On a CUDA device the call may still be at work then: what is
            put into the framework's current stream from now on sees the result. Where that stream is not known
            (DLPack alone does not tell), the host waits for it.

        Raises
        ------
        gradientflow.errors.CommunicationTimeoutError
            If the timeout passed first; the call goes on and can be waited for again.
        gradientflow.errors.ClosedError
            In a process that was forked after the call was made.
        gradientflow.errors.GradientFlowError
            What the call ended with, if it failed.
        """
        if self._process != os.getpid():
            message = "the call belongs to the process that this one was forked from"
            raise ClosedError(message)
        ordered = False
        try:
            self._native.wait(timeout, self._result)
            ordered = True
        finally:
            self._let_go(ordered)
        return self._result


def let_go_of_done() -> None:
    """Forget the calls that are done and that nobody else knows; those that have failed then say so."""
    for handle in tuple(_in_flight):
        handle._let_go()


def warn_of_all() -> None:
    """Say which calls have failed without anybody having been told, at the end of the process."""
    for handle in tuple(_in_flight):
        handle._warn_if_untold()
