"""PyTorch tensors as memory that the core and MPI can read and write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from gradientflow.arguments import checked_list
from gradientflow.errors import ArgumentError, ArgumentTypeError
from gradientflow.torch import devices

CORE_DTYPES = frozenset(
    {
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.int8,
        torch.uint8,
        torch.int32,
        torch.int64,
        torch.bool,
    }
)


def checked(tensor: object) -> torch.Tensor:
    """Return a tensor, detached, after checking that a process group can send and receive it.

    Raises
    ------
    gradientflow.errors.ArgumentTypeError
        Unless it is a dense tensor in CPU memory or on a CUDA device.
    """
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentTypeError(f"a process group takes tensors, not a {type(tensor).__name__}")
    if tensor.layout is not torch.strided:
        message = f"a {tensor.layout} tensor cannot be sent or reduced: make it dense with to_dense() first"
        raise ArgumentTypeError(message)
    if not (tensor.is_cpu or tensor.is_cuda):
        message = f"the process group gradientflow serves tensors in CPU memory and on CUDA, not on {tensor.device}"
        raise ArgumentTypeError(message)
    return tensor.detach() if tensor.requires_grad else tensor


def is_sparse(tensor: object) -> bool:
    """Tell if the value is a sparse COO tensor, which some calls support."""
    return isinstance(tensor, torch.Tensor) and tensor.layout is torch.sparse_coo


def is_plain(tensor: torch.Tensor) -> bool:
    """Tell if a tensor is plain: contiguous, without a lazy conjugation or negation."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor if it is plain, otherwise a plain copy."""
    return tensor if is_plain(tensor) else tensor.resolve_conj().resolve_neg().contiguous()


def plain_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return an empty plain tensor of the same shape and dtype, on the same device."""
    return devices.empty(tensor.shape, tensor.dtype, devices.device_of(tensor))


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a flat view of a plain tensor as bytes."""
    # reshape(-1) can keep the meaningless stride of a single element, which view(dtype) rejects.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def movable(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain tensor if the core can move its dtype, otherwise a view of the tensor as bytes."""
    return tensor if tensor.dtype in CORE_DTYPES else as_bytes(tensor)


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Tell if two plain tensors share memory."""
    begin, other = a.data_ptr(), b.data_ptr()
    return begin < other + b.nbytes and other < begin + a.nbytes


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return tensors that are adjacent in one storage, such as results of torch.split, as one row; else None."""
    first = tensors[0]
    end = first.data_ptr()
    storage = first.untyped_storage().data_ptr()
    for tensor in tensors:
        if (
            tensor.data_ptr() != end
            or tensor.untyped_storage().data_ptr() != storage
            or tensor.dtype is not first.dtype
            or not is_plain(tensor)
        ):
            return None
        end += tensor.nbytes
    return first.as_strided((sum(tensor.numel() for tensor in tensors),), (1,))


def side_by_side(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the elements of tensors as one row: a view if they are adjacent in memory, otherwise a copy."""
    row = joined(tensors)
    return torch.cat([plain(tensor).reshape(-1) for tensor in tensors]) if row is None else row


def without_overlap(source: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the source, or a copy if it overlaps the tensor that the call writes."""
    return source.clone() if overlap(source, other) else source


def memory_for(target: torch.Tensor) -> tuple[torch.Tensor, Callable[[], object] | None]:
    """Return plain memory for the values of a tensor, and a function that then copies them to the tensor, if needed."""
    if is_plain(target):
        return target, None
    memory = plain_like(target)
    return memory, partial(target.copy_, memory)


def row_for(outputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, Callable[[], object] | None]:
    """Return memory for the elements of all outputs, and a function that then copies them to the outputs, if needed."""
    row = joined(outputs)
    if row is not None:
        return row, None
    size = sum(output.numel() for output in outputs)
    row = devices.empty((size,), outputs[0].dtype, devices.device_of(outputs[0]))
    return row, partial(_scatter_row, row, outputs)


def _scatter_row(row: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copy the elements of a row into tensors, in order."""
    for tensor, part in zip(tensors, torch.split(row, [tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view(tensor.shape))


def only(tensors: object, call: str) -> Any:
    """Return the only tensor of a list, or a tensor given without a list.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the list does not have exactly one tensor: a rank has one device.
    """
    if not isinstance(tensors, list) and isinstance(tensors, torch.Tensor):  # the second test is slow
        return tensors
    found = checked_list(f"what {call} takes", tensors, "tensors")
    if len(found) != 1:
        raise ArgumentError(f"{call} takes one tensor for each rank, not {len(found)}")
    return found[0]


def list_of(tensors: object) -> Sequence[torch.Tensor]:
    """Return the list of tensors, unwrapped if PyTorch has wrapped it in another list."""
    if isinstance(tensors, list | tuple) and tensors and isinstance(tensors[0], torch.Tensor):
        return tensors
    found: Sequence[torch.Tensor] = only(tensors, "the call")
    return found


def together(call: str, *lists: object) -> Iterator[tuple[Any, ...]]:
    """Zip the lists of tensors that a call takes.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the lists have different lengths.
    gradientflow.errors.ArgumentTypeError
        If an argument is not a list.
    """
    found = [checked_list(f"what {call} takes", each, "tensors") for each in lists]
    lengths = sorted({len(each) for each in found})
    if len(lengths) > 1:
        raise ArgumentError(f"{call} takes lists of as many tensors, not of {' and '.join(map(str, lengths))}")
    return zip(*found, strict=True)


def check_alike(call: str, *tensors: torch.Tensor) -> None:
    """Raise unless all tensors of a call have the same dtype and device."""
    devices.common_device(tensors)
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1:
        raise ArgumentTypeError(f"{call} takes tensors of one dtype, not of {' and '.join(sorted(map(str, dtypes)))}")


def check_count(call: str, tensor: torch.Tensor, wanted: int) -> None:
    """Raise unless a tensor of a call has this number of elements."""
    if tensor.numel() != wanted:
        raise ArgumentError(f"{call} needs a tensor of {wanted} elements here, not of {tensor.numel()}")
