"""Where tensors are, and what is particular to those on CUDA devices: streams, events, and memory of the core's.

Work on a device is put into a stream and done in its order. PyTorch's current stream is the contract here, as it is for
PyTorch's own operations: what has been put into it before a call is seen by the call, and what is put into it after the
wait sees the result. Every function takes tensors and devices of both kinds; in memory of the host there is no stream,
and ``None`` stands for it. The rest of this folder asks here, and calls nothing of ``torch.cuda`` itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch.utils.dlpack import to_dlpack  # type: ignore[attr-defined]

from gradientflow._location import load_core
from gradientflow.errors import ArgumentError

Stream = Any  # torch.cuda.Stream, or None in memory of the host
Event = Any  # torch.cuda.Event

HOST = torch.device("cpu")
KINDS = ("cpu", "cuda")

_on_host = nullcontext()
_cuda: Any = torch.cuda  # annotations of these are missing
_from_dlpack: Any = torch.utils.dlpack.from_dlpack


class _HostMemory:
    """The memory of a contiguous tensor of the host, as the core takes it: through DLPack, at the least expense."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return (kind, number) of the device."""
        return 1, 0

    def __dlpack__(self, **_: Any) -> Any:
        """Return a capsule that keeps the memory alive."""
        return to_dlpack(self._tensor)


# ---- where ---------------------------------------------------------------------------------------------------------


def device_of(tensor: torch.Tensor) -> torch.device:
    """Return the device that has a tensor."""
    return tensor.device


def is_on_host(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is in memory of the host, at the least expense."""
    return tensor.is_cpu


def common_device(tensors: Sequence[torch.Tensor]) -> torch.device:
    """Return the one device that has all of these tensors; the host for none.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If they are on several.
    """
    elsewhere = [tensor for tensor in tensors if not is_on_host(tensor)]
    if not elsewhere:
        return HOST
    found = {str(device_of(tensor)) for tensor in tensors}
    if len(found) > 1:
        message = f"the tensors of a call are on one device, not on {' and '.join(sorted(found))}"
        raise ArgumentError(message)
    return device_of(elsewhere[0])


def kinds() -> list[torch.device]:
    """Return the kinds of devices whose tensors can be served here."""
    return [torch.device(kind) for kind in KINDS if kind == "cpu" or torch.cuda.is_available()]


# ---- memory --------------------------------------------------------------------------------------------------------


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a new tensor."""
    return torch.empty(shape, dtype=dtype, device=device)


def shared(tensor: torch.Tensor) -> Any:
    """Return what the core takes for a contiguous tensor. On a device it asks PyTorch for the current stream, too."""
    return _HostMemory(tensor) if is_on_host(tensor) else tensor


def tensor_over(array: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return a row over an array of the core's, without a copy; it keeps the memory."""
    of_host = isinstance(array, np.ndarray)
    if array.nbytes == 0:
        return torch.empty(0, dtype=dtype, device=HOST if of_host else f"cuda:{array.device}")
    return torch.frombuffer(array, dtype=dtype) if of_host else _from_dlpack(array).view(dtype)


def to_host(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return plain tensors as others outside of PyTorch can read them: those on a device as copies on the host.

    The host waits for these, and so for what is in the current stream.
    """
    found = []
    waits = HOST
    for tensor in tensors:
        device = device_of(tensor)
        if device.type == "cpu":
            found.append(tensor)
        else:
            found.append(host_like(tensor).copy_(tensor, non_blocking=True))
            waits = device
    synchronize(waits)
    return found


def host_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return an empty tensor on the host, to and from which the device of `tensor` copies without waiting."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=HOST, pin_memory=True)


# ---- streams -------------------------------------------------------------------------------------------------------


def current_stream(device: torch.device) -> Stream:
    """Return the current stream of a device."""
    return None if device.type == "cpu" else torch.cuda.current_stream(device)


def stream_number(device: torch.device) -> int:
    """Return the current stream of a device as the pools take it."""
    return 0 if device.type == "cpu" else int(torch.cuda.current_stream(device).cuda_stream)


def new_stream(device: torch.device) -> Stream:
    """Return a new stream of a device."""
    return None if device.type == "cpu" else _cuda.Stream(device)


def within(stream: Stream) -> AbstractContextManager[Any]:
    """Make a stream, and its device, the current ones for a ``with`` block."""
    return _on_host if stream is None else torch.cuda.stream(stream)


@contextmanager
def as_default(device: torch.device) -> Iterator[None]:
    """Let what the core puts into the default stream in a ``with`` block be as if it were in the current stream."""
    stream = stream_number(device)
    if stream == 0:
        yield
        return
    order = load_core().device.order
    order(device.index, stream, 0)
    try:
        yield
    finally:
        order(device.index, 0, stream)


def synchronize(device: torch.device) -> None:
    """Have the host wait for what is in the current stream of a device."""
    if device.type != "cpu":
        torch.cuda.current_stream(device).synchronize()


def mark(stream: Stream) -> Event:
    """Return an event that happens once all is done that is in the stream now."""
    return stream.record_event()


def wait_for(event: Event, device: torch.device) -> None:
    """Have what is put into the current stream of a device from now on wait for an event."""
    torch.cuda.current_stream(device).wait_event(event)


def for_future(device: torch.device) -> list[int | str | torch.device]:
    """Return what a ``torch.futures.Future`` is told of the device that its tensors are on.

    When it is completed, it notes where the current streams are, and puts the streams of those who wait for it behind.
    """
    return [] if device.type == "cpu" else [device]
