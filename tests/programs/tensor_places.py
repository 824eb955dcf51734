"""Where the rank programs for PyTorch have their tensors: TENSORS_ON is "host", "cuda" or "emulated".

With "emulated" the tensors are on the host, as ever, but GradientFlow takes all of them for tensors on an emulated
device. They can be read and written there, because the emulated device is made of threads, and does not protect its own
memory with CUDA_EMULATOR_PROTECT=0. What PyTorch does, the host does at once: so it has to wait for the device wherever
it reads what the device has written.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.nn.parameter import is_lazy

import gradientflow.device
from gradientflow._location import core
from gradientflow.model import fit
from gradientflow.pools.base import BasePool
from gradientflow.pools.gradient import GradientPool
from gradientflow.pools.sparse import SparseGradientPool
from gradientflow.pools.top_k import TopKGradientPool
from gradientflow.strategies.exchange.staged import StagedSynchronizer
from gradientflow.strategies.predict import call_time, explanation
from gradientflow.torch import devices
from gradientflow.torch.fused_step import FusedStep, _Weights

PLACE = os.environ.get("TENSORS_ON", "host")
DEVICE = torch.device("cpu") if PLACE == "host" else torch.device("cuda", 0)
PLACED = DEVICE if PLACE == "cuda" else torch.device("cpu")  # where PyTorch has the tensors

_MOMENTS = "wait", "rollback", "zero", "set_residuals", "load_state_dict"

_NAMES = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.bool: "bool",
}


class EmulatedTensor:
    """A tensor of the host, offered through DLPack as one on the device."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, **_: Any) -> Any:
        tensor = self._tensor
        assert tensor.is_contiguous()
        return core.device.to_dlpack(tensor, tensor.data_ptr(), list(tensor.shape), _NAMES[tensor.dtype], 0)


class EmulatedStream:
    """The default stream, at the end of which the host has waited for everything."""

    device = DEVICE

    def query(self) -> bool:
        return True


def address_of(memory: Any) -> int:
    """Return where the memory of a pool begins."""
    on_device = isinstance(memory, gradientflow.device.DeviceArray)
    return int(memory._address if on_device else memory.ctypes.data)


def synchronize(*_: Any) -> None:
    """Wait for what is in the default stream."""
    _anything().get()


@functools.cache
def _anything() -> Any:
    return gradientflow.device.empty(1, "uint8")


def _tensor_over(array: Any, dtype: torch.dtype) -> torch.Tensor:
    if not isinstance(array, gradientflow.device.DeviceArray):
        return _real_tensor_over(array, dtype)
    if array.nbytes == 0:
        return torch.empty(0, dtype=dtype)

    class Bytes(ctypes.c_char * array.nbytes):  # type: ignore[misc]
        """The memory of the array, which it keeps."""

    memory = Bytes.from_address(array._address)
    memory.array = array
    synchronize()
    return torch.frombuffer(memory, dtype=dtype)


_real_tensor_over = devices.tensor_over


_real_shared = devices.shared
_left_on_host: dict[int, torch.Tensor] = {}  # by address; kept, so that no other tensor gets their memory
_emulates = [True]


def left_on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Have a tensor of the host taken for one, for as long as the program runs."""
    _left_on_host[tensor.data_ptr()] = tensor.detach()
    return tensor


@contextmanager
def on_host() -> Iterator[None]:
    """Have all tensors of the host taken for such in a ``with`` block."""
    _emulates[0] = False
    yield
    _emulates[0] = True


def _device_of(tensor: torch.Tensor) -> torch.device:
    is_emulated = tensor.is_cpu and _emulates[0] and not is_lazy(tensor) and tensor.data_ptr() not in _left_on_host
    return DEVICE if is_emulated else tensor.device


def _shared(tensor: torch.Tensor) -> Any:
    return EmulatedTensor(tensor) if _device_of(tensor) == DEVICE else _real_shared(tensor)


def _empty(shape: Sequence[int], dtype: torch.dtype, _: torch.device) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def _to_host(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in tensors]


def _within(_: Any) -> AbstractContextManager[Any]:
    return nullcontext()


def _waiting(method: Any) -> Any:
    @functools.wraps(method)
    def waits(self: Any, *arguments: Any, **named: Any) -> Any:
        result = method(self, *arguments, **named)
        if not isinstance(self, BasePool) or self.device is not None:
            synchronize()
        return result

    return waits


def _emulate() -> None:
    replaced: dict[str, Any] = {
        "device_of": _device_of,
        "is_on_host": lambda tensor: _device_of(tensor).type == "cpu",
        "empty": _empty,
        "shared": _shared,
        "tensor_over": _tensor_over,
        "to_host": _to_host,
        "host_like": lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype),
        "current_stream": lambda device: None if device.type == "cpu" else EmulatedStream(),
        "stream_number": lambda _: 0,
        "new_stream": lambda _: EmulatedStream(),
        "within": _within,
        "synchronize": synchronize,
        "mark": lambda stream: stream,
        "wait_for": lambda *_: None,
        "for_future": lambda _: [],
    }
    for name, function in replaced.items():
        assert callable(getattr(devices, name))
        setattr(devices, name, function)
    core.PlainCalls.fast_paths.clear()  # those of the process group, which would find the tensors on the host
    call_time._REDUCED = 64, 1024  # an emulated device is slow
    explanation.SIZES, fit._PASSED_ON = (64, 1024), 1024
    for owner, names in (
        (GradientPool, ("wait", "rollback", "zero")),
        (SparseGradientPool, _MOMENTS),
        (TopKGradientPool, _MOMENTS),
        (FusedStep, ("step",)),
        (_Weights, ("numbers",)),
        (StagedSynchronizer, ("wait", "zero", "_give_weights")),
    ):
        for name in names:
            setattr(owner, name, _waiting(getattr(owner, name)))


if PLACE == "emulated":
    _emulate()
elif PLACE == "cuda":
    torch.cuda.set_device(DEVICE)
