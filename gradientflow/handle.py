"""What an asynchronous call returns."""

from __future__ import annotations

from typing import Any


class Handle:
    """An asynchronous call under way.

    The tensors of the call must not be read or written before it is done. They are kept alive, whether the handle is
    kept or not.
    """

    def __init__(self, native: Any, result: Any, *kept: Any) -> None:
        self._native = native
        self._result = result
        self._kept = kept

    @property
    def done(self) -> bool:
        """Whether the call has ended, well or badly."""
        return bool(self._native.done)

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until the call is done.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most; by default as long as the call itself may take.

        Returns
        -------
        array
            What the blocking form of the call returns.

        Raises
        ------
        gradientflow.errors.CommunicationTimeoutError
            If the timeout passed first; the call goes on and can be waited for again.
        gradientflow.errors.GradientFlowError
            What the call ended with, if it failed.
        """
        self._native.wait(timeout)
        return self._result
