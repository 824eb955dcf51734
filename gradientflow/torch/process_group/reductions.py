"""Allreduce, reduce and reduce-scatter of tensors, as calls on the communicator."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from gradientflow.torch import devices

from .calls import Call
from .group_rank import GroupRank
from .reduce_ops import combine_bits, is_bitwise, reduction_of
from .tensors import as_bytes, check_alike, check_count, is_plain, overlap, plain, plain_like, side_by_side


def allreduce(tensor: torch.Tensor, op: object, size: int) -> Call:
    """Reduce a tensor over `size` ranks, in place."""
    source = plain(tensor)
    if is_bitwise(source, op):
        return _combine(source, tensor, op, size)
    reduction = reduction_of(source, op, size)
    call = Call("allreduce", {"x": reduction.operand, "op": reduction.op})
    if _same_memory(reduction.operand, tensor):
        return call
    return call.then(partial(reduction.store, tensor, reduction.operand))


def reduce(tensor: torch.Tensor, root: int, op: object, place: GroupRank) -> Call:
    """Reduce a tensor; the root gets the result, in place."""
    source = plain(tensor)
    if is_bitwise(source, op):
        return _combine(source, tensor if place.rank == root else plain_like(tensor), op, place.size)
    reduction = reduction_of(source, op, place.size)
    call = Call("reduce", {"x": reduction.operand, "root": root, "op": reduction.op})
    if place.rank != root or _same_memory(reduction.operand, tensor):
        return call
    return call.then(partial(reduction.store, tensor, reduction.operand))


def reduce_scatter(output: torch.Tensor, parts: Sequence[torch.Tensor], op: object, place: GroupRank) -> list[Call]:
    """Reduce one tensor per rank, of any sizes; every rank gets the result for its tensor."""
    check_alike("reduce_scatter", output, *parts)
    if all(part.numel() == output.numel() for part in parts):
        return [_reduce_scatter_row(output, side_by_side(parts), op, place)]
    check_count("reduce_scatter", output, parts[place.rank].numel())
    copies = [part.clone(memory_format=torch.contiguous_format) for part in parts]
    calls = [allreduce(copy, op, place.size) for copy in copies]
    calls[place.rank] = calls[place.rank].then(lambda: output.copy_(copies[place.rank].view(output.shape)))
    return calls


def reduce_scatter_single(target: torch.Tensor, source: torch.Tensor, op: object, place: GroupRank) -> Call:
    """Reduce a tensor with one block per rank; every rank gets its block."""
    check_alike("reduce_scatter_single", target, source)
    check_count("reduce_scatter_single", source, target.numel() * place.size)
    return _reduce_scatter_row(target, plain(source).reshape(-1), op, place)


def _reduce_scatter_row(target: torch.Tensor, row: torch.Tensor, op: object, place: GroupRank) -> Call:
    """Reduce-scatter a plain row with one block per rank."""
    if is_bitwise(row, op):
        whole = plain_like(row)
        own = whole.view(place.size, -1)[place.rank].view(target.shape) if row.numel() else target
        return _combine(row, whole, op, place.size).then(partial(target.copy_, own))
    reduction = reduction_of(row, op, place.size)
    operand = reduction.operand
    if operand.dtype is target.dtype and is_plain(target) and not overlap(operand, target):
        return Call("reduce_scatter", {"x": operand, "op": reduction.op, "out": target})
    result = devices.empty((*target.shape, *operand.shape[1:]), operand.dtype, devices.device_of(target))
    arguments = {"x": operand, "op": reduction.op, "out": result}
    return Call("reduce_scatter", arguments, partial(reduction.store, target, result))


def _combine(source: torch.Tensor, target: torch.Tensor, op: object, size: int) -> Call:
    """Reduce bitwise: gather all bits, then combine them."""
    bits = as_bytes(source)
    rows = devices.empty((size, bits.numel()), torch.uint8, devices.device_of(bits))
    return Call("allgather", {"x": bits, "out": rows}, partial(combine_bits, rows, op, target))


def _same_memory(operand: torch.Tensor, tensor: torch.Tensor) -> bool:
    return operand.data_ptr() == tensor.data_ptr()
