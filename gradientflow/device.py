"""Arrays in memory of CUDA devices, for programs without CuPy and PyTorch, and for gradient pools."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ._location import core
from .errors import ArgumentError, ArgumentTypeError
from .memory import checked_bytes, checked_shape, itemsize, numpy_dtype

_DEFAULT_STREAM = 1  # CUDA's legacy default stream, as the CUDA array interface and DLPack call it
_CUDA = 2  # DLPack's number for the kind of device


class DeviceArray:
    """A contiguous array on a CUDA device.

    It has the CUDA array interface and DLPack, so CuPy, PyTorch, JAX and Numba take it without a copy:
    ``cupy.asarray(x)``, ``torch.from_dlpack(x)``. Its values are ready in the device's default stream.

    Attributes
    ----------
    shape : tuple of int
        Shape.
    dtype : str
        Name of the dtype.
    size, nbytes : int
        Number of elements and of bytes.
    device : int
        Number of the device.
    """

    def __init__(
        self,
        owner: core.device.Memory | core.device.Segment,
        offset: int,
        shape: tuple[int, ...],
        dtype: str,
        device: int,
    ) -> None:
        self._owner = owner
        self._address = owner.address + offset
        self.shape = shape
        self.dtype = dtype
        self.size = math.prod(shape)
        self.nbytes = self.size * itemsize(dtype)
        self.device = device

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """The interface, version 3: https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html."""
        if self.dtype == "bfloat16":
            raise AttributeError("the CUDA array interface has no bfloat16; DLPack has")
        return {
            "shape": self.shape,
            "typestr": np.dtype(self.dtype).str,
            "data": (self._address if self.size else 0, False),
            "strides": None,
            "stream": _DEFAULT_STREAM,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return (kind, number) of the device."""
        return _CUDA, self.device

    # The stream in which the values are ready. The core reads it here because the array interface lacks bfloat16.
    __gradientflow_stream__ = _DEFAULT_STREAM

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """Return a DLPack capsule of version 0 over the memory itself.

        Later work in `stream` runs after the work now in the default stream.

        Raises
        ------
        BufferError
            If a copy or another device is asked for.
        """
        del max_version  # version 0 is always accepted
        if copy or (dl_device is not None and tuple(map(int, dl_device)) != self.__dlpack_device__()):
            raise BufferError("a DeviceArray gives its memory where it is, not a copy")
        if stream is not None and stream not in (-1, 0, _DEFAULT_STREAM):
            core.device.order(self.device, _DEFAULT_STREAM, stream)
        return core.device.to_dlpack(self, self._address, self.shape, self.dtype, self.device)

    def get(self) -> np.ndarray:
        """Return a copy in memory of the host, after the work in the default stream.

        bfloat16 needs the package ml_dtypes.
        """
        host = np.empty(self.shape, numpy_dtype(self.dtype))
        raw = host.reshape(-1).view(np.uint8)
        core.device.read(self.device, self._address, raw, self.nbytes, _DEFAULT_STREAM)
        return host

    def set(self, values: npt.ArrayLike) -> DeviceArray:
        """Copy `values` from memory of the host, broadcast to the shape of this array; return this array."""
        try:
            host = np.broadcast_to(np.asarray(values, numpy_dtype(self.dtype)), self.shape)
        except ValueError as error:
            raise ArgumentError(str(error)) from error
        raw = np.ascontiguousarray(host).reshape(-1).view(np.uint8)
        core.device.write(self.device, self._address, raw, self.nbytes, _DEFAULT_STREAM)
        return self

    def __repr__(self) -> str:
        """Return shape, dtype and device."""
        return f"<DeviceArray of {self.shape} {self.dtype} on CUDA device {self.device}>"


def device_number(device: str | int) -> int:
    """Return the number of device "cuda", "cuda:1" or 1; "cuda" is the calling thread's current device.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If `device` names no CUDA device.
    gradientflow.errors.SystemCallError
        If there is no CUDA device at all.
    """
    kind, _, text = ("cuda", ":", str(device)) if isinstance(device, int) else str(device).partition(":")
    if kind != "cuda" or (text and not text.isdecimal()):
        raise ArgumentError(f"a device is 'cpu', 'cuda', 'cuda:0', 'cuda:1' and so on, or a number, not {device!r}")
    current = int(core.device.current())  # raises if there is no device
    count = int(core.device.count())
    if text and int(text) >= count:
        raise ArgumentError(f"there is no CUDA device {text}, there are {count}")
    return int(text) if text else current


def dtype_name(dtype: npt.DTypeLike | str) -> str:
    """Return the name of a dtype; "bfloat16" needs no package here."""
    return "bfloat16" if isinstance(dtype, str) and dtype == "bfloat16" else numpy_dtype(dtype).name


def empty(
    shape: int | Sequence[int], dtype: npt.DTypeLike | str = "float32", device: str | int = "cuda"
) -> DeviceArray:
    """Return a new zero-filled array on a device, in memory of its own. Not collective, unlike `Communicator.empty`.

    Parameters
    ----------
    shape : int or sequence of int
        Shape of the array.
    dtype : dtype, default "float32"
        Its dtype.
    device : str or int, default "cuda"
        "cuda" is the calling thread's current device, "cuda:1" or 1 the device with this number.

    Raises
    ------
    gradientflow.errors.SystemCallError
        If there is no CUDA device, or GradientFlow was built without CUDA.
    gradientflow.errors.NodeMemoryError
        If the device lacks memory.
    """
    return new_array(core.device.allocate, shape, dtype, device)


def new_array(
    allocate: Callable[[int, int], core.device.Memory | core.device.Segment],
    shape: int | Sequence[int],
    dtype: npt.DTypeLike | str,
    device: str | int,
) -> DeviceArray:
    """Return an array in memory from `allocate`, called with the device's number and the number of bytes."""
    sizes, name, number = checked_shape(shape), dtype_name(dtype), device_number(device)
    nbytes = checked_bytes(sizes, np.dtype(np.uint16) if name == "bfloat16" else np.dtype(name))
    return DeviceArray(allocate(number, nbytes), 0, sizes, name, number)


def asarray(values: npt.ArrayLike, device: str | int = "cuda") -> DeviceArray:
    """Return a copy of `values` on a device.

    Raises
    ------
    gradientflow.errors.ArgumentTypeError
        If the dtype of `values` is not supported.
    """
    host = np.asarray(values)
    if host.dtype.hasobject:
        raise ArgumentTypeError(f"dtype {host.dtype} cannot lie on a device")
    return empty(host.shape, host.dtype.name, device).set(host)


__all__ = ["DeviceArray", "asarray", "empty"]
