"""The contestants: a model, its optimizer, and what synchronises the ranks in a step.

A training step is the same for all of them: zero the gradients, loss, backward, optimizer step.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed
from numpy.typing import NDArray
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from .plan import Entry
from .tasks import Task

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator

dist: Any = torch.distributed

_MOMENTUM = 0.9
_LEAST_POWERSGD_ITERATION = 2  # from which on it compresses; PyTorch allows no earlier one


class Contestant:
    """One way to train, with parameters and optimizer state of its own.

    Parameters
    ----------
    entry : Entry
        Which way.
    task : Task
        What to train.
    seed : int
        Gives the initial parameters.
    learning_rate : float
        Of SGD with momentum 0.9.
    comm : Communicator
        The ranks; all of them make one together. PyTorch's default process group has to be there for DDP.

    Attributes
    ----------
    entry : Entry
        As given.
    model : torch.nn.Module
        The model itself.
    module : callable
        What is called in the forward pass: the model, or DDP around it.
    optimizer : object
        What makes the step.
    """

    def __init__(self, entry: Entry, task: Task, seed: int, learning_rate: float, comm: Communicator) -> None:
        self.entry = entry
        self.model = task.model(seed)
        self.module: Any = self.model
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), learning_rate, _MOMENTUM)
        if entry.threshold is not None:
            import gradientflow.torch as gft

            self.optimizer = gft.DistributedOptimizer(
                self.optimizer, self.model, comm, fusion_threshold=entry.threshold, wire=entry.wire
            )
        elif entry.needs_ddp:
            self.module = _data_parallel(self.model, entry)

    def gradient(self) -> NDArray[np.float32]:
        """Copy the gradients of all parameters into one array."""
        return _flat(parameter.grad for parameter in self.model.parameters())

    def parameters(self) -> NDArray[np.float32]:
        """Copy all parameters into one array."""
        return _flat(self.model.parameters())

    def digest(self) -> str:
        """Give what tells other parameters from these, bit by bit."""
        return hashlib.sha256(self.parameters().tobytes()).hexdigest()

    def bytes_reported(self) -> int | None:
        """Give the bytes that the library says this rank has sent in messages in the last step."""
        if self.entry.contestant != "gradientflow":
            return None
        sent: int | None = self.optimizer.bytes_sent
        return sent

    def close(self) -> None:
        """Give back what it holds; all ranks together."""
        if self.entry.contestant == "gradientflow":
            self.optimizer.close()
        elif self.entry.contestant == "ddp-gradientflow":
            dist.destroy_process_group(self.module.process_group)


def _data_parallel(model: nn.Module, entry: Entry) -> nn.Module:
    """Wrap a model in PyTorch's own way, with its defaults."""
    if entry.contestant == "ddp-gradientflow":
        from gradientflow.torch.registration import register

        register()  # where PyTorch has not done so by itself
        return DistributedDataParallel(model, process_group=dist.new_group(backend="gradientflow"))
    if entry.approximation_rank is not None:
        # One bucket: those of several call Gloo from its threads, in orders that differ between ranks, and wait there.
        megabytes = sum(parameter.nbytes for parameter in model.parameters()) / 2**20 + 1
        module = DistributedDataParallel(model, bucket_cap_mb=megabytes)
        state = powerSGD_hook.PowerSGDState(None, entry.approximation_rank, _LEAST_POWERSGD_ITERATION)
        module.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return module
    module = DistributedDataParallel(model)
    if entry.contestant == "ddp-gloo-fp16":
        module.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return module


def _flat(tensors: Any) -> NDArray[np.float32]:
    flat: NDArray[np.float32] = torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).numpy()
    return flat
