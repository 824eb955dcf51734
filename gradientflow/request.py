"""Prepared (persistent) calls."""

from __future__ import annotations

from ._fast_paths import has_fast_path, take_fast_paths
from ._location import core
from .annotations import TensorLike
from .errors import ArgumentTypeError


class Request:
    """A call that is checked and planned once, and then made any number of times on the same tensors.

    Returned by `Communicator.allreduce_init` and all other ``_init`` methods; modeled on the persistent collectives of
    MPI 4. Preparing a call sends nothing. `start` makes the call, and `wait` waits for its end; in between the tensors
    must not be read or written. Several requests may be under way: they are served in the order of their starts, along
    with all other calls of the communicator. A prepared call matches calls of other ranks, prepared or not. The request
    keeps the tensors alive, and is itself kept alive while under way. If the call needs a new array for its result, the
    array is made once: every `wait` returns the same array.

    Only one thread at a time may use a request.
    """

    def __init__(self, native: core.PreparedCall) -> None:
        if not isinstance(native, core.PreparedCall):
            message = f"a Request is what allreduce_init returns; it is not made of {type(native).__name__}"
            raise ArgumentTypeError(message)
        take_fast_paths(Request, core.PreparedCall)
        self._native = native

    @has_fast_path
    def start(self) -> None:
        """Start the call, without waiting for peers.

        A small call inside a node begins at once; peers then need nothing more from this rank. All other calls go to
        the communicator's progress thread, as asynchronous calls do.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If the call has been started and not waited for.
        gradientflow.errors.ClosedError
            If the communicator is closed.
        """
        self._native.start()

    @has_fast_path
    def wait(self, timeout: float | None = None) -> TensorLike:
        """Wait until the call has ended. Afterwards it may be started again.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most; by default as long as the call itself may take.

        Returns
        -------
        array
            The result of the blocking form of the call. Tensors on a CUDA device are as after `Handle.wait`.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If the call has not been started.
        gradientflow.errors.CommunicationTimeoutError
            If the timeout passed first; the call continues and `wait` can be called again.
        gradientflow.errors.MismatchError
            If the ranks have started different calls.
        gradientflow.errors.GradientFlowError
            The error of the call, if it failed.
        """
        return self._native.wait(timeout)

    @property
    def done(self) -> bool:
        """True if `wait` would return at once: the call has ended, with or without an error, or is not under way."""
        return self._native.done

    @property
    def nonfinite(self) -> int | None:
        """Value of `Handle.nonfinite` for the last call that was waited for."""
        return self._native.nonfinite


__all__ = ["Request"]
