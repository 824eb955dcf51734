"""A rank's CUDA device, its arrays there, and fresh values for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gradientflow._location import build_info, core
from gradientflow.annotations import TensorLike
from gradientflow.device import asarray

from .case import Case
from .data import Values
from .measure import FreshValues
from .plan import PlanError

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator

_ALIGNED = 64  # elements
_STREAM = 0  # default stream
_DISTINCT = 61  # number of offsets, used in turn; a prime, to avoid periods shared with anything else


def check_device(device: str) -> None:
    """Refuse a missing device, with a sentence that gives the reason."""
    if device == "cuda" and (reason := core.device.unavailable_reason()):
        raise PlanError(f"--device cuda: {reason}")


def take_device(comm: Communicator) -> int:
    """Make a device current in this thread, and give its number; the ranks of a node take devices in turn."""
    number: int = comm.local_rank % core.device.count()
    core.device.use(number)
    return number


def device_facts(device: str) -> dict[str, object]:
    """Describe the device for the environment of a result file; empty for the processor."""
    if device != "cuda":
        return {}
    devices = core.device
    return {
        "device": "cuda",
        "gpu": devices.name(0),
        "gpus": devices.count(),
        "cuda": build_info().get("cuda") or "unknown",
    }


class DevicePart:
    """The first elements of an array on a device, through the CUDA array interface.

    Parameters
    ----------
    array : DeviceArray
        Array of one dimension, which this object keeps.
    count : int
        Number of elements.
    """

    def __init__(self, array: TensorLike, count: int) -> None:
        self._array = array
        self._count = count

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """The interface of the array, with another shape."""
        return {**self._array.__cuda_array_interface__, "shape": (self._count,)}


@dataclass(frozen=True)
class Mirror:
    """The arrays of a contestant on the device, and their images in memory of the host.

    Attributes
    ----------
    source, result : object
        Objects with the CUDA array interface. The same object if the collective works in place.
    source_image, result_image : array
        Flat arrays of the same lengths.
    """

    source: TensorLike
    result: TensorLike
    source_image: Values
    result_image: Values

    def push(self) -> None:
        """Copy the image of the source to the device."""
        copy(address(self.source), address(self.source_image), self.source_image.nbytes)
        synchronize()

    def pull(self) -> None:
        """Copy the result from the device to its image, after the work that produces it."""
        copy(address(self.result_image), address(self.result), self.result_image.nbytes)
        synchronize()


class DeviceFreshValues(FreshValues):
    """Fresh values that are already on the device, like gradients.

    One block is repeated in device memory. In each iteration buffers are copied from another offset in it; here a
    "block" is the index of the first element to copy.
    """

    def __init__(self, case: Case, alphabet: Values, seed: int) -> None:
        super().__init__(case, alphabet, seed)
        self._case = case
        base = self._own[0]
        self._repeated = asarray(np.resize(base, case.input_count + self.block_length)) if case.contributes else None

    def block(self, iteration: int) -> Any:
        """Give the offset from which buffers are copied in an iteration."""
        return self._starts[iteration % len(self._starts)]

    def writer(self, mirror: Mirror) -> Callable[[int], None]:
        """Make the function that queues the copy to a contestant's source in the stream.

        Ranks whose input reaches no result have nothing to write.
        """
        if self._repeated is None:
            return lambda start: None
        target, size = address(mirror.source), mirror.source_image.nbytes
        source, item = address(self._repeated), mirror.source_image.itemsize
        return lambda start: copy(target, source + start * item, size)

    def _blocks(self, rank: int) -> list[Values]:
        base = super()._blocks(rank)[0]
        # Copies are fastest at multiples of the size that a warp reads.
        step = _ALIGNED if len(base) > _ALIGNED * _DISTINCT else 1
        self._starts = [number * step % len(base) for number in range(_DISTINCT)]
        return [np.roll(base, -start) for start in self._starts]


def address(array: TensorLike) -> int:
    """Give the address of an array, on the device or on the host."""
    interface = getattr(array, "__cuda_array_interface__", None) or array.__array_interface__
    return int(interface["data"][0])


def copy(target: int, source: int, size: int) -> None:
    """Queue a copy in the default stream: between host and device in either direction, or on the device."""
    device = core.device
    device.copy(device.current(), target, source, size, _STREAM)


def synchronize() -> None:
    """Wait for all work in the default stream."""
    device = core.device
    device.synchronize(device.current(), _STREAM)


def pinned(values: Values) -> object:
    """Pin host memory for the lifetime of the returned object; None if pinning is impossible."""
    return core.device.pin(address(values), values.nbytes)
