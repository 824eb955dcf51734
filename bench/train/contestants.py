"""The contestants: a model, its optimizer, and what synchronises the ranks in a step.

A training step is the same for all of them: zero the gradients, loss, backward, optimizer step.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed
from numpy.typing import NDArray
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from .plan import Entry, Optimizer
from .tasks import Task

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator
    from gradientflow.parameter_server import ParameterServer
    from gradientflow.strategies import Synchronizer

dist: Any = torch.distributed

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
    optimizer : Optimizer
        What makes the steps.
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

    def __init__(self, entry: Entry, task: Task, seed: int, optimizer: Optimizer, comm: Communicator) -> None:
        self.entry = entry
        self.model = task.model(seed, entry.precision)
        self.module: Any = self.model
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), optimizer.learning_rate, optimizer.momentum)
        if entry.strategy is not None:
            import gradientflow.torch as gft

            fused = True if entry.fused or entry.precision != "float32" else None
            self.optimizer = gft.DistributedOptimizer(
                self.optimizer, self.model, comm, strategy=entry.strategy, fused=fused
            )
        elif entry.contestant == "mpi":
            self.optimizer = MpiOptimizer(self.optimizer, self.model, comm)
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
        """Give the bytes that the library says this rank has sent in messages for the last step, if it does."""
        sent: int | None = None if self.entry.strategy is None else self.optimizer.bytes_sent
        return sent

    def backward(self) -> contextlib.AbstractContextManager[None]:
        """Give what the backward pass runs in."""
        return contextlib.nullcontext() if self.entry.overlaps else self.optimizer.no_sync()

    @property
    def synchronizer(self) -> Synchronizer | None:
        """What our strategy is bound to; None elsewhere, and where there is nothing to do with one rank."""
        found: Synchronizer | None = None if self.entry.strategy is None else self.optimizer.synchronizer
        return found

    def bookkeeping_seconds(self) -> float | None:
        """Give what this rank spent in the last step on choosing what is sent; None where all is."""
        return None if self.synchronizer is None else self.synchronizer.bookkeeping_seconds

    def residuals(self) -> NDArray[np.float32]:
        """Copy what this rank keeps of gradients, for all parameters one after the other; zeros where nothing."""
        flat = [np.zeros(parameter.numel(), np.float32) for parameter in self.model.parameters()]
        if self.synchronizer is not None and len(self.synchronizer.residuals):
            kept = dict(zip(self.synchronizer.layout.names, self.synchronizer.residuals, strict=True))
            flat = [np.asarray(kept[name], np.float32).reshape(-1) for name, _ in self.model.named_parameters()]
        return np.concatenate(flat)

    @property
    def server(self) -> ParameterServer | None:
        """The parameter server, where there is one."""
        return getattr(self.synchronizer, "server", None)

    def finish(self) -> None:
        """End training: now the parameters are the same on all ranks; all ranks together."""
        if self.entry.strategy is not None:
            self.optimizer.finish()

    def close(self) -> None:
        """Give back what it holds; all ranks together."""
        if self.entry.strategy is not None:
            self.optimizer.close()
        elif self.entry.contestant == "ddp-gradientflow":
            dist.destroy_process_group(self.module.process_group)


class MpiOptimizer:
    """Averages each gradient with ``MPI_Allreduce`` after the backward pass, the last layer's first, and steps.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        What makes the step.
    model : torch.nn.Module
        Whose parameters it trains.
    comm : Communicator
        The ranks.
    """

    def __init__(self, optimizer: Any, model: nn.Module, comm: Communicator) -> None:
        self._optimizer, self._comm = optimizer, comm.mpi
        self._parameters: list[Any] = list(model.parameters())[::-1]
        self.zero_grad = optimizer.zero_grad

    def step(self) -> None:
        """Make a step with the mean gradients of all ranks."""
        from mpi4py import MPI

        for parameter in self._parameters:
            gradient = parameter.grad.numpy()
            self._comm.Allreduce(MPI.IN_PLACE, gradient)
            gradient /= self._comm.size
        self._optimizer.step()


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
    flat: NDArray[np.float32] = torch.cat([tensor.detach().reshape(-1).float() for tensor in tensors]).numpy()
    return flat
