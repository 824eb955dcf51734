"""Handles of pushes and pulls under way."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gradientflow._location import core
from gradientflow.annotations import TensorLike
from gradientflow.arguments import checked_int, checked_list
from gradientflow.errors import ArgumentError
from gradientflow.memory import NodeArray, numpy_dtype


class WaitClock:
    """Total seconds for which a worker has waited for the servers."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Add the time of a ``with`` block."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds += time.monotonic() - began


class Push:
    """Gradients on their way to the servers.

    Attributes
    ----------
    number : int
        Number of the push, from 1.
    nonfinite : tuple of two int or None
        After `wait` has returned "skipped": rank and tensor of a gradient that was not finite, if the rank named the
        tensor.
    """

    def __init__(self, native: core.ParameterServer, number: int, clock: WaitClock) -> None:
        self._native = native
        self._clock = clock
        self.number = number
        self.nonfinite: tuple[int, int] | None = None

    @property
    def done(self) -> bool:
        """True if the policy lets this worker proceed."""
        return bool(self._native.is_released(self.number))

    def wait(self, timeout: float | None = None) -> str:
        """Wait until the policy lets this worker proceed.

        Parameters
        ----------
        timeout : float, optional
            Seconds; by default GRADIENTFLOW_TIMEOUT.

        Returns
        -------
        {"applied", "skipped", "abandoned"}
            "applied" if the push has changed the weights, "skipped" if any push of its round asked to skip the round,
            "abandoned" if a worker gave up the round.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If more than 1024 later pushes were skipped: the outcome of this push is no longer known.
        gradientflow.errors.CommunicationTimeoutError
            If the timeout passed first; the push continues and `wait` can be called again.
        gradientflow.errors.PeerError
            If a rank has died, given up, or closed the parameter server.
        gradientflow.errors.MismatchError
            If the pushes of a round have different settings.
        """
        with self._clock.running():
            outcome, rank, tensor = self._native.wait_for_push(self.number, timeout)
        self.nonfinite = (rank, tensor) if tensor >= 0 else None
        return str(outcome)


class Pull:
    """Weights on their way from the servers. Valid until the next pull."""

    def __init__(
        self,
        native: core.ParameterServer,
        number: int,
        shapes: tuple[tuple[int, ...], ...],
        dtype: str,
        clock: WaitClock,
    ) -> None:
        self._native = native
        self._clock = clock
        self._shapes = shapes
        self._dtype = dtype
        self.number = number

    @property
    def done(self) -> bool:
        """True if the weights have come."""
        return bool(self._native.has_come(self.number))

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the weights have come.

        Parameters
        ----------
        timeout : float, optional
            Seconds; by default GRADIENTFLOW_TIMEOUT.

        Raises
        ------
        gradientflow.errors.CommunicationTimeoutError
            If the timeout passed first; the pull continues and `wait` can be called again.
        gradientflow.errors.PeerError
            If a rank has died, given up, or closed the parameter server.
        """
        with self._clock.running():
            self._native.wait_for_pull(self.number, timeout)

    def take(self, index: int, weights: TensorLike, timeout: float | None = None) -> None:
        """Copy the weights of tensor `index` as they come.

        Parameters
        ----------
        index : int
            Index of the tensor.
        weights : array or int
            float32, with as many elements as the tensor; or the address of such memory.
        timeout : float, optional
            Seconds to wait for missing weights; by default GRADIENTFLOW_TIMEOUT.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If there is no such tensor, or a later pull has replaced this one.
        gradientflow.errors.CommunicationTimeoutError, gradientflow.errors.PeerError
            See `wait`. The part that has come is then in `weights`.
        """
        tensor = checked_index(index, len(self._shapes))
        if isinstance(weights, int):
            self._native.take_to(self.number, tensor, weights, timeout)
        else:
            self._native.take(self.number, tensor, weights, timeout)

    def weights(self, index: int, timeout: float | None = None) -> NodeArray:
        """Return the weights of tensor `index` in place, without a copy, once the whole pull has come.

        If a server in this node has the whole tensor, as a single server has, the array is in that server's memory.
        Otherwise the array is in node memory of this worker, into which the weights were received or are copied.

        Parameters
        ----------
        index : int
            Index of the tensor.
        timeout : float, optional
            Seconds to wait for missing weights; by default GRADIENTFLOW_TIMEOUT.

        Returns
        -------
        array
            Read-only; has the shape of the tensor and the dtype of the wire, or float32 if the pull is exact. Its
            values are valid until the next pull of this worker, including `finish` and `push_pull`, or until the
            parameter server is closed. Later they are undefined, but reading them does no harm.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If there is no such tensor, or a later pull has replaced this one.
        gradientflow.errors.ArgumentTypeError
            If the wire is bfloat16 and the package ml_dtypes, which NumPy needs for it, is missing.
        gradientflow.errors.CommunicationTimeoutError, gradientflow.errors.PeerError
            See `wait`.
        """
        tensor = checked_index(index, len(self._shapes))
        if tensor >= len(self._shapes):
            raise ArgumentError(f"there is no tensor {index}: the parameter server has {len(self._shapes)}")
        found: NodeArray = self._native.weights(
            self.number, tensor, timeout, numpy_dtype(self._dtype), self._shapes[tensor]
        )
        return found

    def take_all(self, arrays: Sequence[TensorLike], timeout: float | None = None) -> None:
        """Copy the weights of all tensors as they come, as `take` does, without a previous `wait`."""
        found = checked_list("arrays", arrays, "arrays")
        if len(found) != len(self._shapes):
            raise ArgumentError(f"arrays are {len(self._shapes)}, one for each tensor, not {len(found)}")
        with self._clock.running():
            for index, each in enumerate(found):
                self.take(index, each, timeout)
        self.wait(timeout)


def checked_index(index: int, tensors: int) -> int:
    """Return the index of a tensor; negative indices count from the end. The core refuses too large indices."""
    found = checked_int("index", index, -tensors)
    return found + tensors if found < 0 else found


__all__ = ["Pull", "Push", "WaitClock", "checked_index"]
