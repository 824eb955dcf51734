"""Handles of asynchronous calls."""

from __future__ import annotations

import os
import warnings

from ._location import core
from .annotations import TensorLike
from .errors import ArgumentTypeError, ClosedError, GradientFlowWarning

# Handles of all calls under way: dropping a handle must not free the tensors of its call. Adding and discarding are
# atomic, so any thread may do either.
_in_flight: set[Handle] = set()


class Handle:
    """An asynchronous call under way.

    The tensors of the call must not be read or written before it is done. They are kept alive, even if the program
    drops the handle. Tensors on a CUDA device are kept until `wait` has ordered the caller's stream after the call or,
    without `wait`, until the device has finished it. After `wait`, treat their memory as if the call had been made in
    that stream; frameworks have rules for this, for example PyTorch's ``record_stream``.
    """

    def __init__(
        self, native: core.Handle, communicator: core.Communicator, result: object, tensors: tuple[object, ...]
    ) -> None:
        if not isinstance(native, core.Handle):
            message = f"a Handle is what an asynchronous call returns; it is not made of {type(native).__name__}"
            raise ArgumentTypeError(message)
        self._native = native
        self._communicator = communicator
        self._result = result
        self._tensors = tensors
        self._process = os.getpid()
        _in_flight.add(self)
        release_done()

    def _release(self, ordered: bool = False) -> None:
        """Release the tensors if the call is done and no abandoned MPI request may still write to them.

        For a call on a device, `done` covers the host's part only. A framework may reuse released memory at once, in
        the stream in which it was allocated. This is safe if this stream, or another stream known to the framework as a
        user of the memory, is `ordered` after the call. Otherwise the device must have finished, too.
        """
        done = self._native.done if ordered else self._native.device_done
        if done and not self._communicator.has_abandoned_requests:
            self._tensors = ()
            _in_flight.discard(self)

    def __del__(self) -> None:
        """Warn if the call has failed with an error that `wait` has not raised: no later call can raise it."""
        self._warn_if_unreported()

    def _warn_if_unreported(self) -> None:
        # The attributes are missing if the constructor raised.
        is_ours = getattr(self, "_process", None) == os.getpid()
        reason = getattr(self._native, "unreported_error", None) if is_ours else None
        if reason is not None:
            self._native.mark_reported()
            message = f"an asynchronous call has failed, and nobody has waited for its handle: {reason}"
            warnings.warn(message, GradientFlowWarning, stacklevel=1)

    @property
    def done(self) -> bool:
        """True if the call has ended, with or without an error."""
        return self._native.done

    @property
    def device_done(self) -> bool:
        """True if the call has ended, also on the CUDA device if its tensors are on one."""
        return self._native.device_done

    @property
    def path(self) -> str | None:
        """Path of the call, as readable text; None before it is done."""
        return self._native.path if self.done else None

    @property
    def nonfinite(self) -> int | None:
        """Number of infinite and NaN elements of the result, the same on all ranks.

        Counted if values were rounded for the wire (`Communicator.allreduce` with `wire`, between nodes). None for
        other calls, and before the call is done.
        """
        return self._native.nonfinite if self.done else None

    @property
    def bytes_sent(self) -> int | None:
        """Number of bytes that this rank sent to other ranks in messages.

        0 if the ranks share memory. None before the call is done, and if the MPI library sent the messages.
        """
        return self._native.bytes_sent if self.done else None

    def wait(self, timeout: float | None = None) -> TensorLike:
        """Wait until the call is done.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most; by default as long as the call itself may take.

        Returns
        -------
        array
            The result of the blocking form of the call. On a CUDA device the call may still be running: later work in
            the framework's current stream sees the result. If that stream is unknown (DLPack alone does not tell it),
            the host waits for the result.

        Raises
        ------
        gradientflow.errors.CommunicationTimeoutError
            If the timeout passed first; the call continues and `wait` can be called again.
        gradientflow.errors.ClosedError
            In a process that was forked after the call was made.
        gradientflow.errors.GradientFlowError
            The error of the call, if it failed.
        """
        if self._process != os.getpid():
            raise ClosedError("the call belongs to the process that this one was forked from")
        ordered = False
        try:
            self._native.wait(timeout, self._result)
            ordered = True
        finally:
            self._release(ordered)
        return self._result


def release_done() -> None:
    """Release the handles of finished calls; a failed handle without another reference then warns."""
    for handle in tuple(_in_flight):
        handle._release()


def warn_of_unreported() -> None:
    """Warn, at the end of the process, of each failed call whose error was never raised."""
    for handle in tuple(_in_flight):
        handle._warn_if_unreported()
