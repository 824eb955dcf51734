"""The allreduce of sparse tensors: the ranks gather their elements and add them up."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.distributed import ReduceOp

from gradientflow.errors import ArgumentTypeError, MismatchError
from gradientflow.torch import devices

from .calls import Call
from .copies import allgather
from .group_rank import GroupRank
from .reduce_ops import Op
from .tensors import checked


def allreduce_sparse(tensor: torch.Tensor, op: Op, place: GroupRank, run: Callable[[Call], object]) -> list[Call]:
    """Return the calls that gather and add sparse tensors, in place.

    Parameters
    ----------
    tensor : torch.Tensor
        Tensor in the COO layout.
    op : torch.distributed.ReduceOp
        SUM or AVG.
    place : GroupRank
        The place of this rank.
    run : callable
        Makes a call and waits for it: the ranks gather their numbers of elements first.

    Raises
    ------
    gradientflow.errors.ArgumentTypeError
        If the op is not defined on the dtype.
    gradientflow.errors.MismatchError
        If the tensors of the ranks are not alike.
    """
    mean = op.op == ReduceOp.AVG
    if op.op != ReduceOp.SUM and not (mean and (tensor.is_floating_point() or tensor.is_complex())):
        message = f"a sparse tensor of {tensor.dtype} is reduced with SUM, or AVG if it has fractions, not {op.op.name}"
        raise ArgumentTypeError(message)
    own = tensor.detach().coalesce()
    indices, values = checked(own.indices().t().contiguous()), checked(own.values().contiguous())
    facts = torch.tensor([own.sparse_dim(), own.dense_dim(), *own.shape, own._nnz()], device=devices.HOST)
    found = devices.empty((place.size, facts.numel()), facts.dtype, devices.HOST)
    run(Call("allgather", {"x": facts, "out": found}))
    if (found[:, :-1] != found[0, :-1]).any():
        shapes = [tuple(shape) for shape in found[:, 2:-1].tolist()]
        raise MismatchError(f"the ranks reduce sparse tensors that are not alike; their shapes are {shapes}")
    counts = found[:, -1].tolist()
    device = devices.device_of(values)
    all_indices = devices.empty((sum(counts), own.sparse_dim()), indices.dtype, device)
    all_values = devices.empty((sum(counts), *values.shape[1:]), values.dtype, device)

    def store() -> None:
        total = torch.sparse_coo_tensor(
            all_indices.t(), all_values, own.shape, device=device, check_invariants=False
        ).coalesce()
        with torch.no_grad():  # changing a detached sparse tensor would not change this one
            tensor.copy_(total / place.size if mean else total)

    return [
        allgather(torch.split(all_indices, counts), indices, place.rank),
        allgather(torch.split(all_values, counts), values, place.rank).then(store),
    ]
