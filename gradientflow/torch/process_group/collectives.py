"""The communicators of a process group, and the collective calls made on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from gradientflow._location import core
from gradientflow.communicator import Communicator
from gradientflow.config import Config
from gradientflow.errors import GradientFlowError
from gradientflow.torch import devices

from .calls import Call
from .context import WorkContext
from .profiling import profiler_enabled
from .reduce_ops import NAMES
from .work import CollectiveWork, EndedWork, Work


class Collectives:
    """Makes the collective calls of a process group.

    Parameters
    ----------
    ranks : callable
        Takes settings, and returns the base of a communicator of the group. Collective.
    settings : Config
        Settings of the communicators.
    context : WorkContext
        Shared by the works of the group.

    Attributes
    ----------
    communicator : Communicator
        Communicator for calls in threads of the program.
    plain : PlainCalls
        Object of the core that makes the usual calls, past the methods of the group.
    """

    def __init__(self, ranks: Callable[[Config], core.Endpoint], settings: Config, context: WorkContext) -> None:
        with context.explaining():
            self.communicator = Communicator(ranks(settings), settings)
        self.plain = core.PlainCalls(self.communicator._native, NAMES, context, EndedWork, profiler_enabled)
        self._callback_communicator: Communicator | None = None  # made when a callback needs it
        self._ranks = ranks
        self._settings = settings
        self._context = context
        self._device = devices.HOST  # device of the last call on tensors of a device

    def close(self) -> None:
        """Close the communicators after their calls and the callbacks of these are done."""
        self.communicator.close()
        self._context.thread.close()  # waits for callbacks, which may use the communicator closed next
        if self._callback_communicator is not None:
            self._callback_communicator.close()

    def abort(self) -> None:
        """Close the communicators without waiting; calls under way fail."""
        for communicator in (self.communicator, self._callback_communicator):
            if communicator is not None:
                communicator._native.close(False)

    def run(self, calls: Sequence[Call], outputs: list[torch.Tensor], limit: float | None, waits: bool) -> Work:
        """Make calls, in the current stream if the tensors are on a device.

        Parameters
        ----------
        calls : sequence of Call
            The calls to make.
        outputs : list of torch.Tensor
            The result of the work.
        limit : float, optional
            Seconds after which a wait for the work ends; by default the communicator's timeout.
        waits : bool
            True if the caller waits for the work at once.
        """
        tensors = outputs.copy()
        for call in calls:
            tensors += call.tensors
        device = devices.common_device(tensors)
        if device is devices.HOST:
            return self._make(calls, outputs, limit, waits, None)
        self._device = device
        stream = devices.current_stream(device)
        with devices.within(stream):
            return self._make(calls, outputs, limit, waits, stream)

    def synchronize(self) -> None:
        """Make the host wait for the current stream of the group's device."""
        devices.synchronize(self._device)

    def _make(
        self,
        calls: Sequence[Call],
        outputs: list[torch.Tensor],
        limit: float | None,
        waits: bool,
        stream: devices.Stream,
    ) -> Work:
        """Make the calls: in this thread if the caller waits without a limit, else in the background."""
        communicator = self._communicator_of_thread()
        if not waits or limit is not None:
            handles = [call.make(communicator, "_async") for call in calls]
            finishing = [call.finish for call in calls if call.finish is not None]
            return CollectiveWork(self._context, outputs, handles, finishing, limit, stream)
        try:
            for call in calls:
                call.make(communicator)
                if call.finish is not None:
                    call.finish()
        except GradientFlowError as error:
            self._context.raise_explained(error)
        return CollectiveWork(self._context, outputs, stream=stream)

    def _communicator_of_thread(self) -> Communicator:
        """Return the communicator for the calls of this thread.

        Calls in callbacks have a separate communicator, because their order relative to calls of other threads may
        differ between ranks.
        """
        if not self._context.thread.is_current:
            return self.communicator
        if self._callback_communicator is None:
            self._callback_communicator = Communicator(self._ranks(self._settings), self._settings)
        return self._callback_communicator
