"""Broadcast, gather, scatter and all-to-all of tensors, as calls on the communicator."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from .calls import Call
from .tensors import check_alike, check_count, memory_for, movable, plain, row_for, side_by_side, without_overlap


def broadcast(tensor: torch.Tensor, root: int, rank: int) -> Call:
    """Copy the root's tensor to all ranks, in place."""
    memory = plain(tensor)
    finish = None if memory is tensor or rank == root else partial(tensor.copy_, memory)
    return Call("broadcast", {"x": movable(memory), "root": root}, finish)


def allgather(outputs: Sequence[torch.Tensor], source: torch.Tensor, rank: int) -> Call:
    """Collect the tensors of all ranks, of any sizes, in one output per rank."""
    source = plain(source)
    check_alike("allgather", source, *outputs)
    check_count("allgather", outputs[rank], source.numel())
    row, finish = row_for(outputs)
    source = without_overlap(source, row)
    x, out = movable(source), movable(row)
    if all(output.numel() == source.numel() for output in outputs):
        return Call("allgather", {"x": x, "out": out}, finish)
    counts = [output.nbytes // out.element_size() for output in outputs]
    return Call("allgatherv", {"x": x, "counts": counts, "out": out}, finish)


def all_gather_single(target: torch.Tensor, source: torch.Tensor, size: int) -> Call:
    """Collect the tensors of `size` ranks side by side in one tensor."""
    check_alike("all_gather_single", target, source)
    check_count("all_gather_single", target, source.numel() * size)
    row, finish = memory_for(target)
    return Call("allgather", {"x": movable(without_overlap(plain(source), row)), "out": movable(row)}, finish)


def gather(outputs: Sequence[torch.Tensor], source: torch.Tensor, root: int) -> Call:
    """Collect the tensors of all ranks on the root, the only rank with outputs."""
    memory = movable(plain(source))
    if not outputs:
        return Call("gather", {"x": memory, "root": root})
    check_alike("gather", source, *outputs)
    for output in outputs:
        check_count("gather", output, source.numel())
    row, finish = row_for(outputs)
    return Call("gather", {"x": without_overlap(memory, row), "root": root, "out": movable(row)}, finish)


def scatter(target: torch.Tensor, parts: Sequence[torch.Tensor], root: int) -> Call:
    """Send each of the root's tensors to its rank; only the root has any."""
    memory, finish = memory_for(target)
    arguments = {"root": root, "out": movable(memory)}
    if parts:
        check_alike("scatter", target, *parts)
        for part in parts:
            check_count("scatter", part, target.numel())
        arguments["x"] = movable(without_overlap(side_by_side(parts), memory))
    return Call("scatter", arguments, finish)


def all_to_all_single(target: torch.Tensor, source: torch.Tensor, size: int) -> Call:
    """Send a block to every rank and receive one from every rank, all of the same size."""
    check_count("all_to_all_single", source, target.numel() // size * size)
    check_count("all_to_all_single", target, source.numel())
    memory, finish = memory_for(target)
    return Call("alltoall", {"x": movable(without_overlap(source, memory)), "out": movable(memory)}, finish)
