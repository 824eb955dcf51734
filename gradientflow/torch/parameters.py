"""Broadcasts of parameters and optimizer state from one rank to all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from gradientflow.agreement import failing_together
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError, ArgumentTypeError, MismatchError
from gradientflow.job import init
from gradientflow.plain import Bytes, pack
from gradientflow.training import require_same
from gradientflow.training.handover import hand_over_parts

from . import devices, shared_model
from .plain_tensors import from_plain, to_plain

_PACK_BYTES = 16 << 20  # smaller tensors are broadcast together, up to about this size
_ALIGNMENT = 16  # bytes, enough for any dtype


def broadcast_parameters(module_or_state_dict: object, root: int = 0, *, comm: Communicator | None = None) -> None:
    """Broadcast the root's parameters and buffers to all ranks, in place. Collective.

    Parameters
    ----------
    module_or_state_dict : torch.nn.Module or mapping of str to torch.Tensor
        A model, with all its parameters and buffers, or named tensors such as a state dict. They may have any dtype and
        strides, in CPU memory and on one CUDA device.
    root : int
        The rank whose values are broadcast.
    comm : Communicator, optional
        The ranks that take part; by default all ranks of the job.

    Raises
    ------
    gradientflow.errors.MismatchError
        On every rank, before anything is sent, if names, shapes, dtypes or kinds of devices differ between ranks.
    gradientflow.errors.ArgumentError
        If there are tensors on several CUDA devices.
    gradientflow.errors.ArgumentTypeError
        If a value is not a dense tensor in CPU memory or on a CUDA device.
    """
    tensors = _named_tensors(module_or_state_dict)
    with _communicator(comm) as comm:
        _check_root(comm, root)
        require_same(
            comm,
            "tensors to broadcast",
            {name: _description(tensor) for name, tensor in tensors.items()},
        )
        for device in _devices_of(tensors):
            if comm.size > 1:
                there = [tensor for tensor in tensors.values() if devices.device_of(tensor) == device]
                _broadcast_tensors(comm, there, root)
    shared_model.accept_broadcast()


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root: int = 0, *, comm: Communicator | None = None
) -> None:
    """Broadcast the root's optimizer state: momentum and the like, learning rates and other settings. Collective.

    State of a strategy that differs between ranks, such as residuals, is not broadcast.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        The optimizer. On other ranks than the root it may have no state yet, for example after only the root has loaded
        a checkpoint.
    root : int
        The rank whose state is broadcast.
    comm : Communicator, optional
        The ranks that take part; by default all ranks of the job.

    Raises
    ------
    gradientflow.errors.MismatchError
        On every rank, before anything is sent, if the optimizers or their parameters differ between ranks.
    gradientflow.errors.GradientFlowError
        On every rank, before anything is sent, if the state has a value other than numbers, text, tensors, and lists,
        tuples and dicts of these.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ArgumentTypeError(f"the optimizer is a {type(optimizer).__name__}, not a torch.optim.Optimizer")
    with _communicator(comm) as comm:
        _check_root(comm, root)
        groups = {
            f"parameter group {i}": ", ".join(str(tuple(parameter.shape)) for parameter in group["params"])
            for i, group in enumerate(optimizer.param_groups)
        }
        require_same(comm, "optimizers", {"the class": type(optimizer).__name__, **groups})
        if comm.size == 1:
            return
        # A DistributedOptimizer's state dict has more than the state common to all ranks.
        checkpoint = getattr(optimizer, "_checkpoint", None)
        parts: list[Bytes] = []
        with failing_together(comm):
            if comm.rank == root:
                state = optimizer.state_dict() if checkpoint is None else checkpoint.common()
                parts = pack(to_plain(state), "the state of the optimizer")
        # Moved to the host: the root's device may belong to another rank. The optimizer copies it to its own device.
        given = hand_over_parts(comm, parts, None, root)
        if comm.rank != root:
            (optimizer.load_state_dict if checkpoint is None else checkpoint.load_common)(from_plain(given))


def make_equal(
    model: torch.nn.Module, added: Mapping[str, torch.Tensor] | None, broadcast: bool, comm: Communicator
) -> None:
    """Make added parameters, or without `added` the model, equal on all ranks; or check that they are. Collective."""
    if broadcast:
        broadcast_parameters(model if added is None else added, comm=comm)
    else:
        require_same_values(dict(model.named_parameters()) if added is None else added, comm)


def require_same_values(tensors: Mapping[str, torch.Tensor], comm: Communicator) -> None:
    """Compare named tensors over the ranks, bit by bit. Collective.

    Raises
    ------
    gradientflow.errors.MismatchError
        On every rank, if two ranks differ. The message names the first rank that differs from rank 0, and its first
        tensor.
    """
    tensors = _named_tensors(tensors)
    require_same(comm, "parameters", {name: _description(tensor) for name, tensor in tensors.items()})
    digests = b"".join(_digest(tensor) for tensor in tensors.values())
    of_each = comm.allgather(np.frombuffer(digests, np.uint8)).reshape(comm.size, len(tensors), -1)
    differs = (of_each != of_each[0]).any(axis=2)
    if not differs.any():
        return
    rank, index = np.argwhere(differs)[0]
    message = f"the ranks have different parameters: {list(tensors)[index]} of rank {rank} is not that of rank 0"
    raise MismatchError(message)


def _digest(tensor: torch.Tensor) -> bytes:
    values = tensor.detach().to(devices.HOST).contiguous().view(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(values.data, digest_size=16).digest()


@contextmanager
def _communicator(comm: Communicator | None) -> Iterator[Communicator]:
    """Yield the communicator, or a temporary communicator of all ranks."""
    if comm is not None:
        yield comm
        return
    with init() as own:
        yield own


def _check_root(comm: Communicator, root: int) -> None:
    if not 0 <= root < comm.size:
        raise ArgumentError(f"root {root} is not a rank: ranks are 0 to {comm.size - 1}")


def _named_tensors(source: object) -> dict[str, torch.Tensor]:
    """Return the tensors to broadcast by name, after checks; of a module, every tensor once."""
    if isinstance(source, torch.nn.Module):
        tensors = {**dict(source.named_parameters()), **dict(source.named_buffers())}
    elif isinstance(source, Mapping):
        tensors = dict(source)
    else:
        message = f"parameters come from a torch.nn.Module or a state dict, not from a {type(source).__name__}"
        raise ArgumentTypeError(message)
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ArgumentTypeError(f"{name} is a {type(tensor).__name__}, not a tensor")
        if is_lazy(tensor):
            raise ArgumentTypeError(f"{name} has no shape yet: run the model once first")
        if devices.device_of(tensor).type not in devices.KINDS or tensor.layout is not torch.strided:
            where = f"a {tensor.layout} tensor on {tensor.device}"
            raise ArgumentTypeError(f"{name} is {where}: only dense tensors in CPU memory and on a CUDA device can go")
    places = _devices_of(tensors)
    if len(places) > 1 and places[-2] != devices.HOST:
        raise ArgumentError(f"there are tensors on {' and '.join(map(str, places))}: a rank has one CUDA device")
    return tensors


def _devices_of(tensors: Mapping[str, torch.Tensor]) -> list[torch.device]:
    """Return the devices of these tensors, the host first."""
    return sorted({devices.device_of(tensor) for tensor in tensors.values()}, key=str)


def _description(tensor: torch.Tensor) -> str:
    """Describe the properties that must be equal on all ranks; device numbers may differ."""
    device = devices.device_of(tensor)
    return f"{tensor.dtype} {tuple(tensor.shape)}" + ("" if device == devices.HOST else f" on {device.type}")


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
    """Broadcast tensors in one call: a single contiguous tensor in place, several packed into one buffer."""
    if len(tensors) == 1 and tensors[0].is_contiguous():
        _broadcast_bytes(comm, tensors[0].view(-1).view(torch.uint8), root)
        torch.autograd.graph.increment_version(tensors[0])
        return
    offsets = [0]
    for tensor in tensors:
        offsets.append(offsets[-1] + -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT)
    data = devices.empty((offsets[-1],), torch.uint8, devices.device_of(tensors[0]))
    places = [
        data[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for offset, tensor in zip(offsets, tensors, strict=False)
    ]
    if comm.rank == root:
        for place, tensor in zip(places, tensors, strict=True):
            place.copy_(tensor)
    _broadcast_bytes(comm, data, root)
    if comm.rank != root:
        for place, tensor in zip(places, tensors, strict=True):
            tensor.copy_(place)


def _broadcast_bytes(comm: Communicator, data: torch.Tensor, root: int) -> None:
    with devices.within(devices.current_stream(devices.device_of(data))):
        comm.broadcast(devices.shared(data), root)
