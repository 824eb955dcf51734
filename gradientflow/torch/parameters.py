"""Giving all ranks the parameters and the optimizer state of one of them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from gradientflow.communicator import Communicator, init
from gradientflow.errors import ArgumentError, ArgumentTypeError

from .agreement import require_same

is_lazy: Any = torch.nn.parameter.is_lazy  # whether a parameter has no shape yet

_PACK_BYTES = 16 << 20  # tensors of less travel together, up to about this size
_ALIGNMENT = 16  # bytes, enough for any dtype


def broadcast_parameters(module_or_state_dict: Any, root: int = 0, *, comm: Communicator | None = None) -> None:
    """Give all ranks the root's parameters and buffers, in place. Collective.

    Parameters
    ----------
    module_or_state_dict : torch.nn.Module or mapping of str to torch.Tensor
        A model, with all its parameters and buffers, or named tensors such as a state dict. Of any dtype and layout in
        CPU memory.
    root : int
        The rank whose values everybody gets.
    comm : Communicator, optional
        Whose ranks take part; by default all of the job.

    Raises
    ------
    gradientflow.errors.MismatchError
        On every rank, before anything is sent, if names, shapes or dtypes differ between ranks.
    gradientflow.errors.ArgumentTypeError
        If something is not a dense tensor in CPU memory.
    """
    tensors = _named_tensors(module_or_state_dict)
    with _communicator(comm) as comm:
        _check_root(comm, root)
        require_same(
            comm,
            "tensors to broadcast",
            {name: f"{tensor.dtype} {tuple(tensor.shape)}" for name, tensor in tensors.items()},
        )
        if comm.size > 1:
            _broadcast_tensors(comm, tensors.values(), root)


def broadcast_optimizer_state(optimizer: Any, root: int = 0, *, comm: Communicator | None = None) -> None:
    """Give all ranks the root's optimizer state: momentum and the like, learning rates and other settings. Collective.

    What each rank holds back with CSC stays its own.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        On the other ranks it may have no state yet, for example when only the root has loaded a checkpoint.
    root : int
        The rank whose state everybody gets.
    comm : Communicator, optional
        Whose ranks take part; by default all of the job.

    Raises
    ------
    gradientflow.errors.MismatchError
        On every rank, before anything is sent, if the optimizers or what they optimize differ between ranks.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        message = f"the optimizer is a {type(optimizer).__name__}, not a torch.optim.Optimizer"
        raise ArgumentTypeError(message)
    with _communicator(comm) as comm:
        _check_root(comm, root)
        groups = {
            f"parameter group {i}": ", ".join(str(tuple(parameter.shape)) for parameter in group["params"])
            for i, group in enumerate(optimizer.param_groups)
        }
        require_same(comm, "optimizers", {"the class": type(optimizer).__name__, **groups})
        if comm.size == 1:
            return
        state_of = getattr(optimizer, "_common_state_dict", optimizer.state_dict)
        load = getattr(optimizer, "_load_common_state_dict", optimizer.load_state_dict)
        stream = io.BytesIO()
        if comm.rank == root:
            torch.save(state_of(), stream)
        size = comm.broadcast(np.array([stream.tell()]), root)
        data = bytearray(stream.getbuffer()) if comm.rank == root else bytearray(size[0])
        comm.broadcast(data, root)
        if comm.rank != root:
            load(torch.load(io.BytesIO(data), weights_only=False))


@contextmanager
def _communicator(comm: Communicator | None) -> Iterator[Communicator]:
    """Give the communicator, or one of all ranks for the time being."""
    if comm is not None:
        yield comm
        return
    with init() as own:
        yield own


def _check_root(comm: Communicator, root: int) -> None:
    if not 0 <= root < comm.size:
        message = f"root {root} is not a rank: ranks are 0 to {comm.size - 1}"
        raise ArgumentError(message)


def _named_tensors(source: Any) -> dict[str, torch.Tensor]:
    """Return what is to be broadcast by name, every tensor once."""
    if isinstance(source, torch.nn.Module):
        tensors = {**dict(source.named_parameters()), **dict(source.named_buffers())}
    elif isinstance(source, Mapping):
        tensors = dict(source)
    else:
        message = f"parameters come from a torch.nn.Module or a state dict, not from a {type(source).__name__}"
        raise ArgumentTypeError(message)
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            message = f"{name} is a {type(tensor).__name__}, not a tensor"
            raise ArgumentTypeError(message)
        if is_lazy(tensor):
            message = f"{name} has no shape yet: run the model once first"
            raise ArgumentTypeError(message)
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            message = f"{name} is a {tensor.layout} tensor on {tensor.device}: only dense tensors in CPU memory can go"
            raise ArgumentTypeError(message)
    return tensors


def _broadcast_tensors(comm: Communicator, tensors: Iterable[torch.Tensor], root: int) -> None:
    """Broadcast tensors as bytes, small ones together. All ranks make the same calls."""
    pack: list[torch.Tensor] = []
    packed = 0
    for tensor in tensors:
        nbytes = tensor.nbytes
        if packed + nbytes > _PACK_BYTES and pack:
            _broadcast_pack(comm, pack, root)
            pack, packed = [], 0
        pack.append(tensor.detach())
        packed += nbytes
    if packed:
        _broadcast_pack(comm, pack, root)


def _broadcast_pack(comm: Communicator, tensors: list[torch.Tensor], root: int) -> None:
    """Broadcast some tensors in one call: a single one where it lies, if it can, the others side by side."""
    if len(tensors) == 1 and tensors[0].is_contiguous():
        comm.broadcast(tensors[0].view(-1).view(torch.uint8), root)
        torch.autograd.graph.increment_version(tensors[0])
        return
    offsets = [0]
    for tensor in tensors:
        offsets.append(offsets[-1] + -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT)
    data = torch.empty(offsets[-1], dtype=torch.uint8)
    places = [
        data[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for offset, tensor in zip(offsets, tensors, strict=False)
    ]
    if comm.rank == root:
        for place, tensor in zip(places, tensors, strict=True):
            place.copy_(tensor)
    comm.broadcast(data, root)
    if comm.rank != root:
        for place, tensor in zip(places, tensors, strict=True):
            tensor.copy_(place)
