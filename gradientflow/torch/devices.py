"""Devices of tensors, and support for CUDA devices: streams, events, and memory of the core.

PyTorch's current stream orders calls, as it orders PyTorch's own operations: a call sees the work enqueued before it,
and work enqueued after the wait sees the result. Every function takes host and CUDA tensors and devices. The host has
no streams: ``None`` stands for a stream there. The rest of this folder uses these functions, never ``torch.cuda``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeAlias

import numpy as np
import torch

from gradientflow._location import core
from gradientflow.annotations import TensorLike
from gradientflow.errors import ArgumentError

Stream: TypeAlias = "torch.cuda.Stream | None"  # None for the host

HOST = torch.device("cpu")
KINDS = ("cpu", "cuda")

_on_host = nullcontext()


# ---- where ---------------------------------------------------------------------------------------------------------


def device_of(tensor: torch.Tensor) -> torch.device:
    """Return the device of a tensor."""
    return tensor.device


def is_on_host(tensor: torch.Tensor) -> bool:
    """Tell if a tensor is in host memory, with the least overhead."""
    return tensor.is_cpu


def common_device(tensors: Sequence[torch.Tensor]) -> torch.device:
    """Return the device that all these tensors are on; the host if there are none.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If they are on more than one device.
    """
    elsewhere = [tensor for tensor in tensors if not is_on_host(tensor)]
    if not elsewhere:
        return HOST
    found = {str(device_of(tensor)) for tensor in tensors}
    if len(found) > 1:
        raise ArgumentError(f"the tensors of a call are on one device, not on {' and '.join(sorted(found))}")
    return device_of(elsewhere[0])


def kinds() -> list[torch.device]:
    """Return the kinds of devices that are available here."""
    return [torch.device(kind) for kind in KINDS if kind == "cpu" or torch.cuda.is_available()]


# ---- memory --------------------------------------------------------------------------------------------------------


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a new uninitialized tensor."""
    return torch.empty(shape, dtype=dtype, device=device)


def shared(tensor: torch.Tensor) -> TensorLike:
    """Return a contiguous tensor in a form for the core, which asks PyTorch for its memory and the current stream."""
    return tensor


def tensor_over(array: TensorLike, dtype: torch.dtype) -> torch.Tensor:
    """Return a flat tensor that shares the memory of an array of the core, and keeps it alive."""
    of_host = isinstance(array, np.ndarray)
    if array.nbytes == 0:
        return torch.empty(0, dtype=dtype, device=HOST if of_host else f"cuda:{array.device}")
    return torch.frombuffer(array, dtype=dtype) if of_host else torch.utils.dlpack.from_dlpack(array).view(dtype)


def to_host(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return plain tensors in host memory; tensors on a device are copied.

    The host waits for the copies, and so for all work in the current stream.
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
    """Return an empty tensor like `tensor` in pinned host memory, for asynchronous copies."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=HOST, pin_memory=True)


# ---- streams -------------------------------------------------------------------------------------------------------


def current_stream(device: torch.device) -> Stream:
    """Return the current stream of a device."""
    return None if device.type == "cpu" else torch.cuda.current_stream(device)


def stream_number(device: torch.device) -> int:
    """Return the current stream of a device as a number, the form that pools take."""
    return 0 if device.type == "cpu" else int(torch.cuda.current_stream(device).cuda_stream)


def new_stream(device: torch.device) -> Stream:
    """Return a new stream of a device."""
    return None if device.type == "cpu" else torch.cuda.Stream(device)


def within(stream: Stream) -> AbstractContextManager[object]:
    """Make a stream and its device current for a ``with`` block."""
    return _on_host if stream is None else torch.cuda.stream(stream)


@contextmanager
def as_default(device: torch.device) -> Iterator[None]:
    """Order the default stream after the current stream on entry to a ``with`` block, and before it on exit."""
    stream = stream_number(device)
    if stream == 0:
        yield
        return
    order = core.device.order
    order(device.index, stream, 0)
    try:
        yield
    finally:
        order(device.index, 0, stream)


def synchronize(device: torch.device) -> None:
    """Make the host wait for all work in the current stream of a device."""
    if device.type != "cpu":
        torch.cuda.current_stream(device).synchronize()


def mark(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """Return an event recorded after all work now in the stream."""
    event: torch.cuda.Event = stream.record_event()
    return event


def wait_for(event: torch.cuda.Event, device: torch.device) -> None:
    """Make the current stream of a device wait for an event."""
    torch.cuda.current_stream(device).wait_event(event)


def for_future(device: torch.device) -> list[int | str | torch.device]:
    """Return the `devices` argument of a ``torch.futures.Future`` whose tensors are on this device.

    On completion the future records events in the current streams; the streams of its waiters wait for these events.
    """
    return [] if device.type == "cpu" else [device]
