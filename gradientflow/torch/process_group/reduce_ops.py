"""PyTorch's reductions, expressed by reductions of the core.

The core knows sum, mean, max, min and prod on some dtypes. Other dtypes are converted: complex numbers to pairs, small
integers to wider integers, and unsigned 64-bit integers to signed integers in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.distributed import ReduceOp

from gradientflow.errors import ArgumentTypeError

from .tensors import CORE_DTYPES, as_bytes, plain_like

Op: TypeAlias = Any  # a ReduceOp, whose annotations lack its `op`

# Keys are the numbers of the ops: PyTorch's objects are slow as keys.
NAMES = {
    ReduceOp.SUM.value: "sum",
    ReduceOp.AVG.value: "mean",
    ReduceOp.PRODUCT.value: "prod",
    ReduceOp.MIN.value: "min",
    ReduceOp.MAX.value: "max",
}
_BITWISE: dict[int, Callable[..., object]] = {
    ReduceOp.BAND.value: torch.bitwise_and,
    ReduceOp.BOR.value: torch.bitwise_or,
    ReduceOp.BXOR.value: torch.bitwise_xor,
}
# In PyTorch a sum of bools is true if any of them is true.
_ON_BOOL = {
    ReduceOp.SUM.value: "max",
    ReduceOp.MAX.value: "max",
    ReduceOp.BOR.value: "max",
    ReduceOp.PRODUCT.value: "min",
    ReduceOp.MIN.value: "min",
    ReduceOp.BAND.value: "min",
}
_SUM, _AVG, _PREMUL_SUM = ReduceOp.SUM.value, ReduceOp.AVG.value, ReduceOp.PREMUL_SUM.value
_WIDER = {torch.int16: torch.int32, torch.uint16: torch.int32, torch.uint32: torch.int64}
_HIGHEST_BIT = -(1 << 63)  # flipped, it makes unsigned numbers keep their order when read as signed


@dataclass(frozen=True)
class Reduction:
    """A reduction in the form that the core supports.

    Attributes
    ----------
    op : str
        The core's op.
    operand : torch.Tensor
        The tensor that it reduces: in the memory of the given tensor, or a copy.
    store : callable
        ``store(target, result)`` writes a result of the core to a tensor of the original dtype.
    """

    op: str
    operand: torch.Tensor
    store: Callable[[torch.Tensor, torch.Tensor], object] = torch.Tensor.copy_


def is_bitwise(tensor: torch.Tensor, op: Op) -> bool:
    """Tell if a reduction is bitwise. The core has no bitwise reductions: the ranks then gather and combine.

    Raises
    ------
    gradientflow.errors.ArgumentTypeError
        If the bits of the dtype cannot be combined.
    """
    kind, dtype = op.op.value, tensor.dtype
    if kind not in _BITWISE or (dtype is torch.bool and kind in _ON_BOOL):
        return False
    _check(op, dtype, not dtype.is_floating_point and not dtype.is_complex)
    return True


def combine_bits(rows: torch.Tensor, op: Op, target: torch.Tensor) -> None:
    """Combine the rows of a matrix of bytes, and write the result to a tensor."""
    combined = plain_like(target)
    bits = as_bytes(combined).copy_(rows[0])
    for row in rows[1:]:
        _BITWISE[op.op.value](bits, row, out=bits)
    target.copy_(combined)


def reduction_of(tensor: torch.Tensor, op: Op, size: int) -> Reduction:
    """Return the core's reduction of a plain tensor over `size` ranks.

    Raises
    ------
    gradientflow.errors.ArgumentTypeError
        If the op is not defined on the dtype.
    """
    kind, dtype = op.op.value, tensor.dtype
    if kind == _PREMUL_SUM:
        _check(op, dtype, dtype.is_floating_point or dtype.is_complex)
        tensor, kind = (tensor * op.factor).to(dtype), _SUM
    if dtype is torch.bool:
        _check(op, dtype, kind in _ON_BOOL)
        return Reduction(_ON_BOOL[kind], tensor)
    if dtype.is_complex:
        _check(op, dtype, kind in (_SUM, _AVG))
        return Reduction(NAMES[kind], torch.view_as_real(tensor), _store_pairs)
    _check(op, dtype, kind in NAMES)
    if kind == _AVG and not dtype.is_floating_point:
        _check(op, dtype, dtype is not torch.uint64)
        return Reduction("sum", tensor.to(torch.int64, copy=True), partial(_store_quotient, size))
    if dtype is torch.uint64:
        flip = 0 if kind in (_SUM, ReduceOp.PRODUCT.value) else _HIGHEST_BIT
        return Reduction(NAMES[kind], tensor.view(torch.int64) ^ flip, partial(_store_flipped, flip))
    if dtype in _WIDER:
        return Reduction(NAMES[kind], tensor.to(_WIDER[dtype]))
    _check(op, dtype, dtype in CORE_DTYPES)
    return Reduction(NAMES[kind], tensor)


def _store_pairs(target: torch.Tensor, result: torch.Tensor) -> None:
    target.copy_(torch.view_as_complex(result))


def _store_quotient(size: int, target: torch.Tensor, result: torch.Tensor) -> None:
    target.copy_(result.div_(size, rounding_mode="trunc"))


def _store_flipped(flip: int, target: torch.Tensor, result: torch.Tensor) -> None:
    target.copy_((result ^ flip).view(torch.uint64))


def _check(op: Op, dtype: torch.dtype, defined: bool) -> None:
    if not defined:
        raise ArgumentTypeError(f"the reduction {op.op.name} is not defined on {dtype}")
